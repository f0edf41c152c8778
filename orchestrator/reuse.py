"""Runs that another sweep of the same results root has done: found by their identity, and taken over, not repeated.

A run's identity hashes all that decides its numbers, so its rows are the same whichever sweep asked for it. They are
copied with their provenance; the sweep that made them keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.types import CommitInfo, Plan, PlannedRun, RunStatus, Store

CHUNK = 256
"""Runs whose rows are copied at a time."""


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """A commit in another sweep."""

    sweep: str
    info: CommitInfo


def done_elsewhere(results: str, sweep: str) -> dict[str, Elsewhere]:
    """Committed runs of every sweep under ``results`` but ``sweep``, by run_id."""
    from orchestrator.results import sweeps
    from orchestrator.store.commits import INFO_COLUMNS, commit_info
    from orchestrator.store.snapshot import take
    from orchestrator.store.tree import join, open_tree

    found: dict[str, Elsewhere] = {}
    for name in sweeps(results):
        if name == sweep:
            continue
        for row in take(open_tree(join(results, name))).runs(INFO_COLUMNS).to_pylist():
            found.setdefault(row["run_id"], Elsewhere(sweep=name, info=commit_info(row)))
    return found


def take_over(plan: Plan, store: Store, results: str) -> int:
    """Copy into ``store`` the done runs of ``plan`` that it lacks, from the other sweeps under ``results``.

    Returns how many were copied. A run that was killed half-way is copied again by the next call.
    """
    committed = store.committed()
    wanted = {r.run_id: r for r in plan.runs if r.status is RunStatus.DONE and r.run_id not in committed}
    if not wanted:
        return 0
    copied = 0
    by_sweep: dict[str, list[PlannedRun]] = {}
    for run_id, place in done_elsewhere(results, plan.sweep).items():
        if run_id in wanted:
            by_sweep.setdefault(place.sweep, []).append(wanted[run_id])
    for sweep, runs in by_sweep.items():
        for chunk in _chunks(runs):
            copied += _copy(chunk, store, results, sweep)
    return copied


def _copy(runs: list[PlannedRun], store: Store, results: str, sweep: str) -> int:
    from orchestrator.results import open_results

    source = open_results(results, sweep)
    ids = [run.run_id for run in runs]
    rows = {row["run_id"]: row for row in source.runs(replaced=True).to_pylist() if row["run_id"] in set(ids)}
    grains = {
        "batches": _by_run(source.batches(ids, replaced=True)),
        "samples": _by_run(source.samples(ids, replaced=True)),
    }
    copied = 0
    for run in runs:
        attempt = store.next_attempt(run.run_id)
        store.begin(run, attempt)
        for grain, tables in grains.items():
            if run.run_id in tables:
                for batch in tables[run.run_id].combine_chunks().to_batches():
                    store.append(run.run_id, attempt, grain, batch)
        copied += store.commit(run, attempt, rows[run.run_id])
    return copied


def _by_run(table: Any) -> Mapping[str, Any]:
    """The rows of each run, in their order, without the columns that say whose they are."""
    import pyarrow.compute as pc

    own = [name for name in table.column_names if name not in ("run_id", "attempt")]
    return {
        run_id: table.filter(pc.equal(table["run_id"], run_id)).select(own)
        for run_id in pc.unique(table["run_id"]).to_pylist()
    }


def _chunks(runs: list[PlannedRun]) -> Iterator[list[PlannedRun]]:
    for start in range(0, len(runs), CHUNK):
        yield runs[start : start + CHUNK]
