"""Runs a plan: gives groups to slots, stores what comes back, and decides what follows a failure.

One loop in one process. The store is the truth: whatever ends this process, the next ``run`` does what is
missing. Executors never retry; every attempt is begun here, under its own number, and rows are stored under the
number of the attempt that they came from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from deyo.types import ConfigError
from orchestrator import schema
from orchestrator.aftermath import Aftermath, no_result
from orchestrator.analyses import is_analysis
from orchestrator.artifacts import keep_artifact
from orchestrator.attempts import POLICIES, make_failure
from orchestrator.catalog import Catalog
from orchestrator.durations import Durations
from orchestrator.flight import Flight, Options
from orchestrator.grouping import (
    ORDINARY_SIDE,
    GroupSizer,
    MemoryModel,
    group_key,
)
from orchestrator.outcome import SweepOutcome, SweepStatus
from orchestrator.pool import Job
from orchestrator.progress import Progress, SilentProgress, Tally
from orchestrator.scheduler import Assignment, Scheduler
from orchestrator.shelf import Shelf
from orchestrator.store.errors import StoreError
from orchestrator.told import Told
from orchestrator.types import (
    Artifact,
    Checkpoint,
    Event,
    Executor,
    Failure,
    FailureClass,
    GroupTask,
    LogText,
    MemoryMeasured,
    Message,
    Notice,
    Plan,
    PlannedRun,
    PretrainTask,
    ProbeTask,
    Rows,
    RunConfig,
    RunFailed,
    RunFinished,
    RunStatus,
    Slot,
    SlotIdle,
    SlotJoined,
    SlotLost,
    Store,
    TaskEnded,
    TaskMessage,
    Tracker,
)
from orchestrator.upkeep import Upkeep
from orchestrator.widths import Widths, card
from orchestrator.work import job_for, pretraining_for

POLL_SECONDS = 0.25
LOST_PROBES = 2
"""Probes of one kind of runs that may cost their worker; then its runs go one by one."""


def lockstep_of(method: str) -> bool:
    from deyo.methods import method_lockstep

    return not is_analysis(method) and method_lockstep(method)


def image_side() -> Callable[[RunConfig], int]:
    """Pixels of the side of a run's images; ``ORDINARY_SIDE`` where its benchmark is not known here."""
    catalog = Catalog()

    def side(config: RunConfig) -> int:
        try:
            return int(catalog.benchmark(config.benchmark, config.benchmark_options).image_size)
        except ConfigError:
            return ORDINARY_SIDE

    return side


