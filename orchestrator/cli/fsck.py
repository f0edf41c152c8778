"""``deyo-sweep fsck``: files of the result store that are not as they should be."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import options

if TYPE_CHECKING:
    from orchestrator.store.findings import Finding
    from orchestrator.store.tree import Tree


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("fsck", help="List stray, truncated, empty, superseded and damaged files of a sweep's results.")(fsck)


def fsck(
    sweep: Annotated[
        str | None, typer.Argument(metavar="[SWEEP]", help="A sweep's name or its spec; without it, all of them.")
    ] = None,
    results: options.Results = options.DEFAULT_RESULTS,
    clean: Annotated[
        bool, typer.Option("--clean", help="Delete what no result rests on: stray, left-over, superseded files.")
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Set damaged commits aside, so that `run` runs them again.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Exits with 1 if a file is damaged, truncated, empty or a stray; superseded and left-over ones are no fault."""
    from orchestrator.results import open_results
    from orchestrator.store.fsck import check
    from orchestrator.store.fsck import clean as delete
    from orchestrator.store.fsck import repair as mend

    name = None if sweep is None else options.sweep_name(sweep, results)
    listed, serious = [], False
    for found, tree in open_results(results, name).trees():
        findings = check(tree)
        serious |= any(f.serious for f in findings)
        listed += [{"sweep": found, **asdict(f)} for f in findings]
        if not as_json:
            _show(found, tree, findings)
        if repair:
            lost = mend(tree)
            typer.echo(f"{found}: repaired; {len(lost)} runs are to be run again {' '.join(lost)}".rstrip(), err=True)
        if clean:
            typer.echo(f"{found}: deleted {len(delete(tree))} files", err=True)
    if as_json:
        typer.echo(json.dumps(listed, indent=1))
    raise typer.Exit(1 if serious else 0)


def _show(sweep: str, tree: Tree, findings: list[Finding]) -> None:
    from orchestrator.store.snapshot import take

    if not findings:
        typer.echo(f"{sweep}: nothing amiss ({take(tree).count()} committed runs)")
    for finding in findings:
        typer.echo(f"{sweep}: {finding.kind:10s} {finding.path}: {finding.note}")
