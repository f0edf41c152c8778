"""The store of one sweep as its driver sees it. See ``layout`` for the files, ``snapshot`` for how they are read."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.aggregate import COLUMNS, aggregate
from orchestrator.store import checkpoints, commits, layout, logs, plan_table, running
from orchestrator.store.attempt import Attempt
from orchestrator.store.compactor import compact
from orchestrator.store.errors import StoreError
from orchestrator.store.local_tree import LocalTree
from orchestrator.store.snapshot import take
from orchestrator.store.tree import Tree, join, open_tree
from orchestrator.types import Checkpoint, CommitInfo, Failure, Plan, PlannedRun

READABLE_SECONDS = 10.0
"""Rows wait no longer than this in memory while messages arrive, whether or not the driver calls ``flush``."""

WAITING_BYTES = 32 << 20
"""Rows in memory over all attempts in flight, however many, before they are written."""

COMPACT_RUNS = 256
COMPACT_SECONDS = {True: 60.0, False: 900.0}
"""Age at which commits are compacted though they are few; by ``Tree.rewritable`` (else each makes a new file)."""

SHARE = 20
"""Compaction and aggregation take at most about one part in this many of the driver's time."""


class ParquetStore:
    """Implements ``orchestrator.types.Store`` on ``<root>/<sweep>``: a path, ``s3://…`` or ``gs://…``.

    One object belongs to one thread; readers (``orchestrator.open_results``) run beside it in other processes.
    Every method may raise ``StoreError``; ``StoreFullError`` if the disk is full. What was committed stays whole.
    """

    def __init__(self, root: str, sweep: str, *, tree: Tree | None = None) -> None:
        self.sweep = layout.check_sweep(sweep)
        self.tree = tree or open_tree(join(str(root), self.sweep))
        self.root = self.tree.root
        self._open: dict[tuple[str, int], Attempt] = {}
        self._logs: dict[tuple[str, int], tuple[int, bytearray]] = {}
        self._indexed = False
        self._waiting = 0
        self._flushed = time.monotonic()
        self._compaction = _Pace(COMPACT_SECONDS[self.tree.rewritable])
        self._aggregation = _Pace(5.0)
        self._uncompacted = COMPACT_RUNS  # what an earlier driver left is compacted at the first chance
        self._aggregates_due = False
        if isinstance(self.tree, LocalTree):
            self.tree.remove_dead_temporaries()

    def write_spec(self, text: str, resolved: Mapping[str, Any]) -> None:
        self.tree.replace(layout.SPEC_TEXT, text.encode())
        self.tree.replace(layout.SPEC_JSON, json.dumps(dict(resolved), indent=1, sort_keys=True).encode())

    def write_plan(self, plan: Plan) -> None:
        self.tree.replace(layout.PLAN, plan_table.encode(plan))
        self._aggregates_due = True

    def committed(self) -> Mapping[str, CommitInfo]:
        return Committed(take(self.tree).runs(commits.INFO_COLUMNS))

    def failures(self) -> Mapping[str, Failure]:
        return read_failures(self.tree)

    def next_attempt(self, run_id: str) -> int:
        return max(logs.attempt_numbers(self.tree, run_id), default=0) + 1

    def begin(self, run: PlannedRun, attempt: int) -> None:
        started_at = commits.utc_now()
        content = {"run_id": run.run_id, "attempt": attempt, "started_at": started_at, "label": run.config.label}
        path = layout.attempt_file(run.run_id, attempt, "begin.json")
        if self.tree.exists(path) or (run.run_id, attempt) in self._open:
            raise StoreError(f"attempt {attempt} of run {run.run_id} was begun before: ask next_attempt for a new one")
        self.tree.replace(path, json.dumps(content).encode(), durable=False)
        self._open[run.run_id, attempt] = Attempt(self.tree, run, attempt, started_at)
        self._indexed = False

    def append(self, run_id: str, attempt: int, grain: str, batch: pa.RecordBatch) -> None:
        self._waiting += self._attempt(run_id, attempt).append(grain, batch)
        self._tick()

    def append_log(self, run_id: str, attempt: int, text: str) -> None:
        """Locally each text is in the file when this returns; on an object store at the next flush."""
        if (run_id, attempt) not in self._logs:
            size = self.tree.stream_size(layout.attempt_file(run_id, attempt, "log"))
            self._logs[run_id, attempt] = (max(size, 0), bytearray())
        self._logs[run_id, attempt][1].extend(text.encode(errors="replace"))
        if self.tree.rewritable:
            self._spill_log(run_id, attempt)
        self._tick()

    def save_checkpoint(self, run_id: str, attempt: int, checkpoint: Checkpoint) -> None:
        self._attempt(run_id, attempt)
        checkpoints.save(self.tree, attempt, checkpoint)

    def load_checkpoint(self, run_id: str) -> Checkpoint | None:
        return checkpoints.load(self.tree, run_id)

    def commit(self, run: PlannedRun, attempt: int, row: Mapping[str, Any]) -> bool:
        opened = self._attempt(run.run_id, attempt)
        whole = commits.runs_row(run, attempt, row, self.sweep, opened.started_at)
        streams = opened.finish(whole["images"])
        marker = commits.Marker(run_id=run.run_id, attempt=attempt, row=whole, streams=streams)
        first = commits.publish(self.tree, marker) or self._replace_damaged(marker)
        if not first:
            path = layout.attempt_file(run.run_id, attempt, "superseded.json")
            self.tree.replace(path, commits.encode(marker))
        self._end(run.run_id, attempt)
        checkpoints.drop(self.tree, run.run_id)
        self._uncompacted += first
        self._aggregates_due |= first
        return first

    def fail(self, run_id: str, attempt: int, failure: Failure) -> None:
        opened = self._open.get((run_id, attempt))
        if opened:
            opened.close(durable=False)
        data = logs.encode_failure(run_id, attempt, failure)
        self.tree.replace(layout.attempt_file(run_id, attempt, "failed.json"), data)
        self.tree.replace(layout.failure(run_id), data)
        self._end(run_id, attempt)

    def log_path(self, run_id: str, attempt: int) -> str:
        """Where ``append_log`` of an attempt goes, to be shown with a failure."""
        return join(self.root, layout.attempt_file(run_id, attempt, "log"))

    def flush(self) -> None:
        self._publish_rows()
        if self._uncompacted >= COMPACT_RUNS or (self._uncompacted and self._compaction.due()):
            with self._compaction:
                self._uncompacted = compact(self.tree)[1]
        if self._aggregates_due and self._aggregation.due():
            with self._aggregation:
                self._refresh_aggregates()

    def close(self) -> None:
        """Write and compact everything. Attempts still open stay readable as partial rows."""
        self._publish_rows()
        while compact(self.tree)[0]:
            pass
        self._uncompacted = 0
        if self._aggregates_due or not self.tree.exists(layout.AGGREGATES):
            self._refresh_aggregates()
        self._open.clear()

    def _replace_damaged(self, marker: commits.Marker) -> bool:
        """A commit whose marker or rows were damaged afterwards gives way: it does not count any more."""
        if marker.run_id not in take(self.tree).damaged:
            return False
        commits.set_aside(self.tree, marker.run_id)
        return commits.publish(self.tree, marker)

    def _attempt(self, run_id: str, attempt: int) -> Attempt:
        try:
            return self._open[run_id, attempt]
        except KeyError:
            raise StoreError(f"attempt {attempt} of run {run_id} is not open: begin it first") from None

    def _end(self, run_id: str, attempt: int) -> None:
        if (run_id, attempt) in self._logs:
            self._spill_log(run_id, attempt)
            del self._logs[run_id, attempt]
        self._open.pop((run_id, attempt), None)
        self._indexed = False

    def _tick(self) -> None:
        if self._waiting > WAITING_BYTES or time.monotonic() - self._flushed > READABLE_SECONDS:
            self._publish_rows()

    def _publish_rows(self) -> None:
        """Rows and logs to their files, and the index by which readers find them."""
        for attempt in self._open.values():
            before = attempt.streams()
            attempt.spill(durable=False)
            self._indexed &= attempt.streams() == before
        for key in list(self._logs):
            self._spill_log(*key)
            if key not in self._open:
                del self._logs[key]  # a last word after the attempt's end
        if not self._indexed:
            self.tree.replace(layout.RUNNING, running.encode(self._open.values(), self.sweep), durable=False)
            self._indexed = True
        self._flushed = time.monotonic()
        self._waiting = 0

    def _spill_log(self, run_id: str, attempt: int) -> None:
        written, waiting = self._logs[run_id, attempt]
        if waiting:
            self.tree.append(layout.attempt_file(run_id, attempt, "log"), written, bytes(waiting))
            self._logs[run_id, attempt] = (written + len(waiting), bytearray())

    def _refresh_aggregates(self) -> None:
        table = aggregate(take(self.tree).runs(COLUMNS), plan_table.read(self.tree))
        sink = io.BytesIO()
        pq.write_table(table, sink, compression="zstd")
        self.tree.replace(layout.AGGREGATES, sink.getvalue())
        self._aggregates_due = False


