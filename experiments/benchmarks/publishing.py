"""What MLflow costs a sweep, and how long it takes to follow: 10,000 runs from a store to MLflow on SQLite.

    python -m experiments.benchmarks.publishing [--runs 1000,10000] [--pace 20] [--batches 16] [--out RESULTS.parquet]

A driver commits runs of 16 batches each to a real store at the pace of the target (20 ms a run; 0: as fast as it can),
first without tracking, then with the tracker and its publisher's process, an MLflow run for each group of three seeds
and one for each run. Printed: the driver's milliseconds a run (processor, of all its threads; wall, inside store and
tracker), seconds from the last commit until all is published, MLflow runs and points in the database, the publisher's
processor seconds and peak memory, and the machine's load (5 minutes).
"""

from __future__ import annotations

import os
import resource
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from experiments.benchmarks.overhead import descendants
from experiments.benchmarks.record import heading, parser_for, save
from orchestrator import schema
from orchestrator.identity import config_id
from orchestrator.store import ParquetStore
from orchestrator.tracking import MlflowTracker, NullTracker, TrackingOptions
from orchestrator.tracking.options import sqlite_uri
from orchestrator.types import Plan, PlannedRun, RunConfig, RunStatus, Tracker

GRANULARITIES = ("none", "group", "run")
SEEDS = 3
HEADS = "MLflow runs ms/run(cpu) ms/run(wall) sweep(s) after(s) MLflow-runs points cpu(s) MB load"
SWEEP = "publishing"


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One sweep. ``cpu_ms`` (processor) and ``driver_ms`` (wall, in store and tracker) are the driver's for each run;
    ``after_seconds``: from the last commit until all was published.
    """

    granularity: str
    runs: int
    cpu_ms: float
    driver_ms: float
    sweep_seconds: float
    after_seconds: float
    mlflow_runs: int
    points: int
    publisher_cpu: float
    publisher_mb: float
    load: float


def planned(count: int) -> Iterator[PlannedRun]:
    """``count`` runs: settings of one method, ten conditions, three seeds each."""
    for k in range(count):
        config = RunConfig(
            benchmark="digits-c",
            scenario="mild",
            model="small-resnet-gn",
            method="tent",
            label=f"tent {k // (10 * SEEDS)}",
            settings={"learning_rate": 1e-5 * (1 + k // (10 * SEEDS))},
            seed=k % SEEDS,
            batch_size=64,
            corruption=("contrast", "brightness")[k // SEEDS % 2],
            severity=1 + k // (2 * SEEDS) % 5,
        )
        identity = config_id(config)
        yield PlannedRun(run_id=identity, config=config, status=RunStatus.NEW, stamps={"config_id": identity})


def rows(dice: np.random.Generator, steps: int) -> pa.RecordBatch:
    """``steps`` rows of ``batches``, as one message of a worker brings them."""
    return pa.RecordBatch.from_pydict(
        {
            "step": np.arange(steps),
            "images": np.full(steps, 64),
            "correct": dice.integers(0, 64, steps),
            "mean_entropy": dice.exponential(size=steps),
            "mean_plpd": dice.normal(size=steps),
            "selected_entropy": np.full(steps, 48),
            "selected": dice.integers(0, 48, steps),
            "recorded_at": np.full(steps, time.time()),
        }
    )


def measure(granularity: str, runs: int, steps: int, pace: float, folder: Path) -> Figures:
    """Commit ``runs`` runs under ``folder``, at most one in ``pace`` seconds, and wait for MLflow."""
    database = folder / "mlflow.db"
    options = TrackingOptions(granularity="run" if granularity == "none" else granularity, close_seconds=7200)
    tracker: Tracker = NullTracker()
    if granularity != "none":
        tracker = MlflowTracker(sqlite_uri(database), SWEEP, root=str(folder), options=options)
    store = ParquetStore(str(folder), SWEEP)
    plan = Plan(sweep=SWEEP, runs=tuple(planned(runs)))
    store.write_plan(plan)
    tracker.sweep_started(SWEEP, plan, {"name": SWEEP})
    memory = _Memory()
    before = _children_seconds()
    started, processor = time.perf_counter(), time.process_time()
    busy = _commit_all(plan, store, tracker, steps, pace)
    swept, processor = time.perf_counter() - started, time.process_time() - processor
    tracker.sweep_finished("FINISHED")
    ended = time.perf_counter()
    tracker.close()
    after = time.perf_counter() - ended
    store.close()
    if behind := tracker.degraded():
        raise SystemExit(behind)
    shown, points = _contents(database) if granularity != "none" else (0, 0)
    return Figures(
        granularity=granularity,
        runs=runs,
        cpu_ms=1000 * processor / runs,
        driver_ms=1000 * busy / runs,
        sweep_seconds=swept,
        after_seconds=after,
        mlflow_runs=shown,
        points=points,
        publisher_cpu=_children_seconds() - before,
        publisher_mb=memory.stop(),
        load=os.getloadavg()[1],
    )


def _commit_all(plan: Plan, store: ParquetStore, tracker: Tracker, steps: int, pace: float) -> float:
    """Seconds that the driver spent in store and tracker."""
    dice = np.random.default_rng(0)
    started = flushed = time.perf_counter()
    busy = 0.0
    for number, run in enumerate(plan.runs):
        begun = time.perf_counter()
        attempt = store.next_attempt(run.run_id)
        store.begin(run, attempt)
        tracker.run_started(run, attempt)
        batch = rows(dice, steps)
        store.append(run.run_id, attempt, "batches", batch)
        tracker.rows(run.run_id, attempt, "batches", _as_streamed(batch, run.run_id, attempt))
        row = _row(batch)
        store.commit(run, attempt, row)
        tracker.run_finished(run, attempt, row)
        if time.perf_counter() - flushed > 1:  # as the driver does
            store.flush()
            flushed = time.perf_counter()
        busy += time.perf_counter() - begun
        time.sleep(max(started + pace * (number + 1) - time.perf_counter(), 0))
    return busy


def _as_streamed(batch: pa.RecordBatch, run_id: str, attempt: int) -> pa.RecordBatch:
    """The rows with the run's identity, as the driver hands them to tracking."""
    own = {"run_id": run_id, "attempt": attempt}
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns |= {
        name: pa.array([value] * batch.num_rows, schema.BATCHES.field(name).type) for name, value in own.items()
    }
    return pa.RecordBatch.from_pydict(columns)


