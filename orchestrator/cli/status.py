"""``deyo-sweep status``: how a sweep stands, from its store; also while it runs elsewhere, or after a crash."""

from __future__ import annotations

import contextlib
import json
from typing import Any

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

    With --address http://HOST:8265 the state of the sweep's Ray Job is shown as well; where the results are not on this
    machine, the cluster's head is asked for the counts.
    """
    from deyo.types import ConfigError
    from orchestrator.cli.asked import sweep_without_results
    from orchestrator.monitor import standing

    try:
        found = standing(results, options.sweep_name(sweep, results, overrides, smoke=smoke))
    except ConfigError:
        if not address:
            raise
        found = None  # its results are on another machine, or not begun
    facts, lines, job = (found.as_json(), found.lines(), None) if found else ({}, [], None)
    if address:
        name = sweep_without_results(sweep, overrides, smoke)
        asked = _client(address, allow_insecure)
        job = _job(asked, name, address, known=found is not None)
        if found is None:
            facts, lines = _on_the_head(asked, name, address, as_json)
    if as_json:
        typer.echo(json.dumps({**facts, "job": job}, indent=1))
        return
    for line in (*lines, *([f"job: {job}"] if job else ())):
        typer.echo(line)


def _client(address: str, allow_insecure: bool) -> Any:
    from orchestrator import jobs

    return jobs.client(address, allow_insecure=allow_insecure)


def _job(asked: Any, sweep: str, address: str, *, known: bool) -> str:
    """The sweep's job, its state, and why it failed; of a sweep that is not ``known`` otherwise, there must be one."""
    from orchestrator import jobs

    last = jobs.last_job(asked, sweep) if known else jobs.existing_job(asked, sweep, address)
    if last is None:
        return f"{jobs.submission_id(sweep)} unknown to this cluster"
    why = last.message.strip().splitlines()[:1] if last.state == "FAILED" else []
    return ": ".join([f"{last.name} {last.state}", *why])


def _on_the_head(asked: Any, sweep: str, address: str, as_json: bool) -> tuple[dict[str, Any], list[str]]:
    """How the sweep stands by the results that its job writes: as JSON, or in lines. Nothing where it has not begun, or
    the head does not answer: the job's state is worth telling all the same."""
    from deyo.types import ConfigError
    from orchestrator.asking import ask_head, results_of
    from orchestrator.probe import ClusterError

    words = ["status", sweep, *(["--json"] if as_json else [])]
    try:
        answer = ask_head(asked, [*words, "--results", results_of(asked, sweep, address)])
    except (ClusterError, ConfigError, RuntimeError) as error:
        typer.echo(f"no counts: {error}", err=True)
        return {}, []
    said = answer.text.strip() or answer.notes
    with contextlib.suppress(ValueError):
        if answer.ok:
            return (json.loads(said), []) if as_json else ({}, said.splitlines())
    typer.echo(f"no counts: {said}", err=True)
    return {}, []
