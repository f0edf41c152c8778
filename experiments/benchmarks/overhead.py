"""What orchestration costs: sweeps of 100, 1,000 and 10,000 trivial runs through the real Ray, store and MLflow.

    python -m experiments.benchmarks.overhead [--runs 100,1000,10000] [--out RESULTS.parquet]

A run adapts nothing on one batch of 16 scans, alone in its task. Printed for each size: seconds from the first run's
start to the last one's end, milliseconds of them for each run, how many of those are overhead (not the workers' time in
the adaptation loop), the driver's peak memory, and the processes of the sweep while it ran. Target: at most 20 ms,
under 500 MB, as many processes for 10,000 runs as for 100.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import pyarrow.compute as pc

from experiments.benchmarks.record import heading, parser_for, save

SPEC = {
    "name": "overhead",
    "max_images": 16,
    "runs": [
        {
            "benchmark": "digits-c",
            "corruptions": ["contrast", "brightness"],
            "severities": [1, 2, 3, 4, 5],
            "models": ["small-resnet-gn+steps=1"],
            "methods": ["no-adapt"],
            "batch_size": 16,
        }
    ],
    "mlflow": {"granularity": "group"},
    "resources": {"group_size": 1},
}


CONDITIONS = 10  # corruptions × severities; the rest are seeds


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """One size of sweep. ``wall_ms`` and, of it, ``overhead_ms`` are for each run."""

    runs: int
    seconds: float
    overhead_ms: float
    wall_ms: float
    driver_mb: float
    processes: int
    committed: int


def measure(runs: int, folder: Path, workers: int = 2) -> Overhead:
    """Run a sweep of ``runs`` under ``folder`` in a process of its own, and watch it."""
    spec = folder / f"overhead-{runs}.yaml"
    spec.write_text(json.dumps({**SPEC, "seeds": list(range(runs // CONDITIONS))}))
    results = folder / f"results-{runs}"
    command = ["run", str(spec), "--results", str(results), "--quiet", "--set", f"resources.workers={workers}"]
    program = f"from orchestrator.cli.main import main; main({command!r})"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    watcher = _Watcher()
    driver = subprocess.Popen([sys.executable, "-c", program], env=environment)
    watcher.start(driver.pid)
    if driver.wait():
        raise SystemExit(f"the sweep ended with {driver.returncode}")
    watcher.stop()
    return _figures(runs, results, watcher, workers)


def _figures(runs: int, results: Path, watcher: _Watcher, workers: int) -> Overhead:
    from orchestrator import open_results

    opened = open_results(str(results), "overhead")
    columns = ["run_id", "seconds", "started_at", "finished_at"]
    table = opened.runs(columns=columns)
    first, last = min(table["started_at"].to_pylist()), max(table["finished_at"].to_pylist())
    seconds = (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds()
    busy = pc.sum(table["seconds"]).as_py()
    return Overhead(
        runs=runs,
        seconds=seconds,
        overhead_ms=1000 * (seconds - busy / workers) / runs,
        wall_ms=1000 * seconds / runs,
        driver_mb=watcher.peak_mb,
        processes=watcher.processes,
        committed=table.num_rows,
    )


class _Watcher:
    """Looks at a process and its descendants twice a second."""

    def __init__(self) -> None:
        self.peak_mb = 0.0
        self.processes = 0
        self._over = threading.Event()

    def start(self, pid: int) -> None:
        self._thread = threading.Thread(target=self._watch, args=(pid,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self, pid: int) -> None:
        while not self._over.wait(0.5):
            try:
                status = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                return
            resident = next((line for line in status.splitlines() if line.startswith("VmRSS")), None)
            if resident is None:
                return  # it has ended
            self.peak_mb = max(self.peak_mb, int(resident.split()[1]) / 1024)
            self.processes = max(self.processes, 1 + len(descendants(pid)))


def descendants(pid: int) -> set[int]:
    """Every process below ``pid``."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found: set[int] = set()
    todo = [pid]
    while todo:
        for child in children.get(todo.pop(), ()):
            found.add(child)
            todo.append(child)
    return found


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--runs", default="100,1000,10000", help="comma-separated numbers of runs")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    print(heading("cpu"))
    head = ("runs", "seconds", "overhead ms/run", "wall ms/run", "driver MB", "processes", "committed")
    print("  ".join(f"{h:>15}" for h in head))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("DEYO_CACHE", str(Path(folder) / "cache"))
        for runs in map(int, args.runs.split(",")):
            before = time.monotonic()
            found = measure(runs, Path(folder), args.workers)
            cells = (found.runs, found.seconds, found.overhead_ms, found.wall_ms, found.driver_mb)
            print("  ".join(f"{c:>15.1f}" for c in cells), end="")
            print(f"  {found.processes:>15}  {found.committed:>15}", flush=True)
            rows.append({**asdict(found), "total_seconds": time.monotonic() - before})
    save(rows, "cpu", args.out)


if __name__ == "__main__":
    main()
