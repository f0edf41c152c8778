"""The scheduler past the machines at hand: 10 to 1,000 simulated GPUs, 100 runs for each, hosts joining and dying.

    python -m experiments.benchmarks.scheduling [--gpus 10,100,1000] [--out RESULTS.parquet]

Scheduler and driver are the real ones; only the executor is simulated, in virtual time: its cards, the runs' seconds
and the losses are as they were recorded (``recorded``), or its cards are all alike (``--kind alike``). Printed for each
size: makespan over its lower bound, commits, duplicates, seconds of the driver's processor for each run, memory.
"""

from __future__ import annotations

import random
import resource
import time
from dataclasses import dataclass

from experiments.benchmarks.record import heading, parser_for, save
from experiments.benchmarks.recorded import (
    GPUS_PER_HOST,
    METHODS,
    MODELS,
    cards,
    failures_per_hour,
    run_seconds,
)
from orchestrator.driver import Driver, Options
from orchestrator.executors.simulated import SimulatedExecutor, World
from orchestrator.memory_store import MemoryStore
from orchestrator.outcome import SweepOutcome
from orchestrator.tracking.null import NullTracker
from orchestrator.types import Plan, PlannedRun, RunConfig, RunStatus

MORE_OFTEN = 1_000.0
"""In the hour that such a sweep takes, the losses that were recorded would hardly happen."""
CORRUPTIONS = [f"corruption{k}" for k in range(15)]
SEVERITIES = (1, 3, 5)


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """What one simulated sweep showed."""

    gpus: int
    runs: int
    makespan: float
    bound: float
    commits: int
    duplicates: int
    attempts: int
    driver_seconds: float
    peak_megabytes: float
    outcome: SweepOutcome

    @property
    def ratio(self) -> float:
        """Makespan over lower bound."""
        return self.makespan / self.bound


class KnownDurations:
    """Durations for the scheduler: right up to ``error``, as recorded speeds are."""

    def __init__(self, seed: int, error: float = 0.1) -> None:
        self.random = random.Random(seed)
        self.error = error

    def seconds(self, config: RunConfig) -> float:
        return true_seconds(config) * self.random.uniform(1 - self.error, 1 + self.error)

    def measured(self, config: RunConfig, row: object) -> None:
        return


def true_seconds(config: RunConfig) -> float:
    """Seconds of a run on a card of speed 1."""
    return run_seconds()[config.method, config.model]


def make_runs(count: int) -> tuple[PlannedRun, ...]:
    """``count`` runs of a grid as large as needed (seeds last)."""
    runs = []
    axes = [(m, n, c, s) for m in METHODS for n in MODELS for c in CORRUPTIONS for s in SEVERITIES]
    for number in range(count):
        method, model, corruption, severity = axes[number % len(axes)]
        config = RunConfig(
            benchmark="imagenet-c",
            scenario="mild",
            model=model,
            method=method,
            label=method,
            settings={},
            seed=number // len(axes),
            batch_size=64,
            corruption=corruption,
            severity=severity,
        )
        runs.append(PlannedRun(run_id=f"{number:016x}", config=config, status=RunStatus.NEW))
    return tuple(runs)


def simulate(gpus: int, runs: int, *, seed: int = 0, kind: str = "alike", trouble: bool = True) -> Simulated:
    """A sweep of ``runs`` on ``gpus`` cards of a ``kind`` of cluster; with ``trouble`` hosts join late, hosts and
    workers are lost."""
    plan = Plan(sweep="simulated", runs=make_runs(runs))
    work = sum(true_seconds(run.config) for run in plan.runs)
    make = {"alike": alike, "mixed": mixed}[kind]
    executor = make(gpus, work / gpus, random.Random(seed), trouble=trouble, seed=seed)
    store = MemoryStore(keep_rows=False)
    driver = Driver(
        plan=plan,
        store=store,
        tracker=NullTracker(),
        executor=executor,
        options=Options(flush_seconds=1e9),
        durations=KnownDurations(seed),
        lockstep=lambda method: True,
    )
    before = time.process_time()
    outcome = driver.run()
    return Simulated(
        gpus=gpus,
        runs=runs,
        makespan=outcome.seconds,
        bound=executor.lower_bound(work),
        commits=len(store.commits),
        duplicates=len(store.superseded),
        attempts=sum(store.attempts.values()),
        driver_seconds=time.process_time() - before,
        peak_megabytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        outcome=outcome,
    )


def alike(gpus: int, expected: float, draw: random.Random, *, trouble: bool, seed: int) -> SimulatedExecutor:
    """Hosts of 8 like cards. In ``expected`` seconds every tenth host joins late and every twentieth dies, and one
    group in 2,000 loses its worker: far more than was ever recorded."""
    hosts = max(1, gpus // GPUS_PER_HOST)
    joins = [(draw.uniform(0.05, 0.5) * expected, host) for host in range(hosts) if trouble and host % 10 == 9]
    late = {host for _, host in joins}
    deaths = [
        (draw.uniform(0.1, 0.9) * expected, host)
        for host in range(hosts)
        if trouble and host % 20 == 5 and host not in late
    ]
    world = World(
        seconds=lambda run: true_seconds(run.config), lose_worker=0.0005 if trouble else 0.0, load_seconds=2.0
    )
    return SimulatedExecutor(world, hosts, GPUS_PER_HOST, joins, deaths, seed)


def mixed(gpus: int, expected: float, draw: random.Random, *, trouble: bool, seed: int) -> SimulatedExecutor:
    """Hosts of cards of nine kinds, with the memory, the speeds and ``MORE_OFTEN`` times the losses that were recorded
    (``recorded``); every tenth host joins late. At least four hosts, so that cards differ."""
    each = min(GPUS_PER_HOST, max(1, gpus // 4))
    hosts = max(1, gpus // each)
    joins = [(draw.uniform(0.05, 0.5) * expected, host) for host in range(hosts) if trouble and host % 10 == 9]
    often = MORE_OFTEN if trouble else 0.0
    world = World(
        seconds=lambda run: true_seconds(run.config),
        cards=cards(),
        losses_per_hour=often * failures_per_hour("worker"),
        deaths_per_hour=often * failures_per_hour("host"),
        load_seconds=2.0,
    )
    return SimulatedExecutor(world, hosts, each, joins, (), seed)


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--gpus", default="8,80,1000", help="comma-separated numbers of GPUs")
    parser.add_argument("--kind", choices=("alike", "mixed"), default="mixed", help="cards of one kind, or of nine")
    parser.add_argument("--runs-per-gpu", type=int, default=100)
    args = parser.parse_args()
    print(heading("cpu"))
    head = ("GPUs", "runs", "commits", "duplicates", "attempts", "makespan/bound", "ms/run", "driver MB")
    print("  ".join(f"{h:>14}" for h in head))
    rows = []
    for gpus in map(int, args.gpus.split(",")):
        r = simulate(gpus, gpus * args.runs_per_gpu, kind=args.kind)
        per_run = 1000 * r.driver_seconds / r.runs
        values = (r.gpus, r.runs, r.commits, r.duplicates, r.attempts)
        print("  ".join(f"{v:>14}" for v in values), end="")
        print(f"  {r.ratio:>14.4f}  {per_run:>14.3f}  {r.peak_megabytes:>14.0f}", flush=True)
        rows.append(dict(zip(head, (*values, r.ratio, per_run, r.peak_megabytes))))
    save(rows, "cpu", args.out)


if __name__ == "__main__":
    main()
