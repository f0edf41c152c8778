"""``deyo-sweep table``: a sweep as mean±std tables, in the paper's layouts or any other."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from deyo.types import ConfigError
from orchestrator.cli.asked import answer_of, show, spec_there, words_typed
from orchestrator.cli.options import (
    DEFAULT_RESULTS,
    Address,
    AllowInsecure,
    Json,
    Results,
    Set,
    Smoke,
    SpecOrSweep,
    is_spec_file,
    writable,
)


def _list_layouts(asked: bool) -> None:
    if not asked:
        return
    from orchestrator.tables.layouts import LAYOUTS, layout

    for name in LAYOUTS:
        typer.echo(f"{name:24} {layout(name).help}")
    raise typer.Exit


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("table")(table)


def table(
    context: typer.Context,
    sweep: SpecOrSweep,
    results: Results = DEFAULT_RESULTS,
    settings: Set = [],  # noqa: B006
    smoke: Smoke = False,
    fmt: Annotated[str, typer.Option("--format", help="text, markdown, latex, csv, html or json.")] = "text",
    as_json: Json = False,
    layout: Annotated[
        str | None, typer.Option("--layout", help="A layout by name; by default the one that suits the sweep.")
    ] = None,
    layouts: Annotated[
        bool, typer.Option("--layouts", help="List the layouts and stop.", callback=_list_layouts, is_eager=True)
    ] = False,
    rows: Annotated[
        list[str] | None, typer.Option("--rows", metavar="AXIS", help="Axes down, comma-separated.")
    ] = None,
    cols: Annotated[
        list[str] | None, typer.Option("--cols", metavar="AXIS", help="Axes across, comma-separated.")
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option("--metric", help="Metrics, comma-separated (accuracy, worst, aurc, …).")
    ] = None,
    where: Annotated[
        list[str] | None, typer.Option("--where", metavar="AXIS=VALUE", help="Only these runs (repeatable).")
    ] = None,
    compare: Annotated[
        str | None, typer.Option("--compare", help="'paper', or another sweep to take paired differences to.")
    ] = None,
    versus: Annotated[
        str | None, typer.Option("--versus", metavar="METHOD", help="Paired differences of METHOD to the others.")
    ] = None,
    interval: Annotated[str, typer.Option("--interval", help="95 % intervals of differences: t or bootstrap.")] = "t",
    ddof: Annotated[int, typer.Option("--ddof", help="1: sample std; 0: population std.")] = 1,
    averages: Annotated[
        str, typer.Option("--averages", help="Averages over corruptions: auto, plain, weighted, both or none.")
    ] = "auto",
    seeds: Annotated[bool, typer.Option("--seeds", help="Show each seed's value and the median.")] = False,
    allow_mixed: Annotated[
        bool, typer.Option("--allow-mixed", help="Average over differing weights, data or precision all the same.")
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", help="Write to this file instead of the terminal.")] = None,
    width: Annotated[int | None, typer.Option("--width", help="Characters a line (text).")] = None,
    address: Address = None,
    allow_insecure: AllowInsecure = False,
) -> None:
    """Mean±std tables of a sweep over its seeds.

    With --address http://HOST:8265 the cluster's head is asked for those of a sweep that was submitted to it.
    """
    terminal = output is None and sys.stdout.isatty()
    columns = width or (shutil.get_terminal_size().columns if terminal else 100)
    if address:
        if compare and is_spec_file(compare):
            raise ConfigError(f"--compare {compare}: with --address, 'paper' or a sweep's name is expected")
        name, there, spec = spec_there(sweep, settings, smoke)
        words = ["table", there, *words_typed(context), *([] if width else ["--width", str(columns)])]
        text = answer_of(address, name, words, allow_insecure=allow_insecure, results=results, spec=spec)
        show(text, output)
        return
    from orchestrator.tables.differences import compared
    from orchestrator.tables.load import load
    from orchestrator.tables.render import render
    from orchestrator.tables.request import Request

    request = Request(
        layout=layout,
        rows=_split(rows),
        cols=_split(cols),
        metrics=_split(metric),
        where=where or (),
        ddof=ddof,
        averages=averages,
        seeds=seeds,
        allow_mixed=allow_mixed,
    )
    data, _ = load(sweep, results, settings, smoke=smoke)
    other = load(compare, results)[0] if compare not in (None, "paper") else None
    tables = compared(data, request, paper=compare == "paper", other=other, versus=versus, interval=interval)
    text = render(tables, "json" if as_json else fmt, width=columns, color=terminal)
    if output is None:
        typer.echo(text)
    else:
        writable(output).write_text(text + "\n", encoding="utf-8")


def _split(values: list[str] | None) -> list[str]:
    return [part.strip() for value in values or () for part in value.split(",") if part.strip()]
