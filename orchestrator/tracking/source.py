"""What the publisher reads from the result store: committed runs, their rows, aggregates, failures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from deyo.types import ConfigError
from orchestrator import schema
from orchestrator.tracking.naming import axes, group_key
from orchestrator.types import Failure, PlannedRun

if TYPE_CHECKING:
    from orchestrator.tables.data import SweepData

_TABLE_FORMATS = {"markdown": "md", "csv": "csv", "html": "html", "json": "json", "latex": "tex"}
_READ_RUNS = 200
_READ_ROWS = 500_000

_AXES_COLUMNS = [
    "run_id",
    "attempt",
    "benchmark",
    "benchmark_options",
    "corruption",
    "severity",
    "corruptions",
    "scenario",
    "scenario_options",
    "model",
    "method",
    "label",
    "settings",
    "batch_size",
    "protocol",
    "precision",
    "max_images",
]


class Source(Protocol):
    """The committed state of a sweep; ``refresh`` takes a new look, all else is of the last look."""

    def refresh(self) -> None: ...

    def committed(self) -> Mapping[str, int]:
        """run_id -> committed attempt."""

    def newest(self) -> str | None:
        """When the last of the committed runs finished (ISO 8601)."""

    def groups(self) -> Mapping[str, Sequence[str]]:
        """Group key -> its committed runs."""

    def row(self, run_id: str) -> Mapping[str, Any] | None:
        """A committed run's ``runs`` row."""

    def prefetch(self, run_ids: Sequence[str]) -> None:
        """The runs whose ``batches`` are about to be asked for, so that they are read together."""

    def batches(self, run_id: str) -> Iterator[pa.RecordBatch]:
        """A committed run's ``batches`` rows in order."""

    def aggregates(self) -> list[dict[str, Any]]: ...

    def tables(self) -> Mapping[str, str]:
        """The sweep's main table by file name (``table.md``, ``table.csv``, ``table.html``, ...)."""

    def report(self, folder: Path) -> None:
        """Write the sweep's page ``report.html`` and its plots ``plots/*.png`` into ``folder``."""

    def failures(self) -> Mapping[str, Failure]:
        """The last failure of each run without a commit."""

    def planned(self) -> Sequence[PlannedRun]:
        """The sweep's plan, empty where the store has none."""


class StoreSource:
    """A sweep's folder under a results root, read through ``orchestrator.open_results``.

    Rows of ``batches`` are read for a few hundred runs at a time, as ``prefetch`` tells them, so that publishing
    a whole sweep does not scan the files once a run.
    """

    def __init__(self, root: str, sweep: str) -> None:
        self._root, self._sweep = root, sweep
        self._results: Any = None
        self._runs: pa.Table | None = None
        self._index: dict[str, int] = {}
        self._groups: dict[str, list[str]] | None = None
        self._cached: dict[str, pa.Table] = {}
        self._wanted: list[str] = []

    def refresh(self) -> None:
        from orchestrator import open_results

        try:
            self._results = open_results(self._root, self._sweep)
            self._runs = self._results.runs()
        except ConfigError:  # nothing of this sweep has been written yet
            self._results, self._runs = None, schema.RUNS.empty_table()
        self._index = {run_id: i for i, run_id in enumerate(self._runs["run_id"].to_pylist())}
        self._groups = None
        self._cached = {}

    def exists(self) -> bool:
        """Whether the store has this sweep."""
        return self._results is not None

    def committed(self) -> Mapping[str, int]:
        runs = self._table()
        return dict(zip(runs["run_id"].to_pylist(), runs["attempt"].to_pylist()))

    def newest(self) -> str | None:
        return pc.max(self._table()["finished_at"]).as_py()

    def groups(self) -> Mapping[str, Sequence[str]]:
        if self._groups is None:
            found: dict[str, list[str]] = defaultdict(list)
            for row in self._table().select(_AXES_COLUMNS).to_pylist():
                found[group_key(axes(row))].append(row["run_id"])
            self._groups = dict(found)
        return self._groups

    def row(self, run_id: str) -> Mapping[str, Any] | None:
        table = self._table()
        at = self._index.get(run_id)
        return None if at is None else table.slice(at, 1).to_pylist()[0]

    def prefetch(self, run_ids: Sequence[str]) -> None:
        self._wanted = list(run_ids)

    def batches(self, run_id: str) -> Iterator[pa.RecordBatch]:
        if run_id not in self._cached:
            self._cached = self._read(self._next_wanted(run_id))
        table = self._cached.get(run_id)
        return iter(table.to_batches() if table is not None else ())

    def aggregates(self) -> list[dict[str, Any]]:
        self._table()
        return self._results.aggregates().to_pylist() if self._results is not None else []

    def tables(self) -> Mapping[str, str]:
        from orchestrator.tables.render import render
        from orchestrator.tables.request import make_tables

        data = self._data()
        if not data.entries:
            return {}
        tables = make_tables(data)
        return {f"table.{ending}": render(tables, name) for name, ending in _TABLE_FORMATS.items()}

    def report(self, folder: Path) -> None:
        from orchestrator.report.build import write_report

        data = self._data()
        if data.entries:
            write_report(data, self._results, folder, formats=("png",))

    def _data(self) -> SweepData:
        from orchestrator.tables.data import from_runs

        planned = self.planned() or None
        return from_runs(self._table(), sweep=self._sweep, planned=planned, failures=self.failures())

    def failures(self) -> Mapping[str, Failure]:
        self._table()
        return self._results.failures() if self._results is not None else {}

    def planned(self) -> Sequence[PlannedRun]:
        self._table()
        plan = self._results.plan() if self._results is not None else None
        return plan.runs if plan is not None else ()

    def _table(self) -> pa.Table:
        if self._runs is None:
            self.refresh()
        assert self._runs is not None
        return self._runs

    def _next_wanted(self, run_id: str) -> list[str]:
        """This run and those that follow it in the prefetch, within a bound of rows."""
        at = self._wanted.index(run_id) if run_id in self._wanted else len(self._wanted)
        chosen, rows = [run_id], 0
        for other in self._wanted[at : at + _READ_RUNS]:
            rows += self._steps(other)
            if rows > _READ_ROWS:
                break
            chosen.append(other)
        return list(dict.fromkeys(chosen))

    def _steps(self, run_id: str) -> int:
        """How many batches a run has, about; of one that came after the last look, many."""
        table, at = self._table(), self._index.get(run_id)
        if at is None:
            return _READ_ROWS // _READ_RUNS
        images, size = table["images"][at].as_py() or 0, table["batch_size"][at].as_py() or 1
        return images // size + 1

    def _read(self, run_ids: Sequence[str]) -> dict[str, pa.Table]:
        rows = self._results.batches(run_ids=list(run_ids))
        rows = rows.take(pc.sort_indices(rows, sort_keys=[("run_id", "ascending"), ("step", "ascending")]))
        if not rows.num_rows:
            return {}
        counts = pc.value_counts(rows["run_id"].combine_chunks()).to_pylist()
        found, start = {}, 0
        for item in counts:  # sorted by run_id, so each run is one slice
            found[item["values"]] = rows.slice(start, item["counts"])
            start += item["counts"]
        return found
