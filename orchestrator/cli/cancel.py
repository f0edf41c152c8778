"""``deyo-sweep cancel``: stop a running sweep in order; what is done stays, the rest can be run later."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.asked import sweep_without_results

if TYPE_CHECKING:
    from orchestrator.monitor import DriverFacts

Wait = Annotated[float, typer.Option("--wait", metavar="SECONDS", min=0, help="How long to wait for its end.")]


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("cancel")(cancel)


def cancel(
    sweep: options.SpecOrSweep,
    overrides: options.Set = [],  # noqa: B006  (typer copies it)
    smoke: options.Smoke = False,
    results: options.Results = options.DEFAULT_RESULTS,
    address: options.Address = None,
    allow_insecure: options.AllowInsecure = False,
    wait: Wait = 60.0,
) -> None:
    """Stop a sweep: its driver on this machine, or with --address http://HOST:8265 its Ray Job.

    Only this sweep is touched; nothing else on the machine or the cluster is.
    """
    if address:
        _cancel_job(address, sweep_without_results(sweep, overrides, smoke), wait, allow_insecure)
        return
    from deyo.types import ConfigError
    from orchestrator.monitor import standing

    name = options.sweep_name(sweep, results, overrides, smoke=smoke)
    driver = standing(results, name).driver
    if driver.alive is False:
        typer.echo(f"{name} is not running")
        return
    if driver.alive is None:
        raise ConfigError(f"{name} is run on {driver.host}: cancel it there, or with --address http://HOST:8265")
    os.kill(driver.pid, signal.SIGTERM)
    ended = _await_end(results, name, driver, wait)
    state = "stopped" if ended else f"still stopping after {wait:g} s (process {driver.pid})"
    typer.echo(f"{name} {state}; `deyo-sweep run` goes on where it was")
    if not ended:
        raise typer.Exit(1)


def _await_end(results: str, name: str, driver: DriverFacts, wait: float) -> bool:
    from orchestrator.monitor import standing

    until = time.monotonic() + wait
    while True:
        now = standing(results, name).driver
        if now.alive is False or now.pid != driver.pid:
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(0.2)


def _cancel_job(address: str, sweep: str, wait: float, allow_insecure: bool) -> None:
    from orchestrator import jobs

    asked = jobs.client(address, allow_insecure=allow_insecure)
    job = jobs.existing_job(asked, sweep, address)
    if job.ended:
        typer.echo(f"{job.name} is not running ({job.state})")
        return
    state = jobs.stop(asked, job.name, patience=wait)
    typer.echo(f"{job.name}: {state}; `deyo-sweep submit` goes on where it was")
    if state not in jobs.ENDED:
        raise typer.Exit(1)
