"""``deyo-sweep report``: a sweep as one HTML page, its plots as PNG and PDF beside it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.asked import answer_of, spec_there, words_typed
from orchestrator.cli.options import (
    DEFAULT_RESULTS,
    Address,
    AllowInsecure,
    Json,
    Results,
    Set,
    Smoke,
    SpecOrSweep,
)


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("report", help="One self-contained HTML page of a sweep, and its plots as PNG and PDF.")(report)


def report(
    context: typer.Context,
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
    address: Address = None,
    allow_insecure: AllowInsecure = False,
    packed: Annotated[bool, typer.Option("--packed", hidden=True, help="Print the files as text.")] = False,
) -> None:
    """One self-contained HTML page of a sweep, and its plots as PNG and PDF.

    With --address http://HOST:8265 it is made on the cluster's head, of a sweep that was submitted to it, and written
    here: into reports/SWEEP, or --output.
    """
    from deyo.types import ConfigError
    from orchestrator.packed import pack, unpack

    if compare not in (None, "paper"):
        raise ConfigError(f"--compare {compare}: a report compares with 'paper' only; for sweeps: deyo-sweep table")
    formats = [f for f in plots.split(",") if f and f != "none"]
    if set(formats) - {"png", "pdf"}:
        raise ConfigError(f"--plots {plots}: png, pdf, both (png,pdf) or none")
    if address:
        name, there, spec = spec_there(sweep, settings, smoke)
        folder = _free(output or _default_folder("://", name))
        words = ["report", there, *(word for word in words_typed(context) if word != "--json"), "--packed"]
        text = answer_of(address, name, words, allow_insecure=allow_insecure, results=results, spec=spec)
        _tell(unpack(text, folder), as_json)
        return
    from orchestrator.report.build import write_report
    from orchestrator.tables.data import filtered
    from orchestrator.tables.load import load
    from orchestrator.tables.request import Request

    data, opened = load(sweep, results, settings, smoke=smoke)
    data = filtered(data, where or ())
    request = Request(layout=layout, ddof=ddof)
    with tempfile.TemporaryDirectory() as passing:
        folder = Path(passing) if packed else _free(output or _default_folder(results, data.sweep))
        written = write_report(data, opened, folder, request, paper=compare == "paper", formats=formats)
        if packed:
            typer.echo(pack(folder), nl=False)
        else:
            _tell([written.page, *written.pictures], as_json)


def _free(folder: Path) -> Path:
    """``folder``, into which can be written. Raises ``ConfigError``."""
    from deyo.types import ConfigError
    from orchestrator.folders import obstacle

    if problem := obstacle(folder):
        raise ConfigError(f"--output {folder}: {problem}")
    return folder


def _tell(files: Sequence[Path], as_json: bool) -> None:
    """What was written: the page and the pictures."""
    import json

    page = next(path for path in files if path.suffix == ".html")
    pictures = [path for path in files if path != page]
    if as_json:
        typer.echo(json.dumps({"page": str(page), "plots": [str(p) for p in pictures]}))
        return
    typer.echo(f"report: {page}")
    if pictures:
        typer.echo(f"plots:  {len(pictures)} files in {pictures[0].parent}")


def _default_folder(results: str, sweep: str) -> Path:
    """Beside the results where they are on this machine, else in the working folder."""
    root = Path() if "://" in results else Path(results)
    return root / "reports" / sweep