@dataclass(kw_only=True)
class Driver:
    """One sweep in progress. ``stop`` may be called from a signal handler."""

    plan: Plan
    store: Store
    tracker: Tracker
    executor: Executor
    options: Options = field(default_factory=Options)
    progress: Progress = field(default_factory=SilentProgress)
    memory: MemoryModel = field(default_factory=MemoryModel)
    durations: Durations = field(default_factory=Durations)
    lockstep: Callable[[str], bool] = lockstep_of
    cache: Path | None = None
    shelf: Shelf | None = None
    widths: Widths = field(default_factory=Widths)

    def __post_init__(self) -> None:
        fixed = self.options.group_size
        self.sizer = GroupSizer(memory=self.memory, lockstep=self.lockstep, side=image_side(), fixed=fixed)
        self.widths.asked = fixed
        self.widths.planned = Counter(group_key(run.config) for run in self.plan.runs)
        self.scheduler = Scheduler(group_limit=self.sizer.limit, widths=self.widths, expected=self.executor.expected)
        self.tally = Tally(sweep=self.plan.sweep, total=len(self.plan.runs))
        self.flights: dict[str, Flight] = {}
        self.by_slot: dict[str, str] = {}
        self.artifacts: dict[str, Artifact] = {}
        self.starting_points: dict[str, PlannedRun] = {}
        self.committed = 0
        self.message = ""
        self._stop: SweepStatus | None = None
        self._tasks = 0
        self._lost_probes: Counter[Hashable] = Counter()
        self.told = Told(self.progress.note)
        shared: dict[str, Any] = {
            "store": self.store,
            "tracker": self.tracker,
            "scheduler": self.scheduler,
            "progress": self.progress,
            "tally": self.tally,
            "options": self.options,
        }
        self.aftermath = Aftermath(**shared, stopping=lambda: self._stop is not None, task_id=self._task_id)
        self.upkeep = Upkeep(**shared, executor=self.executor, memory=self.memory, flights=self.flights)

    @property
    def failures(self) -> Mapping[str, Failure]:
        """Runs given up, by id."""
        return self.aftermath.failures

    # The loop

    def run(self) -> SweepOutcome:
        """Until every run is done, failed or given up, or something stops the sweep."""
        started = self.executor.now()
        try:
            self._enqueue()
            while self._stop is None and self._unfinished():
                self._dispatch()
                for event in self.executor.poll(POLL_SECONDS):
                    self._handle(event)
                if trouble := self.upkeep.look():
                    self._halt(SweepStatus.STOPPED, trouble)
        except StoreError as error:
            self._halt(SweepStatus.STOPPED, str(error))
        self._abandon()
        return self._outcome(self.executor.now() - started)

    def stop(self, status: SweepStatus = SweepStatus.INTERRUPTED, message: str = "") -> None:
        """End the sweep at the next turn of the loop; runs in flight are given up."""
        self._halt(status, message)

    def _halt(self, status: SweepStatus, message: str) -> None:
        if self._stop is None:
            self._stop, self.message = status, message

    def _enqueue(self) -> None:
        done = [r for r in self.plan.runs if r.status is RunStatus.DONE]
        self.tally.done = len(done)
        self.tally.failed = sum(r.status is RunStatus.FAILED for r in self.plan.runs)
        for run in self.plan.todo:
            job = job_for(run, self.options, self.durations)
            self.tally.cost_left += job.cost
            if job.needs and job.needs not in self.starting_points:
                self.starting_points[job.needs] = run
                self._provide(job)
            self.scheduler.add(job)
        for key in self.artifacts:
            self.scheduler.ready(key)
        self.progress.update(self.tally)

    def _provide(self, job: Job) -> None:
        """The checkpoint that ``job`` starts from: the one that the sweep began with, else a new one."""
        kept = self.shelf.get(job.needs, job.run.stamps) if self.shelf else None
        if kept is not None:
            self.artifacts[job.needs] = kept
            return
        task = pretraining_for(job, self._task_id(), self.options)
        self.scheduler.add_pretraining(task, cost=job.cost, priority=job.priority, gpu=job.gpu)

    def _unfinished(self) -> bool:
        s = self.scheduler
        return bool(self.flights or s.pending or s.pretraining)

    # Out

    def _dispatch(self) -> None:
        while (assignment := self.scheduler.next()) is not None:
            self._start(assignment)

    def _start(self, assignment: Assignment) -> None:
        task = assignment.pretrain or (self._probe if assignment.probe else self._group_task)(assignment)
        flight = Flight(
            task=task,
            slot=assignment.slot,
            since=self.executor.now(),
            open={job.run.run_id: job for job in assignment.jobs},
        )
        self.flights[task.task_id] = flight
        self.by_slot[assignment.slot.slot_id] = task.task_id
        self.tally.running += len(assignment.jobs)
        self.tally.begin(flight.since)
        self.executor.start(task, assignment.slot)

    def _probe(self, assignment: Assignment) -> ProbeTask:
        job = assignment.jobs[0]
        return ProbeTask(
            task_id=self._task_id(),
            run=job.run,
            locations=self.options.locations,
            artifacts=self._artifacts(assignment.jobs),
            skip_bad=self.options.skip_bad,
            ahead=self._ahead(assignment.slot),
        )

    def _artifacts(self, jobs: tuple[Job, ...]) -> dict[str, Artifact]:
        return {job.network: self.artifacts[job.network] for job in jobs if job.network in self.artifacts}

    def _group_task(self, assignment: Assignment) -> GroupTask:
        jobs = assignment.jobs
        attempts, resume = {}, {}
        for job in jobs:
            run_id = job.run.run_id
            attempts[run_id] = attempt = self.store.next_attempt(run_id)
            # Asked for only where an earlier attempt was made: a look-up for each run would cost more than it does.
            saved = self.store.load_checkpoint(run_id) if attempt > 1 else None
            if saved is not None:
                resume[run_id] = saved
            self.store.begin(job.run, attempt)
            self.tracker.run_started(job.run, attempt)
        return GroupTask(
            task_id=self._task_id(),
            runs=tuple(job.run for job in jobs),
            attempts=attempts,
            resume=resume,
            locations=self.options.locations,
            artifacts=self._artifacts(jobs),
            checkpoint_seconds=self.options.checkpoint_seconds,
            skip_bad=self.options.skip_bad,
            width=assignment.width,
            ahead=self._ahead(assignment.slot),
        )

    def _ahead(self, slot: Slot) -> tuple[RunConfig, ...]:
        return tuple(job.run.config for job in self.scheduler.upcoming(slot))

    def _task_id(self) -> str:
        self._tasks += 1
        return f"task-{self._tasks}"

    # In

    def _handle(self, event: Event) -> None:
        match event:
            case TaskMessage():
                flight = self.flights.get(event.task_id)
                if flight is not None:  # else it is of an attempt given up before: superseded
                    self._message(flight, event.message)
            case SlotIdle():
                self._release(event.task_id, event.slot_id)
            case TaskEnded():
                self._ended(event.task_id, event.failure)
            case SlotJoined():
                self.scheduler.join(event.slot)
            case SlotLost():
                task_id = self.by_slot.get(event.slot_id)
                if task_id is not None:
                    self._ended(task_id, event.failure)
                self.scheduler.leave(event.slot_id)

    def _release(self, task_id: str, slot_id: str) -> None:
        """Give the slot another task before what the last one has to say is written down."""
        flight = self.flights.get(task_id)
        if self._stop is not None or flight is None or flight.ending or self.by_slot.get(slot_id) != task_id:
            return
        if any(self.scheduler.waits_for(job, flight.slot) for job in flight.open.values()):
            return  # what it says decides what may follow
        self._vacate(flight)
        self._dispatch()

    def _vacate(self, flight: Flight) -> None:
        if self.by_slot.get(flight.slot.slot_id) == flight.task.task_id:
            del self.by_slot[flight.slot.slot_id]
            self.scheduler.finished(flight.slot.slot_id)

    def _message(self, flight: Flight, message: Message) -> None:
        if isinstance(message, Artifact):
            if self.shelf is not None:
                self.shelf.put(message, self.starting_points[message.key].stamps)
            self.artifacts[message.key] = keep_artifact(message, self.cache)
            self.scheduler.ready(message.key)
            return
        if isinstance(message, MemoryMeasured):
            flight.peaks[message.runs] = message.peak_bytes
            return
        if isinstance(message, Notice):
            self.told.hear(message)
            return
        job = flight.open.get(message.run_id)
        if job is None or not isinstance(flight.task, GroupTask):
            return
        attempt = flight.task.attempts[message.run_id]
        match message:
            case Rows():
                self.store.append(message.run_id, attempt, message.grain, message.batch)
                self.tracker.rows(message.run_id, attempt, message.grain, message.batch)
                if message.grain == "batches":
                    images = pc.sum(message.batch.column("images")).as_py() or 0
                    self.upkeep.throughput.add(self.executor.now(), images)
            case LogText():
                self.store.append_log(message.run_id, attempt, message.text)
            case Checkpoint():
                self.store.save_checkpoint(message.run_id, attempt, message)
            case RunFinished():
                self._finished(flight, job, attempt, message.row)
            case RunFailed():
                self._close(flight, job)
                self.aftermath.run_failed(flight, job, message.failure, group_size=1)

    def _finished(self, flight: Flight, job: Job, attempt: int, row: Mapping[str, Any]) -> None:
        config = job.run.config
        if row.get("group_memory_bytes") and flight.slot.device.startswith("cuda"):
            self.memory.measured(self.sizer.key(config), row["group_size"], row["group_memory_bytes"])
            self.scheduler.told(job, flight.slot)
        self.durations.measured(config, row)
        known = {name: value for name, value in row.items() if name in schema.RUNS.names}
        first = self.store.commit(job.run, attempt, known)
        self._close(flight, job)
        self.aftermath.breaker.succeeded(job.kind)
        self.tally.cost_done += job.cost
        self.tally.cost_left -= job.cost
        if first:
            self.committed += 1
            self.tracker.run_finished(job.run, attempt, known)
        self.tally.done += 1

    def _close(self, flight: Flight, job: Job) -> None:
        del flight.open[job.run.run_id]
        self.tally.running -= 1

    def _ended(self, task_id: str, failure: Failure | None) -> None:
        flight = self.flights.pop(task_id, None)
        if flight is None:
            return
        self._vacate(flight)
        failure = flight.ending or failure
        if isinstance(flight.task, PretrainTask):
            if flight.task.key not in self.artifacts:
                self.message = self.aftermath.pretraining_failed(flight.task, failure or no_result()) or self.message
            return
        remaining = list(flight.open.values())
        if not remaining:
            return
        if isinstance(flight.task, ProbeTask):
            self._probed(flight, remaining[0], failure)
            return
        failure, size = failure or no_result(), len(remaining)
        if POLICIES[failure.kind].smaller and flight.task.width > 1:
            size = flight.task.width
            self._narrow(flight, remaining[0])
        for job in remaining:
            self._close(flight, job)
            self.aftermath.run_failed(flight, job, failure, group_size=size)

    def _probed(self, flight: Flight, job: Job, failure: Failure | None) -> None:
        """What was probed goes back to be done. If the probe could not tell, it goes alone, to show why."""
        self._close(flight, job)
        if failure is None:
            for runs, peak in flight.peaks.items():
                self.memory.measured(self.sizer.key(job.run.config), runs, peak)
        lost = failure is not None and failure.kind in (FailureClass.WORKER_LOST, FailureClass.NODE_LOST)
        self._lost_probes[job.group] += lost
        if not lost or self._lost_probes[job.group] >= LOST_PROBES:
            self.scheduler.cannot_tell(job, flight.slot)
        self.scheduler.add(job)

    def _narrow(self, flight: Flight, job: Job) -> None:
        """The group's width did not fit on its card: half of it from now on."""
        assert isinstance(flight.task, GroupTask)
        config, slot, width = job.run.config, flight.slot, flight.task.width
        self.memory.too_large(self.sizer.key(config), slot.gpu_name, width)
        self.widths.halve(job.group, card(slot), width)
        self.progress.note(
            f"{config.method} / {config.model}: {width} runs side by side do not fit on "
            f"{slot.gpu_name or 'a host'}; {max(1, width // 2)} from now on (resources.group_size decides otherwise)"
        )

    # The end

    def _abandon(self) -> None:
        """Give up what is in flight: recorded as cancelled, which the next ``run`` takes up again."""
        reason = make_failure(FailureClass.CANCELLED, self.message or "the sweep was stopped")
        for flight in list(self.flights.values()):
            self.executor.cancel(flight.task.task_id)
            for job in list(flight.open.values()):
                self._close(flight, job)
                if isinstance(flight.task, ProbeTask):
                    continue  # no attempt was begun
                try:
                    self.aftermath.run_failed(flight, job, reason, group_size=1)
                except StoreError:
                    continue  # the disk is full: an attempt without an end is to do again anyway
        self.flights.clear()
        try:
            self.upkeep.flush()
        except StoreError as error:
            self._halt(SweepStatus.STOPPED, str(error))

    def _outcome(self, seconds: float) -> SweepOutcome:
        self.told.close()
        self.progress.close(self.tally)
        return SweepOutcome(
            sweep=self.plan.sweep,
            status=self._stop or SweepStatus.FINISHED,
            total=len(self.plan.runs),
            done=self.tally.done,
            committed=self.committed,
            failures=dict(self.failures),
            pending=self.tally.left,
            seconds=seconds,
            message=self.message,
            earlier_failures=sum(r.status is RunStatus.FAILED for r in self.plan.runs),
        )


def run_sweep(
    plan: Plan,
    store: Store,
    tracker: Tracker,
    executor: Executor,
    *,
    options: Options | None = None,
    progress: Progress | None = None,
    resolved_spec: Mapping[str, Any] | None = None,
    **parts: Any,
) -> SweepOutcome:
    """Run what ``plan`` has to do and return how it went; Ctrl-C and SIGTERM end it in order.

    ``parts`` are further fields of ``Driver`` (``memory``, ``durations``, ``lockstep``, ``cache``, ``shelf``).
    """
    from orchestrator.signals import stopping

    driver = Driver(
        plan=plan,
        store=store,
        tracker=tracker,
        executor=executor,
        options=options or Options(),
        progress=progress or SilentProgress(),
        **parts,
    )
    tracker.sweep_started(plan.sweep, plan, resolved_spec or {})
    with stopping(driver.stop):
        outcome = driver.run()
    status = {SweepStatus.FINISHED: "FINISHED", SweepStatus.INTERRUPTED: "KILLED"}
    tracker.sweep_finished(status.get(outcome.status, "FAILED"))
    return outcome