def _row(batch: pa.RecordBatch) -> dict[str, object]:
    images = pc.sum(batch["images"]).as_py()
    return {
        "images": images,
        "accuracy": pc.sum(batch["correct"]).as_py() / images,
        "mean_entropy": pc.mean(batch["mean_entropy"]).as_py(),
        "forwards": images,
        "backwards": images // 2,
        "collapsed": False,
        "seconds": 0.5,
        "images_per_second": images / 0.5,
        "started_at": datetime.now(UTC).isoformat(),
        "finished_at": datetime.now(UTC).isoformat(),
        "weights_sha256": "ab" * 32,
        "data_fingerprint": "cd" * 32,
    }


def _contents(database: Path) -> tuple[int, int]:
    """MLflow runs (the sweep's own aside) and points."""
    with sqlite3.connect(database) as connection:
        (runs,) = connection.execute("SELECT count(*) FROM runs").fetchone()
        (points,) = connection.execute("SELECT count(*) FROM metrics").fetchone()
    return runs - 1, points


def _children_seconds() -> float:
    """Processor seconds of the child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class _Memory:
    """The most that a child process held, looked at once a second until ``stop``."""

    def __init__(self) -> None:
        self._most = 0.0
        self._over = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def stop(self) -> float:
        self._over.set()
        return self._most

    def _watch(self) -> None:
        while not self._over.wait(1):
            for pid in descendants(os.getpid()):
                try:
                    status = Path(f"/proc/{pid}/status").read_text()
                except OSError:
                    continue
                if "VmHWM:" in status:
                    self._most = max(self._most, int(status.partition("VmHWM:")[2].split()[0]) / 1024)


def main() -> None:
    parser = parser_for(__doc__ or "")
    parser.add_argument("--runs", default="1000,10000", help="comma-separated numbers of runs")
    parser.add_argument("--granularities", default=",".join(GRANULARITIES), help="of none, group, run")
    parser.add_argument("--pace", type=float, default=20, help="milliseconds from one run to the next, at least")
    parser.add_argument("--batches", type=int, default=16, help="batches of a run")
    args = parser.parse_args()
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    print(heading("cpu"))
    print("  ".join(f"{head:>12}" for head in HEADS.split()))
    found = []
    for runs in map(int, args.runs.split(",")):
        for granularity in args.granularities.split(","):
            with tempfile.TemporaryDirectory() as folder:
                figures = measure(granularity, runs, args.batches, args.pace / 1000, Path(folder))
            found.append(asdict(figures))
            cells = (f"{v:.2f}" if isinstance(v, float) else str(v) for v in found[-1].values())
            print("  ".join(f"{cell:>12}" for cell in cells), flush=True)
    save(found, "cpu", args.out)


if __name__ == "__main__":
    main()
