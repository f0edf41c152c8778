"""Runs, rows and a store in memory for the tests of tracking."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from orchestrator import schema
from orchestrator.tracking import naming
from orchestrator.tracking.curves import Point
from orchestrator.tracking.publisher import Publisher
from orchestrator.tracking.remote import GoneError, RefusedError, RemoteRun
from orchestrator.types import Failure, Plan, PlannedRun, RunConfig, RunStatus

T0 = 1_700_000_000.0


def planned(number: int = 0, *, seed: int | None = None, **changes: Any) -> PlannedRun:
    """Run ``number`` of a small sweep: its seed is the number unless given."""
    config = RunConfig(
        benchmark="digits-c",
        scenario="mild",
        model="small-resnet-bn",
        method="deyo",
        label="DeYO",
        settings={"plpd_threshold": 0.2, "lr": 0.00025},
        seed=number if seed is None else seed,
        batch_size=64,
        corruption="gaussian_noise",
        severity=5,
    )
    return PlannedRun(run_id=f"{number:016x}", config=replace(config, **changes), status=RunStatus.NEW, reason="new")


def make_plan(runs: Sequence[PlannedRun], sweep: str = "demo") -> Plan:
    return Plan(sweep=sweep, runs=tuple(runs))


def rows(
    run: PlannedRun, attempt: int, steps: range, *, start: float = T0, block: int = 4, bonus: int = 0
) -> list[pa.RecordBatch]:
    """Rows of ``batches``, ``block`` steps a record batch; ``bonus`` makes an attempt's numbers differ."""
    found = []
    for first in range(steps.start, steps.stop, block):
        inside = range(first, min(first + block, steps.stop))
        found.append(
            pa.RecordBatch.from_pylist(
                [
                    {
                        "run_id": run.run_id,
                        "attempt": attempt,
                        "step": step,
                        "images": 64,
                        "correct": 30 + (step * 7 + run.config.seed) % 20 + bonus,
                        "mean_entropy": 1.0 / (step + 1),
                        "mean_plpd": 0.3,
                        "selected_entropy": 40,
                        "selected": 32,
                        "forwards": 128,
                        "backwards": 32,
                        "skipped": False,
                        "reset": False,
                        "recorded_at": start + (first // block + 1) * 0.5,
                    }
                    for step in inside
                ],
                schema=schema.BATCHES,
            )
        )
    return found


def run_row(run: PlannedRun, attempt: int, steps: int, *, bonus: int = 0, finished: float = T0) -> dict[str, Any]:
    """The ``runs`` row that ``rows(run, attempt, range(steps))`` adds up to."""
    correct = sum(30 + (step * 7 + run.config.seed) % 20 + bonus for step in range(steps))
    return {
        **naming.axes(run.config),
        "run_id": run.run_id,
        "attempt": attempt,
        "images": 64 * steps,
        "accuracy": correct / (64 * steps),
        "group_accuracies": [],
        "mean_entropy": 0.5,
        "collapsed": False,
        "nan_steps": 0,
        "seconds": 2.0,
        "images_per_second": 32.0 * steps,
        "started_at": _iso(finished - 5),
        "finished_at": _iso(finished),
        "code_version": "abc123",
        "code_dirty": False,
        "weights_sha256": "w" * 64,
        "data_fingerprint": "f" * 64,
        "device_name": "cpu",
        "host": "localhost",
    }


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(seconds))


