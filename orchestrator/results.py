"""Reading results: ``orchestrator.open_results("results", "my-sweep")`` for pyarrow, pandas and DuckDB.

Every call looks at the sweep anew and gives committed runs, each once, whatever the driver does meanwhile. With
``partial=True`` rows of runs in flight come too, and a column ``partial`` tells which they are. Runs that a later
run of the same config (with newer code or weights) replaced are left out, unless asked for by ``replaced=True``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from deyo.types import ConfigError
from orchestrator import schema
from orchestrator.aggregate import COLUMNS, aggregate, current
from orchestrator.store import layout, logs, plan_table, running
from orchestrator.store.snapshot import Snapshot, take
from orchestrator.store.tree import Tree, join, open_tree
from orchestrator.store.writer import read_failures
from orchestrator.types import Failure, Plan

if TYPE_CHECKING:
    import duckdb
    import pandas as pd

GRAINS = (*schema.GRAINS, "aggregates")
_CURRENCY = ("run_id", "config_id", "finished_at")


def open_results(root: str, sweep: str | None = None) -> Results:
    """The results of ``sweep`` under a results root, or of all sweeps there.

    ``root`` may also be the folder of one sweep. Raises ``ConfigError`` if there are no such results.
    """
    root = str(root)
    if sweep is not None:
        tree = open_tree(join(root, layout.check_sweep(sweep)))
        if not _is_sweep(tree):
            there = ", ".join(sweeps(root)) or "none"
            raise ConfigError(f"no sweep {sweep!r} under {root}; there: {there}. Another root: --results PATH")
        return Results({sweep: tree})
    tree = open_tree(root)
    if _is_sweep(tree):
        return Results({tree.root.partition("?")[0].rstrip("/").rpartition("/")[2]: tree})
    found = {name: open_tree(join(root, name)) for name in sweeps(root)}
    if not found:
        raise ConfigError(
            f"no results under {root}: `deyo-sweep run SPEC` puts them there; another root: --results PATH"
        )
    return Results(found)


def sweeps(root: str) -> list[str]:
    """Names of the sweeps under a results root."""
    return [name for name in open_tree(root).children("") if _is_sweep(open_tree(join(root, name)))]


def _is_sweep(tree: Tree) -> bool:
    if any(map(tree.exists, (layout.PLAN, layout.SPEC_TEXT))):  # cheaper, on an object store, than to list
        return True
    return bool({"commits", "attempts", "tables"} & set(tree.children("")))


class Results:
    """Committed results of one sweep or several. Use ``open_results``."""

    def __init__(self, trees: dict[str, Tree]) -> None:
        self._trees = trees

    @property
    def sweeps(self) -> tuple[str, ...]:
        return tuple(self._trees)

    def runs(self, *, partial: bool = False, replaced: bool = False, columns: Sequence[str] | None = None) -> pa.Table:
        """One row a run, columns as in ``orchestrator.schema.RUNS``."""
        return self._table("runs", None, partial, replaced, columns)

    def batches(
        self,
        run_ids: Collection[str] | None = None,
        *,
        partial: bool = False,
        replaced: bool = False,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """One row a batch, of all runs or of ``run_ids``; columns as in ``orchestrator.schema.BATCHES``."""
        return self._table("batches", run_ids, partial, replaced, columns)

    def samples(
        self,
        run_ids: Collection[str] | None = None,
        *,
        partial: bool = False,
        replaced: bool = False,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """One row an image, of runs whose spec asked for them; columns as in ``orchestrator.schema.SAMPLES``."""
        return self._table("samples", run_ids, partial, replaced, columns)

    def aggregates(self) -> pa.Table:
        """Mean, std and seeds of each condition and metric (``orchestrator.schema.AGGREGATES``), computed now."""
        tables = [aggregate(take(t).runs(COLUMNS), plan_table.read(t)) for t in self._trees.values()]
        return pa.concat_tables(tables)

    def scan(
        self,
        grain: str,
        run_ids: Collection[str] | None = None,
        *,
        partial: bool = False,
        replaced: bool = False,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a grain, bounded pieces at a time; a run's rows come in order and in one stretch."""
        for tree in self._trees.values():
            snapshot = take(tree)
            hidden = frozenset() if replaced else replaced_runs(snapshot)
            wanted = None if run_ids is None else frozenset(run_ids)
            for batch in _select(snapshot.batches(grain, _with_id(columns)), wanted, hidden):
                yield _finish(batch, columns, False if partial else None)
            if partial:
                for batch in _select(_partial(tree, snapshot, grain), wanted, frozenset()):
                    yield _finish(batch, columns, True)

    def pandas(self, grain: str = "runs", **options: Any) -> pd.DataFrame:
        """A grain as a data frame: "runs", "batches", "samples" or "aggregates"; options as of its method."""
        return getattr(self, _check_grain(grain))(**options).to_pandas()

    def duckdb(self, *, partial: bool = False) -> duckdb.DuckDBPyConnection:
        """A DuckDB connection with the views ``runs``, ``batches``, ``samples`` and ``aggregates``.

        It can read nothing else and write no file (``COPY``, ``ATTACH`` and settings are refused).
        """
        from orchestrator.query import connect

        return connect(self, partial=partial)

    def plan(self) -> Plan | None:
        """The plan that the sweep last ran with; None if none was kept."""
        name, tree = self._single()
        table = plan_table.read(tree)
        return None if table is None else plan_table.to_plan(table, name)

    def failures(self) -> dict[str, Failure]:
        """The last failure of each run without a commit."""
        return {run_id: f for tree in self._trees.values() for run_id, f in read_failures(tree).items()}

    def attempts(self, run_id: str) -> list[logs.AttemptInfo]:
        """All attempts at a run, oldest first."""
        layout.check_run_id(run_id)
        for tree in self._trees.values():
            if tree.children(layout.attempt_folder(run_id)):
                table = take(tree).runs(("run_id", "attempt"))
                committed = table.filter(pc.equal(table["run_id"], run_id))["attempt"].to_pylist()
                return logs.attempts(tree, run_id, committed[0] if committed else None)
        return []

    def log(self, run_id: str, attempt: int) -> str:
        """What an attempt printed, also one that was killed."""
        layout.check_run_id(run_id)
        return "".join(logs.read_log(tree, run_id, attempt) for tree in self._trees.values())

    def trees(self) -> Iterator[tuple[str, Tree]]:
        """Name and files of each sweep; ``Tree.root`` is its folder."""
        yield from self._trees.items()

    def snapshots(self) -> Iterator[tuple[Tree, Snapshot]]:
        """Each sweep's files and committed rows as they are now."""
        for tree in self._trees.values():
            yield tree, take(tree)

    def _single(self) -> tuple[str, Tree]:
        if len(self._trees) != 1:
            raise ConfigError(f"name one sweep of: {', '.join(self._trees)}")
        return next(iter(self._trees.items()))

    def _table(
        self,
        grain: str,
        run_ids: Collection[str] | None,
        partial: bool,
        replaced: bool,
        columns: Sequence[str] | None,
    ) -> pa.Table:
        target = grain_schema(grain, columns, partial)
        batches = self.scan(grain, run_ids, partial=partial, replaced=replaced, columns=columns)
        return pa.Table.from_batches(batches, target)


