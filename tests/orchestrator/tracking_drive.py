"""Drives a tracker and a real store through a small sweep, as the driver does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tracking_fakes import make_plan, planned, rows, run_row

from orchestrator.store import ParquetStore
from orchestrator.tracking import MlflowTracker, TrackingOptions
from orchestrator.tracking.options import with_driver
from orchestrator.tracking.remote import Remote
from orchestrator.types import PlannedRun

SPEC = {"name": "demo", "seeds": [0, 1], "mlflow": {"tracking_uri": None}}


def spec(number: int, **changes: Any) -> PlannedRun:
    run = planned(number, **changes)
    return PlannedRun(
        run_id=run.run_id,
        config=run.config,
        status=run.status,
        stamps={"config_id": f"c{number}", "weights_id": "w", "numerics_version": 1, "code_digest": "d"},
    )


def sweep_of(runs: int) -> list[PlannedRun]:
    """``runs`` runs: two methods, and so many seeds."""
    return [spec(n, seed=n // 2, method=("tent", "deyo")[n % 2], label=("Tent", "DeYO")[n % 2]) for n in range(runs)]


class Drive:
    """A store, a tracker, and the driver's moves on both."""

    def __init__(self, root: Path, uri: str, runs: Sequence[PlannedRun], **options: Any) -> None:
        self.root, self.runs = root, list(runs)
        self.store = ParquetStore(str(root), "demo")
        self.tracker = MlflowTracker(uri, "demo", root=str(root), options=TrackingOptions(**options))

    def begin(self) -> None:
        plan = make_plan(self.runs)
        self.store.write_spec("name: demo\n", SPEC)
        self.store.write_plan(plan)
        self.tracker.sweep_started("demo", plan, SPEC)

    def start(self, run: PlannedRun) -> int:
        attempt = self.store.next_attempt(run.run_id)
        self.store.begin(run, attempt)
        self.tracker.run_started(run, attempt)
        return attempt

    def stream(self, run: PlannedRun, attempt: int, steps: range) -> None:
        for batch in rows(run, attempt, steps, start=1.7e9 + 100 * attempt):
            self.store.append(run.run_id, attempt, "batches", batch)
            self.tracker.rows(run.run_id, attempt, "batches", batch)

    def finish(self, run: PlannedRun, attempt: int, steps: int = 12) -> None:
        row = run_row(run, attempt, steps)
        assert self.store.commit(run, attempt, row)
        self.tracker.run_finished(run, attempt, row)

    def whole(self, run: PlannedRun) -> None:
        attempt = self.start(run)
        self.stream(run, attempt, range(12))
        self.finish(run, attempt)

    def end(self, status: str = "finished") -> None:
        self.store.flush()
        self.tracker.sweep_finished(status)
        self.tracker.close()
        self.store.close()


def client(uri: str) -> Any:
    """MLflow's own client; a fresh SQLite file is waited for, not raced with."""
    Remote(uri)
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=with_driver(uri))


def all_runs(uri: str, experiment: str = "demo") -> list[Any]:
    """All active MLflow runs of the experiment."""
    found = client(uri)
    return list(found.search_runs([found.get_experiment_by_name(experiment).experiment_id], max_results=1000))


def by_key(uri: str) -> dict[str, Any]:
    """Active MLflow runs by ``deyo.key``; each key once."""
    runs = all_runs(uri)
    keys = [r.data.tags["deyo.key"] for r in runs]
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, runs))


def steps_of(uri: str, run: Any, key: str) -> list[int]:
    """The steps of all points of a metric; a doubled point shows twice."""
    return sorted(m.step for m in client(uri).get_metric_history(run.info.run_id, key))


def wait_for(condition: Callable[[], bool], seconds: float = 180.0) -> None:
    """Until ``condition`` holds; fails after ``seconds``."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)


def check_whole_sweep(uri: str, runs: Sequence[PlannedRun], steps: int = 12) -> None:
    """Every run is there once, FINISHED, with each point once, below one parent."""
    found = by_key(uri)
    assert {r.info.status for r in found.values()} == {"FINISHED"}
    parent = found.pop("demo")
    assert set(found) == {r.run_id for r in runs}
    for run in found.values():
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert steps_of(uri, run, "stream/running_accuracy") == list(range(steps))
        assert steps_of(uri, run, "accuracy") == [0]