class FakeSource:
    """A store in memory: ``commit`` puts a run in, the publisher reads it."""

    def __init__(self) -> None:
        self.rows_of: dict[str, dict[str, Any]] = {}
        self.batches_of: dict[str, list[pa.RecordBatch]] = {}
        self.failed: dict[str, Failure] = {}
        self.plan: list[PlannedRun] = []

    def commit(self, run: PlannedRun, attempt: int, steps: int = 12, **changes: Any) -> dict[str, Any]:
        row = run_row(run, attempt, steps, **changes)
        bonus = changes.get("bonus", 0)
        self.rows_of[run.run_id] = row
        self.batches_of[run.run_id] = rows(run, attempt, range(steps), start=T0 + 100 * attempt, bonus=bonus)
        return row

    def refresh(self) -> None:
        return

    def committed(self) -> Mapping[str, int]:
        return {run_id: row["attempt"] for run_id, row in self.rows_of.items()}

    def newest(self) -> str | None:
        return max((row["finished_at"] for row in self.rows_of.values()), default=None)

    def groups(self) -> Mapping[str, Sequence[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for run_id, row in self.rows_of.items():
            found[naming.group_key(naming.axes(row))].append(run_id)
        return found

    def row(self, run_id: str) -> Mapping[str, Any] | None:
        return self.rows_of.get(run_id)

    def prefetch(self, run_ids: Sequence[str]) -> None:
        return

    def batches(self, run_id: str) -> Iterator[pa.RecordBatch]:
        return iter(self.batches_of[run_id])

    def aggregates(self) -> list[dict[str, Any]]:
        row = next(iter(self.rows_of.values()))
        values = [r["accuracy"] for r in self.rows_of.values()]
        names = ("label", "method", "model", "benchmark", "corruption", "severity", "scenario", "batch_size")
        shown = {k: row[k] for k in (*names, "protocol", "precision")}
        return [
            {**shown, "scenario_options": "{}", "metric": "accuracy", "mean": sum(values) / len(values), "std": 0.1}
        ]

    def tables(self) -> Mapping[str, str]:
        return {
            "table.md": "| method | accuracy |\n|---|---|\n| DeYO | 0.5 |\n",
            "table.csv": "method,accuracy\nDeYO,0.5\n",
        }

    def report(self, folder: Path) -> None:
        (folder / "report.html").write_text("page")
        (folder / "plots").mkdir()
        (folder / "plots" / "accuracy.png").write_bytes(b"png")

    def failures(self) -> Mapping[str, Failure]:
        return self.failed

    def planned(self) -> Sequence[PlannedRun]:
        return self.plan


class FakeRemote:
    """MLflow's behaviour in memory: points are kept apart by (key, value, timestamp, step), params are final.

    ``fail`` is raised by every call while it is set; ``fail_on`` by the calls of these names.
    """

    def __init__(self) -> None:
        self.store: dict[str, dict[str, Any]] = {}
        self.fail: Exception | None = None
        self.fail_on: dict[str, Exception] = {}
        self.calls: list[str] = []
        self.experiments: dict[str, str] = {}

    def _call(self, name: str, mlflow_id: str | None = None) -> dict[str, Any]:
        self.calls.append(name)
        if self.fail is not None:
            raise self.fail
        if name in self.fail_on:
            raise self.fail_on[name]
        if mlflow_id is None:
            return {}
        run = self.store[mlflow_id]
        if run["deleted"]:
            raise GoneError("must be in the 'active' state")
        return run

    def experiment(self, name: str, *, tags: Mapping[str, str], artifacts: str | None) -> str:
        self._call("experiment")
        return self.experiments.setdefault(name, str(len(self.experiments) + 1))

    def runs(self, experiment_id: str) -> list[RemoteRun]:
        self._call("runs")
        return [
            RemoteRun(
                mlflow_id=i,
                kind=r["tags"][naming.KIND],
                key=r["tags"][naming.KEY],
                status=r["status"],
                deleted=r["deleted"],
                tags=dict(r["tags"]),
                params=frozenset(r["params"]),
                keys=frozenset(p.key for p in r["points"]),
            )
            for i, r in self.store.items()
        ]

    def create(self, experiment_id: str, name: str, *, tags: Mapping[str, str], start: int, parent: str | None) -> str:
        self._call("create")
        mlflow_id = f"m{len(self.store)}"
        self.store[mlflow_id] = {
            "name": name,
            "tags": dict(tags),
            "params": {},
            "points": set(),
            "status": "RUNNING",
            "deleted": False,
            "parent": parent,
            "inputs": [],
            "files": [],
        }
        return mlflow_id

    def log(
        self,
        mlflow_id: str,
        *,
        points: Sequence[Point] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        run = self._call("log", mlflow_id)
        for key, value in (params or {}).items():
            if run["params"].setdefault(key, value) != value:
                raise RefusedError(f"changing param {key}")
        run["points"] |= set(points)
        run["tags"].update(tags or {})

    def log_dataset(self, mlflow_id: str, **data: str) -> None:
        self._call("log_dataset", mlflow_id)["inputs"].append(data)

    def history(self, mlflow_id: str, key: str) -> dict[int, float]:
        return {p.step: p.value for p in self._call("history", mlflow_id)["points"] if p.key == key}

    def tags(self, mlflow_id: str) -> dict[str, str]:
        return self._call("tags", mlflow_id)["tags"]

    def set_status(self, mlflow_id: str, status: str, end: int | None = None) -> None:
        self._call("set_status", mlflow_id)["status"] = status

    def delete(self, mlflow_id: str) -> None:
        self._call("delete", mlflow_id)["deleted"] = True

    def log_folder(self, mlflow_id: str, folder: Path) -> None:
        run = self._call("log_folder", mlflow_id)
        run["files"] += sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())

    def probe(self) -> None:
        self._call("probe")

    def of(self, key: str) -> dict[str, Any]:
        """The one active MLflow run with this key."""
        found = [r for r in self.store.values() if r["tags"][naming.KEY] == key and not r["deleted"]]
        assert len(found) == 1, f"{len(found)} active MLflow runs for {key}"
        return found[0]


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = T0 + 1000

    def __call__(self) -> float:
        return self.now


def work(publisher: Publisher, clock: Clock, steps: int = 200) -> None:
    """Let the publisher work until it has nothing to do, with time passing."""
    idle = 0
    for _ in range(steps):
        idle = 0 if publisher.step() else idle + 1
        clock.now += 2.1 if idle else 0.0
        if idle > 3:
            return
    raise AssertionError("the publisher did not come to rest")


def doubled(points: set[Point]) -> list[tuple[str, int]]:
    """(key, step) pairs that have more than one point."""
    seen: dict[tuple[str, int], int] = defaultdict(int)
    for point in points:
        seen[point.key, point.step] += 1
    return [pair for pair, n in seen.items() if n > 1]
