"""From a spec to a finished sweep: plan, store, tracker, workers, driver. What ``run``, ``retry`` and a Ray Job do."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deyo.types import ConfigError
from orchestrator import provenance
from orchestrator.cost import CostModel
from orchestrator.driver import Options, run_sweep
from orchestrator.durations import Durations
from orchestrator.finished import finished_runs, note_finished
from orchestrator.grouping import MemoryModel
from orchestrator.outcome import SweepOutcome, SweepStatus
from orchestrator.planning import plan_apart, plan_here, unchanged
from orchestrator.progress import Progress, SilentProgress
from orchestrator.reuse import take_over
from orchestrator.shelf import Shelf
from orchestrator.spec import resolved_spec
from orchestrator.specmodel import Resources, SweepSpec
from orchestrator.store import ParquetStore
from orchestrator.store.errors import StoreError
from orchestrator.types import Executor, Plan, RunStatus
from orchestrator.widths import Widths

if TYPE_CHECKING:
    from orchestrator.executors.ray import WorkerLayout
    from orchestrator.preflight import Check

DRIVER_LOCK = "driver.lock"
DRIVER_FILE = "driver.json"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a sweep runs: in this process, on a private Ray on this machine, or on the cluster at ``address``."""

    address: str | None = None
    in_process: bool = False
    allow_insecure: bool = False


def run_spec(
    spec: SweepSpec,
    *,
    results: str,
    place: Place = Place(),
    progress: Progress | None = None,
    skip_bad: bool = False,
    change: Callable[[Plan], Plan] = unchanged,
    preflight: bool = False,
) -> SweepOutcome:
    """Run what is missing of ``spec`` under ``results``.

    ``change`` edits the plan (``retry``); with ``preflight`` a check that fails is a ``ConfigError``. Nothing
    is started where nothing is to do. Raises ``ConfigError``, ``DataError``, ``ClusterError`` or ``StoreError``
    before the sweep starts; afterwards failures are in the outcome.
    """
    from orchestrator.tracking import TrackingOptions, make_tracker

    progress = progress or SilentProgress()
    store = ParquetStore(results, spec.name)
    with _only_driver(store, spec.name, place):
        if change is unchanged and (count := finished_runs(spec, store)) is not None:
            return _nothing_to_do(spec.name, total=count, done=count)
        make = plan_here if place.in_process else plan_apart
        planned = make(spec, results, change, preflight, place.address)
        plan = planned.plan
        if reused := take_over(plan, store, results):
            progress.note(f"{plan.sweep}: {reused} runs taken over from other sweeps under {results}")
            _keep(spec, plan, store)
        if not plan.todo:
            done = sum(run.status is RunStatus.DONE for run in plan.runs)
            failed = sum(run.status is RunStatus.FAILED for run in plan.runs)
            _publish_end(spec, plan, results, progress)
            return _noted(spec, store, _nothing_to_do(plan.sweep, total=len(plan.runs), done=done, failed=failed))
        _refuse_failed(planned.checks)
        progress.note(f"{plan.sweep}: {len(plan.runs)} runs, {len(plan.todo)} to run; results in {store.root}")
        _keep(spec, plan, store)
        tracker = make_tracker(spec.name, results, TrackingOptions.from_spec(resolved_spec(spec).get("mlflow")))
        cache = cache_folder()
        try:
            with executor_for(spec.resources, place, sweep=spec.name, tasks=len(plan.todo)) as executor:
                outcome = run_sweep(
                    plan,
                    store,
                    tracker,
                    executor,
                    options=driver_options(spec, skip_bad=skip_bad),
                    progress=progress,
                    resolved_spec=resolved_spec(spec),
                    memory=MemoryModel(path=cache / "memory.json"),
                    durations=Durations(CostModel.of(results, spec.name)),
                    cache=cache,
                    shelf=Shelf(store.tree, cache),
                    widths=Widths.of(store.tree),
                    lockstep=planned.lockstep.__getitem__,
                )
        finally:
            _close(store, progress)
            tracker.close()
            if behind := tracker.degraded():
                progress.note(f"{plan.sweep}: {behind}")
        return outcome if behind else _noted(spec, store, outcome)


def _close(store: ParquetStore, progress: Progress) -> None:
    """Close the store; a disk that has no room for the last logs must not hide how the sweep ended."""
    try:
        store.close()
    except StoreError as error:
        progress.note(str(error))


def _publish_end(spec: SweepSpec, plan: Plan, results: str, progress: Progress) -> None:
    """Let tracking finish a sweep whose driver died just before its end; it does nothing where nothing is missing."""
    from orchestrator.tracking import TrackingOptions, make_tracker

    resolved = resolved_spec(spec)
    tracker = make_tracker(spec.name, results, TrackingOptions.from_spec(resolved.get("mlflow")))
    try:
        tracker.sweep_started(plan.sweep, plan, resolved)
        tracker.sweep_finished("FINISHED")
    finally:
        tracker.close()
    if behind := tracker.degraded():
        progress.note(f"{plan.sweep}: {behind}")


def _keep(spec: SweepSpec, plan: Plan, store: ParquetStore) -> None:
    store.write_spec(spec.document.text or json.dumps(resolved_spec(spec)), resolved_spec(spec))
    store.write_plan(plan)


def _refuse_failed(checks: Sequence[Check]) -> None:
    failed = [check for check in checks if check.ok is False]
    if failed:
        lines = "\n".join(f"  {check.name}: {check.detail}" for check in failed)
        raise ConfigError(f"not started (--no-preflight skips these checks):\n{lines}")


