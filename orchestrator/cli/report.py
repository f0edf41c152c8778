"""``deyo-sweep report``: a sweep as one HTML page, its plots as PNG and PDF beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import DEFAULT_RESULTS, Json, Results, Set, Smoke, SpecOrSweep


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("report", help="One self-contained HTML page of a sweep, and its plots as PNG and PDF.")(report)


def report(
    sweep: SpecOrSweep,
    results: Results = DEFAULT_RESULTS,
    settings: Set = [],  # noqa: B006
    smoke: Smoke = False,
    output: Annotated[
        Path | None, typer.Option("--output", help="Folder to write into. Default: reports/SWEEP under --results.")
    ] = None,
    layout: Annotated[str | None, typer.Option("--layout", help="The layout of the tables, by name.")] = None,
    compare: Annotated[str | None, typer.Option("--compare", help="'paper': its numbers beside ours.")] = None,
    where: Annotated[
        list[str] | None, typer.Option("--where", metavar="AXIS=VALUE", help="Only these runs (repeatable).")
    ] = None,
    ddof: Annotated[int, typer.Option("--ddof", help="1: sample std; 0: population std.")] = 1,
    plots: Annotated[
        str, typer.Option("--plots", help="Picture files to write: png,pdf, one of them, or none.")
    ] = "png,pdf",
    as_json: Json = False,
) -> None:
    """One self-contained HTML page of a sweep, and its plots as PNG and PDF."""
    import json

    from deyo.types import ConfigError
    from orchestrator.folders import obstacle
    from orchestrator.report.build import write_report
    from orchestrator.tables.data import filtered
    from orchestrator.tables.load import load
    from orchestrator.tables.request import Request

    if compare not in (None, "paper"):
        raise ConfigError(f"--compare {compare}: a report compares with 'paper' only; for sweeps: deyo-sweep table")
    formats = [f for f in plots.split(",") if f and f != "none"]
    if set(formats) - {"png", "pdf"}:
        raise ConfigError(f"--plots {plots}: png, pdf, both (png,pdf) or none")
    data, opened = load(sweep, results, settings, smoke=smoke)
    data = filtered(data, where or ())
    folder = output or _default_folder(results, data.sweep)
    if problem := obstacle(folder):
        raise ConfigError(f"--output {folder}: {problem}")
    written = write_report(
        data, opened, folder, Request(layout=layout, ddof=ddof), paper=compare == "paper", formats=formats
    )
    if as_json:
        typer.echo(json.dumps({"page": str(written.page), "plots": [str(p) for p in written.pictures]}))
        return
    typer.echo(f"report: {written.page}")
    if written.pictures:
        typer.echo(f"plots:  {len(written.pictures)} files in {written.pictures[0].parent}")


def _default_folder(results: str, sweep: str) -> Path:
    """Beside the results where they are on this machine, else in the working folder."""
    root = Path() if "://" in results else Path(results)
    return root / "reports" / sweep
