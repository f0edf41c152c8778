"""The tracker that follows nothing (``mlflow: false`` in the spec)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from orchestrator.types import Failure, Plan, PlannedRun


class NullTracker:
    """Implements ``orchestrator.types.Tracker`` by doing nothing."""

    def sweep_started(self, sweep: str, plan: Plan, resolved_spec: Mapping[str, Any]) -> None:
        return

    def run_started(self, run: PlannedRun, attempt: int) -> None:
        return

    def rows(self, run_id: str, attempt: int, grain: str, batch: pa.RecordBatch) -> None:
        return

    def run_finished(self, run: PlannedRun, attempt: int, row: Mapping[str, Any]) -> None:
        return

    def run_failed(self, run: PlannedRun, attempt: int, failure: Failure) -> None:
        return

    def sweep_finished(self, status: str) -> None:
        return

    def degraded(self) -> str | None:
        return None

    def close(self) -> None:
        return
