"""``deyo-sweep watch``: follow a sweep that another process, or a Ray Job, runs."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from orchestrator.cli import options
from orchestrator.cli.asked import sweep_without_results

Every = Annotated[float, typer.Option("--every", metavar="SECONDS", min=0.2, help="Time between two looks.")]


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("watch")(watch)


def watch(
    sweep: options.SpecOrSweep,
    overrides: options.Set = [],  # noqa: B006  (typer copies it)
    smoke: options.Smoke = False,
    results: options.Results = options.DEFAULT_RESULTS,
    address: options.Address = None,
    allow_insecure: options.AllowInsecure = False,
    every: Every = 5.0,
) -> None:
    """Show a sweep's state as it changes, until it is over. Ctrl-C ends the watching, not the sweep.

    With --address http://HOST:8265 it shows what the sweep's Ray Job prints, and exits with 1 if that did not end well.
    """
    if address:
        from orchestrator import jobs

        asked = jobs.client(address, allow_insecure=allow_insecure)
        show(asked, jobs.existing_job(asked, sweep_without_results(sweep, overrides, smoke), address).name)
        return
    from orchestrator.monitor import standing

    name = options.sweep_name(sweep, results, overrides, smoke=smoke)

    before: list[str] = []
    while True:
        found = standing(results, name)
        if (lines := found.lines()) != before:
            typer.echo("\n".join(line for line in lines if line not in before))
            before = lines
        if found.over:
            return
        time.sleep(every)


def show(asked: Any, job: str) -> None:
    """Print what a job prints until it ends; raises ``typer.Exit`` with 1 unless it succeeded."""
    from orchestrator import jobs

    state = jobs.follow(asked, job, lambda text: typer.echo(text, nl=False))
    if state != "SUCCEEDED":
        typer.echo(f"{job}: {state}", err=True)
        raise typer.Exit(1)
