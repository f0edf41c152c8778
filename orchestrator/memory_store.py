"""A result store in memory: for simulations, notebooks and tests. Nothing outlives the process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from orchestrator.provenance import now
from orchestrator.types import Checkpoint, CommitInfo, Failure, Plan, PlannedRun


@dataclass
class MemoryStore:
    """Keeps commits, failures, rows and logs in dictionaries; ``keep_rows`` off forgets the rows."""

    keep_rows: bool = True
    root: str = "memory"
    commits: dict[str, tuple[int, Mapping[str, Any]]] = field(default_factory=dict)
    failed: dict[str, Failure] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    rows: dict[tuple[str, int, str], list[pa.RecordBatch]] = field(default_factory=lambda: defaultdict(list))
    logs: dict[tuple[str, int], str] = field(default_factory=lambda: defaultdict(str))
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    superseded: list[tuple[str, int]] = field(default_factory=list)
    _earlier: dict[str, CommitInfo] = field(default_factory=dict)

    def write_spec(self, text: str, resolved: Mapping[str, Any]) -> None:
        return

    def write_plan(self, plan: Plan) -> None:
        return

    def committed(self) -> Mapping[str, CommitInfo]:
        return dict(self._earlier)

    def failures(self) -> Mapping[str, Failure]:
        return {k: f for k, f in self.failed.items() if k not in self.commits}

    def next_attempt(self, run_id: str) -> int:
        return self.attempts.get(run_id, 0) + 1

    def begin(self, run: PlannedRun, attempt: int) -> None:
        self.attempts[run.run_id] = attempt

    def append(self, run_id: str, attempt: int, grain: str, batch: pa.RecordBatch) -> None:
        if self.keep_rows:
            self.rows[run_id, attempt, grain].append(batch)

    def append_log(self, run_id: str, attempt: int, text: str) -> None:
        self.logs[run_id, attempt] += text

    def save_checkpoint(self, run_id: str, attempt: int, checkpoint: Checkpoint) -> None:
        self.checkpoints[run_id] = checkpoint

    def load_checkpoint(self, run_id: str) -> Checkpoint | None:
        return self.checkpoints.get(run_id)

    def commit(self, run: PlannedRun, attempt: int, row: Mapping[str, Any]) -> bool:
        if run.run_id in self.commits:
            self.superseded.append((run.run_id, attempt))
            return False
        self.commits[run.run_id] = (attempt, row if self.keep_rows else {})
        self._earlier[run.run_id] = CommitInfo(
            run_id=run.run_id, attempt=attempt, finished_at=now() if self.keep_rows else "", stamps=run.stamps
        )
        self.checkpoints.pop(run.run_id, None)
        return True

    def fail(self, run_id: str, attempt: int, failure: Failure) -> None:
        self.failed[run_id] = failure

    def log_path(self, run_id: str, attempt: int) -> str:
        return f"memory:{run_id}/{attempt}"

    def flush(self) -> None:
        return

    def close(self) -> None:
        return
