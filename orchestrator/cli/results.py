"""``deyo-sweep results``: which sweeps there are, what they hold, and where their files lie."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import options

if TYPE_CHECKING:
    from orchestrator.store.tree import Tree


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("results", help="List the sweeps under a results root: runs, failures, where the files are.")(listing)


def listing(
    sweep: Annotated[
        str | None, typer.Argument(metavar="[SWEEP]", help="A sweep's name or its spec; without it, all of them.")
    ] = None,
    results: options.Results = options.DEFAULT_RESULTS,
    as_json: options.Json = False,
) -> None:
    """One line a sweep; for a single sweep also the paths that Parquet readers may be pointed at."""
    from orchestrator.results import open_results

    name = None if sweep is None else options.sweep_name(sweep, results)
    entries = [_entry(found, tree) for found, tree in open_results(results, name).trees()]
    if as_json:
        typer.echo(json.dumps(entries, indent=1))
        return
    width = max(len(entry["sweep"]) for entry in entries)
    for entry in entries:
        planned = "" if entry["planned"] is None else f" of {entry['planned']}"
        parts = [f"{entry['committed']}{planned} runs committed"]
        parts += [f"{entry[kind]} {kind}" for kind in ("failed", "running") if entry[kind]]
        typer.echo(f"{entry['sweep']:{width}s}  {', '.join(parts)}  {entry['path']}")
    if name is not None:
        for grain, path in entries[0]["tables"].items():
            typer.echo(f"  {grain:10s} {path}")


def _entry(name: str, tree: Tree) -> dict[str, Any]:
    from orchestrator import schema
    from orchestrator.store import plan_table, running
    from orchestrator.store.snapshot import take
    from orchestrator.store.tree import join
    from orchestrator.store.writer import read_failures
    from orchestrator.types import FailureClass

    plan = plan_table.read(tree)
    return {
        "sweep": name,
        "path": tree.root,
        "planned": None if plan is None else len(plan),
        "committed": take(tree).count(),
        "failed": sum(f.kind is not FailureClass.CANCELLED for f in read_failures(tree).values()),
        "running": len(running.read(tree)),
        "tables": {grain: join(tree.root, "tables", grain) for grain in (*schema.GRAINS, "aggregates")},
    }
