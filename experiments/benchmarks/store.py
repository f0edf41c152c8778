"""The result store at size: commits, memory of the driver, aggregates, readers, AURC.

    python -m experiments.benchmarks.store [--runs 100,1000,10000] [--samples 20000000] [--folder DIR]

Every figure comes from a store that ``ParquetStore`` itself wrote in DIR (a temporary folder by default, removed
at the end). ``ms/commit`` is the whole of begin, rows, commit and the compactions and refreshes in between.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from experiments.benchmarks.record import heading, parser_for, save
from orchestrator import open_results, schema
from orchestrator.aggregate import COLUMNS, aggregate
from orchestrator.identity import config_id
from orchestrator.query import query
from orchestrator.risk import aurc_by_run
from orchestrator.store import ParquetStore, plan_table
from orchestrator.store.snapshot import take
from orchestrator.types import Plan, PlannedRun, RunConfig, RunStatus

CORRUPTIONS = [f"corruption{k:02d}" for k in range(15)]
METHODS = ("no-adapt", "tent", "eata", "sar", "deyo")
STEPS = 4
IMAGES_A_RUN = 50_000


def planned(count: int, *, samples: bool = False) -> list[PlannedRun]:
    """``count`` runs: methods x corruptions x severities, then seeds."""
    runs = []
    for k in range(count):
        seed, rest = divmod(k, len(METHODS) * len(CORRUPTIONS) * 3)
        method, rest = METHODS[rest % len(METHODS)], rest // len(METHODS)
        config = RunConfig(
            benchmark="imagenet-c",
            scenario="mild",
            model="resnet50-gn",
            method=method,
            label=method,
            settings={"lr": 0.00025, "margin": 0.5},
            seed=seed,
            batch_size=64,
            corruption=CORRUPTIONS[rest % 15],
            severity=(1, 3, 5)[rest // 15],
            record_samples=samples,
        )
        identity = config_id(config)
        runs.append(PlannedRun(run_id=identity, config=config, status=RunStatus.NEW, stamps={"config_id": identity}))
    return runs


def batches(steps: int, images: int) -> pa.RecordBatch:
    step = np.arange(steps)
    columns = {"step": step, "images": np.full(steps, images), "correct": step % images}
    return pa.RecordBatch.from_pydict(columns)


def write(folder: str, count: int) -> None:
    """Commit ``count`` runs; prints milliseconds a commit (wall, processor), megabytes with the plan, and at most."""
    store = ParquetStore(folder, "runs")
    plan = planned(count)
    store.write_plan(Plan(sweep="runs", runs=tuple(plan)))
    dice = np.random.default_rng(0)
    rows = batches(STEPS, 64)
    idle = _megabytes()
    started = flushed = time.perf_counter()
    processor = time.process_time()
    for run in plan:
        attempt = store.next_attempt(run.run_id)
        store.begin(run, attempt)
        store.append(run.run_id, attempt, "batches", rows)
        values = {name: float(dice.random()) for name in ("accuracy", "mean_entropy", "seconds", "images_per_second")}
        store.commit(run, attempt, {"images": 64 * STEPS, "forwards": 512, "collapsed": False, **values})
        if time.perf_counter() - flushed > 1:  # as the driver does
            store.flush()
            flushed = time.perf_counter()
    store.close()
    wall, processor = time.perf_counter() - started, time.process_time() - processor
    print(1000 * wall / count, 1000 * processor / count, idle, _megabytes())


def write_samples(folder: str, total: int) -> None:
    """Commit runs of 50,000 samples each until there are ``total``."""
    store = ParquetStore(folder, "samples")
    for number, run in enumerate(planned(total // IMAGES_A_RUN, samples=True)):
        attempt = store.next_attempt(run.run_id)
        store.begin(run, attempt)
        for batch in _samples(number):
            store.append(run.run_id, attempt, "samples", batch)
        store.commit(run, attempt, {"images": IMAGES_A_RUN, "accuracy": 0.5})
        store.flush()
    store.close()


def _samples(number: int) -> Iterator[pa.RecordBatch]:
    dice = np.random.default_rng(number)
    for start in range(0, IMAGES_A_RUN, 5000):
        position = np.arange(start, start + 5000)
        label = dice.integers(0, 1000, 5000)
        yield pa.RecordBatch.from_pydict(
            {
                "position": position,
                "index": dice.permutation(position),
                "label": label,
                "prediction": np.where(dice.random(5000) < 0.5, label, 0),
                "entropy": dice.exponential(size=5000).astype(np.float32),
                "plpd": dice.normal(size=5000).astype(np.float32),
                "passed_entropy": dice.random(5000) < 0.5,
                "passed_both": dice.random(5000) < 0.3,
            },
        ).cast(_samples_schema())


def _samples_schema() -> pa.Schema:
    names = ["position", "index", "label", "prediction", "entropy", "plpd", "passed_entropy", "passed_both"]
    return pa.schema([schema.SAMPLES.field(name) for name in names])


def _megabytes() -> float:
    """The most that this process held so far (``ru_maxrss`` would count its parent before the exec)."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


