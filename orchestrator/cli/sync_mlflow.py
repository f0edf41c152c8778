"""``deyo-sweep sync-mlflow``: publish to MLflow what it does not show of a sweep's results."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from orchestrator.cli import options


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("sync-mlflow", help="Publish to MLflow what it lacks of a sweep's results; ends runs left RUNNING.")(
        sync_mlflow
    )


def sync_mlflow(
    sweep: options.SpecOrSweep,
    results: options.Results = options.DEFAULT_RESULTS,
    uri: Annotated[str | None, typer.Option("--uri", help="Another tracking store than the sweep's.")] = None,
    restore: Annotated[bool, typer.Option("--restore", help="Bring back what was deleted in MLflow by hand.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Go on although the sweep seems to be running.")] = False,
    as_json: options.Json = False,
) -> None:
    """Safe to repeat: points are never doubled. Exits with 1 if MLflow refused something, with 2 if it is down."""
    from orchestrator.tracking.inuse import store_in_use
    from orchestrator.tracking.options import redact
    from orchestrator.tracking.remote import GoneError, OutageError, RefusedError
    from orchestrator.tracking.sync import sync

    name = options.sweep_name(sweep, results)
    used = store_in_use(results, name, uri=uri)
    where = redact(used.uri)
    try:
        report = sync(
            used.uri,
            results,
            name,
            options=used.options,
            resolved=used.resolved,
            restore=restore,
            force=force,
            progress=_Progress() if sys.stderr.isatty() else lambda done, waiting: None,
        )
    except (OutageError, GoneError, RefusedError) as error:
        typer.echo(f"error: MLflow at {where}: {error}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=1))
    else:
        restored = f", {report.restored} brought back" if report.restored else ""
        typer.echo(f"{name}: {report.published} runs published to {where}{restored}, {report.total} in the store")
        if report.deleted:
            typer.echo(f"{report.deleted} runs were deleted there by hand and stay so (--restore brings them back)")
        if report.refused:
            typer.echo(f"MLflow refused {report.refused} items, the first: {report.first_refusal}", err=True)
    raise typer.Exit(1 if report.refused else 0)


class _Progress:
    """One line that is written over."""

    def __call__(self, done: int, waiting: int) -> None:
        typer.echo(f"\r{done} published, {waiting} to go   ", nl=False, err=True)
