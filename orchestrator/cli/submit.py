"""``deyo-sweep submit``: run a sweep as a Ray Job, which goes on when this machine is switched off."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.run import AllowInsecure, SkipBad

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
    allow_insecure: AllowInsecure = False,
    skip_bad: SkipBad = False,
    follow: Follow = False,
) -> None:
    """Run a sweep on a cluster through Ray Jobs and return at once.

    Submitting a running sweep again attaches to it; submitting one that ended runs what is missing.
    """
    from deyo.types import ConfigError
    from orchestrator import jobs

    if not address:
        raise ConfigError("submit needs the cluster's dashboard: --address http://HOST:8265")
    loaded = options.load(spec, overrides, smoke)
    done = jobs.submit(loaded, address=address, results=results, allow_insecure=allow_insecure, skip_bad=skip_bad)
    verb = "is running already as" if done.attached else "was submitted as"
    typer.echo(f"{loaded.name} {verb} {done.submission_id}")
    typer.echo(f"watch it: deyo-sweep watch {loaded.name} --address {address}")
    if follow:
        for text in jobs.follow(jobs.client(address, allow_insecure=allow_insecure), done.submission_id):
            typer.echo(text, nl=False)