FIGURES: list[dict[str, object]] = []


def figure(what: str, value: float, unit: str) -> None:
    """Print a figure and keep it for the file."""
    print(f"{what:58s} {value:8.3f} {unit}", flush=True)
    FIGURES.append({"what": what, "value": value, "unit": unit})


def timed(what: str, action) -> object:
    started = time.perf_counter()
    result = action()
    figure(what, time.perf_counter() - started, "s")
    return result


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--runs", default="100,1000,10000", help="comma-separated numbers of runs")
    parser.add_argument("--samples", type=int, default=20_000_000, help="sample rows for the AURC")
    parser.add_argument("--folder", help="keep the stores there")
    parser.add_argument("--write", nargs=2, metavar=("FOLDER", "RUNS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.write:
        write(args.write[0], int(args.write[1]))
        return
    print(heading("cpu"))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.folder or temporary)
        for count in map(int, args.runs.split(",")):
            measure_runs(str(folder / str(count)), count)
        if args.samples:
            measure_samples(str(folder / "samples"), args.samples)
    save(FIGURES, "cpu", args.out)


def measure_runs(folder: str, count: int) -> None:
    command = [sys.executable, "-m", "experiments.benchmarks.store", "--write", folder, str(count)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    wall, processor, idle, peak = map(float, output.split())
    figure(f"{count} runs: a commit", wall, "ms")
    figure(f"{count} runs: of it processor", processor, "ms")
    figure(f"{count} runs: driver with the plan in memory", idle, "MB")
    figure(f"{count} runs: driver at most", peak, "MB")
    results = open_results(folder, "runs")
    tree = next(tree for _, tree in results.trees())
    runs, plan = take(tree).runs(COLUMNS), plan_table.read(tree)
    timed(f"{count} runs: aggregates from rows in memory", lambda: aggregate(runs, plan))
    timed(f"{count} runs: aggregates, reading included", results.aggregates)
    timed(f"{count} runs: committed(), as a plan asks", lambda: ParquetStore(folder, "runs").committed())
    sql = "SELECT label, corruption, severity, avg(accuracy), stddev(accuracy) FROM runs GROUP BY ALL"
    timed(f"{count} runs: the same mean and std by SQL", lambda: query(results, sql))


def measure_samples(folder: str, total: int) -> None:
    timed(f"{total} samples: written and compacted", lambda: write_samples(folder, total))
    results = open_results(folder, "samples")
    table = timed(f"{total} samples: AURC of each run", lambda: aurc_by_run(results))
    assert sum(table["samples"].to_pylist()) == total  # type: ignore[index]
    figure("this process at most", _megabytes(), "MB")


if __name__ == "__main__":
    main()