def grain_schema(grain: str, columns: Sequence[str] | None, partial: bool) -> pa.Schema:
    """The schema of a grain's ``columns``, with ``partial`` at the end if it is asked for.

    Raises:
        ConfigError: a column that the grain does not have.
    """
    whole = schema.GRAINS[grain]
    unknown = [name for name in columns or () if name not in whole.names]
    if unknown:
        raise ConfigError(f"{grain} has no column {unknown[0]!r}; it has: {', '.join(whole.names)}")
    chosen = whole if columns is None else pa.schema([whole.field(name) for name in columns])
    return chosen.append(pa.field("partial", pa.bool_())) if partial else chosen


def replaced_runs(snapshot: Snapshot) -> frozenset[str]:
    """Committed runs that a later run of the same config replaced."""
    table = snapshot.runs(_CURRENCY)
    return frozenset(table["run_id"].to_pylist()) - frozenset(current(table)["run_id"].to_pylist())


def partial_rows(tree: Tree, snapshot: Snapshot, grain: str) -> pa.Table:
    """Rows so far of attempts in flight, whose runs have no commit."""
    return pa.Table.from_batches(_partial(tree, snapshot, grain), schema.GRAINS[grain])


def _partial(tree: Tree, snapshot: Snapshot, grain: str) -> Iterator[pa.RecordBatch]:
    committed = snapshot.covered["runs"] | {marker.run_id for marker in snapshot.uncovered}
    for entry in running.read(tree):
        if entry.run_id in committed:
            continue
        if grain == "runs":
            row = running.runs_row(tree, entry)
            yield from pa.Table.from_pylist([row], schema=schema.RUNS).to_batches()
        else:
            yield from running.rows(tree, entry, grain)


def _select(
    batches: Iterator[pa.RecordBatch], wanted: frozenset[str] | None, hidden: frozenset[str]
) -> Iterator[pa.RecordBatch]:
    keep = None if wanted is None else pa.array(sorted(wanted - hidden), pa.string())
    drop = pa.array(sorted(hidden), pa.string())
    for batch in batches:
        if keep is not None:
            batch = batch.filter(pc.is_in(batch["run_id"], keep))
        elif hidden:
            batch = batch.filter(pc.invert(pc.is_in(batch["run_id"], drop)))
        if batch.num_rows:
            yield batch


def _with_id(columns: Sequence[str] | None) -> list[str] | None:
    return None if columns is None else list(dict.fromkeys([*columns, "run_id"]))


def _finish(batch: pa.RecordBatch, columns: Sequence[str] | None, partial: bool | None) -> pa.RecordBatch:
    if columns is not None:
        batch = batch.select(list(columns))
    if partial is None:
        return batch
    mark = pa.repeat(partial, batch.num_rows)
    fields = [*batch.schema, pa.field("partial", pa.bool_())]
    return pa.RecordBatch.from_arrays([*batch.columns, mark], schema=pa.schema(fields))


def _check_grain(grain: str) -> str:
    if grain not in GRAINS:
        raise ConfigError(f"grain {grain!r}: expected one of {', '.join(GRAINS)}")
    return grain