class Committed(Mapping[str, CommitInfo]):
    """``CommitInfo`` by run, made when asked for: a large sweep costs its Arrow columns, not objects."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table.combine_chunks()
        self._index = {run_id: i for i, run_id in enumerate(table["run_id"].to_pylist())}

    def __getitem__(self, run_id: str) -> CommitInfo:
        position = self._index[run_id]
        return commits.commit_info(self._table.slice(position, 1).to_pylist()[0])

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self._index)

    def values(self) -> Any:
        return [commits.commit_info(row) for batch in self._table.to_batches(1024) for row in batch.to_pylist()]


class _Pace:
    """Says when periodic work is due: not sooner than ``period`` after the last, nor if it would take too much."""

    def __init__(self, period: float) -> None:
        self._period = period
        self._ended = self._began = time.monotonic()

    def due(self) -> bool:
        return time.monotonic() - self._ended >= max(self._period, SHARE * (self._ended - self._began))

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._ended = time.monotonic()


def read_failures(tree: Tree) -> dict[str, Failure]:
    """The last failure of each run without a commit."""
    committed = set(commits.committed_ids(tree))
    found = {}
    for path in tree.names("failures"):
        run_id = layout.marker_run_id(path)
        if run_id and run_id not in committed and path == layout.failure(run_id):
            failure = logs.decode_failure(tree.read(path))
            found |= {run_id: failure} if failure else {}
    return found
