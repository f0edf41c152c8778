"""``deyo-sweep doctor``: is this machine, or that cluster, fit for sweeps?"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from orchestrator.cli import options


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("doctor")(doctor)


def doctor(
    spec: Annotated[
        str | None, typer.Argument(metavar="[SPEC]", help="A sweep spec, to check its data and resources as well.")
    ] = None,
    overrides: options.Set = [],  # noqa: B006  (typer copies it)
    smoke: options.Smoke = False,
    results: options.Results = options.DEFAULT_RESULTS,
    address: options.Address = None,
    as_json: options.Json = False,
) -> None:
    """Check versions, token, GPUs, MLflow and data, here or on a cluster. Exits with 1 if a check failed."""
    from orchestrator.doctor import examine
    from orchestrator.expand import expand

    loaded = options.load(spec, overrides, smoke) if spec else None
    runs = expand(loaded) if loaded else []
    checks = []
    for check in examine(loaded, runs, results=results, address=address):
        checks.append(check)
        if not as_json:
            mark = {True: "ok  ", False: "FAIL", None: "note"}[check.ok]
            typer.echo(f"{mark} {check.name}: {check.detail}")
    if as_json:
        typer.echo(json.dumps([asdict(check) for check in checks], indent=1))
    if any(check.ok is False for check in checks):
        raise typer.Exit(1)