def driver_options(spec: SweepSpec, *, skip_bad: bool = False) -> Options:
    """The driver's options that a spec asks for."""
    asked = spec.resources
    return Options(
        gpu=asked.gpu_type or "",
        priority=asked.priority,
        group_size=asked.group_size,
        timeout=asked.timeout_minutes * 60 if asked.timeout_minutes else None,
        locations={name: str(Path(path).expanduser()) for name, path in spec.data.items()},
        skip_bad=skip_bad,
    )


def worker_layout(asked: Resources) -> WorkerLayout:
    """How workers are cut, by a spec's ``resources``."""
    from orchestrator.executors.ray import WorkerLayout

    device = "cpu" if asked.gpus == 0 else "gpu" if asked.gpus or asked.gpu_type else "auto"
    return WorkerLayout(
        device=device,
        workers=asked.workers,
        gpus=asked.gpus or None,
        gpu_fraction=asked.gpu_fraction,
        gpu_type=asked.gpu_type or "",
        cpus_per_worker=asked.cpus_per_worker,
        memory_gb=asked.memory_gb,
        cache=os.environ.get("DEYO_CACHE"),
    )


@contextlib.contextmanager
def executor_for(asked: Resources, place: Place, *, sweep: str, tasks: int) -> Iterator[Executor]:
    """Workers for so many ``tasks``; they, and a cluster that was started for them, end with the block.

    On a cluster that is there already, ``sweep`` shares it with other sweeps by their priorities, and makes it grow
    if it can.
    """
    if place.in_process:
        from orchestrator.executors.inline import InlineExecutor

        inline = InlineExecutor(_own_state())
        try:
            yield inline
        finally:
            inline.close()
        return
    from orchestrator.cluster import existing_cluster, local_cluster

    if place.address:
        joined = existing_cluster(place.address, allow_insecure=place.allow_insecure)
    else:
        joined = local_cluster(cpus=_local_cpus(asked), gpus=fake_gpus())
    with joined as cluster:
        from orchestrator.executors.ray import RayExecutor

        layout, share = worker_layout(asked), None
        if not cluster.local:
            from orchestrator.executors.broker import Share

            share = Share(sweep, asked.priority)
        executor = RayExecutor(layout, share=share)
        executor.ask_autoscaler(grows=cluster.grows, tasks=tasks)
        try:
            yield executor
        finally:
            executor.close()


def cache_folder() -> Path:
    """Where this machine keeps prepared data and checkpoints."""
    from deyo.benchmarks import default_cache

    return default_cache()


def fake_gpus() -> int | None:
    """DEYO_FAKE_GPUS=N: pretend that this machine has N GPUs whose work is done on the CPU (scheduling tests)."""
    named = os.environ.get("DEYO_FAKE_GPUS", "")
    return int(named) if named.isdigit() and int(named) else None


def _own_state() -> Any:
    import torch

    from orchestrator.worker import WorkerState

    return WorkerState(device=torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu"))


def _local_cpus(asked: Resources) -> float | None:
    """CPUs that a private Ray offers: the machine's, or more where the spec asks for more workers than cores."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    wanted = max(asked.workers or 0, fake_gpus() or 0) * asked.cpus_per_worker
    return max(cores, wanted)


def _nothing_to_do(sweep: str, *, total: int, done: int, failed: int = 0) -> SweepOutcome:
    return SweepOutcome(
        sweep=sweep,
        status=SweepStatus.FINISHED,
        total=total,
        done=done,
        committed=0,
        failures={},
        pending=0,
        seconds=0.0,
        earlier_failures=failed,
    )


def _noted(spec: SweepSpec, store: ParquetStore, outcome: SweepOutcome) -> SweepOutcome:
    if outcome.exit_code == 0:
        note_finished(spec, store)
    return outcome


@contextlib.contextmanager
def _only_driver(store: ParquetStore, sweep: str, place: Place) -> Iterator[None]:
    """One driver a sweep: refuses a second one, and says in ``driver.json`` who it is."""
    with store.tree.lock(DRIVER_LOCK) as mine:
        if not mine:
            raise ConfigError(
                f"the sweep {sweep!r} is being run already{_who(store)}; "
                f"watch it with `deyo-sweep watch {sweep}`, or end it with `deyo-sweep cancel {sweep}`"
            )
        facts = {
            "pid": os.getpid(),
            "birth": process_birth(os.getpid()),
            "host": socket.gethostname(),
            "started_at": provenance.now(),
            "address": place.address or "",
            "submission_id": os.environ.get("DEYO_SUBMISSION_ID", ""),
            "ended_at": "",
        }
        store.tree.replace(DRIVER_FILE, json.dumps(facts).encode(), durable=False)
        try:
            yield
        finally:
            facts["ended_at"] = provenance.now()
            with contextlib.suppress(Exception):  # a full disk must not hide how the sweep ended
                store.tree.replace(DRIVER_FILE, json.dumps(facts).encode(), durable=False)


def process_birth(pid: int) -> str:
    """When a process of this host began, in clock ticks since boot: tells it from a later one with its number.

    Empty for one that does not exist.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except OSError:
        return ""


def _who(store: ParquetStore) -> str:
    try:
        facts = json.loads(store.tree.read(DRIVER_FILE))
        return f" by process {facts['pid']} on {facts['host']} since {facts['started_at']}"
    except (OSError, ValueError, KeyError):
        return ""
