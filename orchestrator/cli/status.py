"""``deyo-sweep status``: how a sweep stands, from its store; also while it runs elsewhere, or after a crash."""

from __future__ import annotations

import json

import typer

from orchestrator.cli import options


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("status")(status)


def status(
    sweep: options.SpecOrSweep,
    overrides: options.Set = [],  # noqa: B006  (typer copies it)
    smoke: options.Smoke = False,
    results: options.Results = options.DEFAULT_RESULTS,
    address: options.Address = None,
    allow_insecure: options.AllowInsecure = False,
    as_json: options.Json = False,
) -> None:
    """Say how many runs are done, failed and left, who runs them, and failures grouped by signature.

    With --address http://HOST:8265 the state of the sweep's Ray Job is shown as well.
    """
    from deyo.types import ConfigError
    from orchestrator.cli.watch import sweep_without_results
    from orchestrator.monitor import standing

    try:
        found = standing(results, options.sweep_name(sweep, results, overrides, smoke=smoke))
    except ConfigError:
        if not address:
            raise
        found = None  # its results are on another machine, or not begun
    job = None
    if address:
        name = sweep_without_results(sweep, overrides, smoke)
        job = _job(address, name, known=found is not None, allow_insecure=allow_insecure)
    if as_json:
        typer.echo(json.dumps({**(found.as_json() if found else {}), "job": job}, indent=1))
        return
    for line in found.lines() if found else ():
        typer.echo(line)
    if job:
        typer.echo(f"job: {job}")


def _job(address: str, sweep: str, *, known: bool, allow_insecure: bool) -> str:
    """The sweep's job and its state; of a sweep that is not ``known`` otherwise, there must be one."""
    from orchestrator import jobs

    asked = jobs.client(address, allow_insecure=allow_insecure)
    last = jobs.last_job(asked, sweep) if known else jobs.existing_job(asked, sweep, address)
    return f"{last.name} {last.state}" if last else f"{jobs.submission_id(sweep)} unknown to this cluster"
