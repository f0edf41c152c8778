"""``deyo-sweep submit``: run a sweep as a Ray Job, which goes on when this machine is switched off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.watch import show

if TYPE_CHECKING:
    from orchestrator.specmodel import SweepSpec

Follow = Annotated[bool, typer.Option("--follow", help="Show what the job prints until it ends (Ctrl-C leaves it).")]


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("submit")(submit)


def submit(
    spec: options.Spec,
    overrides: options.Set = [],  # noqa: B006  (typer copies it)
    smoke: options.Smoke = False,
    results: options.Results = options.DEFAULT_RESULTS,
    address: options.Address = None,
    allow_insecure: options.AllowInsecure = False,
    skip_bad: options.SkipBad = False,
    follow: Follow = False,
) -> None:
    """Run a sweep on a cluster through Ray Jobs and return at once.

    Submitting a running sweep again attaches to it; submitting one that ended runs what is missing.
    With --follow it exits with 1 if the job did not end well.
    """
    from deyo.types import ConfigError
    from orchestrator import jobs

    if not address:
        raise ConfigError("submit needs the cluster's dashboard: --address http://HOST:8265")
    job = submit_job(options.load(spec, overrides, smoke), address, results, allow_insecure, skip_bad)
    if follow:
        show(jobs.client(address, allow_insecure=allow_insecure), job)


def submit_job(
    spec: SweepSpec,
    address: str,
    results: str,
    allow_insecure: bool,
    skip_bad: bool,
    retry: Sequence[str] | None = None,
) -> str:
    """The sweep's job, begun now or running already, and the words for that."""
    from orchestrator import jobs

    done = jobs.submit(
        spec, address=address, results=results, allow_insecure=allow_insecure, skip_bad=skip_bad, retry=retry
    )
    verb = "is running already as" if done.attached else "was submitted as"
    typer.echo(f"{spec.name} {verb} {done.submission_id}")
    typer.echo(f"watch it: deyo-sweep watch {spec.name} --address {address}")
    return done.submission_id
