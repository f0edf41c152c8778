"""Runs a plan: gives groups to slots, stores what comes back, and decides what follows a failure.

One loop in one process. The store is the truth: whatever ends this process, the next ``run`` does what is
missing. Executors never retry; every attempt is begun here, under its own number, and rows are stored under the
number of the attempt that they came from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from orchestrator import schema
from orchestrator.analyses import is_analysis
from orchestrator.artifacts import keep_artifact
from orchestrator.attempts import POLICIES, AttemptLedger, CircuitBreaker, make_failure
from orchestrator.durations import Durations
from orchestrator.grouping import (
    GroupSizer,
    MemoryModel,
    group_key,
    images_key,
    kind_key,
    memory_key,
    network_key,
    pretrain_key,
)
from orchestrator.outcome import FailureBoard, SweepOutcome, SweepStatus, first_line
from orchestrator.pool import Job
from orchestrator.progress import Progress, SilentProgress, Tally, Throughput
from orchestrator.scheduler import Assignment, Scheduler
from orchestrator.store.errors import StoreError
from orchestrator.types import (
    Artifact,
    Checkpoint,
    Event,
    Executor,
    Failure,
    FailureClass,
    GroupTask,
    LogText,
    Message,
    Plan,
    PlannedRun,
    PretrainTask,
    Rows,
    RunFailed,
    RunFinished,
    RunStatus,
    Slot,
    SlotJoined,
    SlotLost,
    Store,
    Task,
    TaskEnded,
    TaskMessage,
    Tracker,
)

POLL_SECONDS = 0.25


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a sweep is run; nothing here decides a number.

    ``gpu``: the kind of GPU that runs ask for. ``group_size`` fixes the size of groups (None: from memory).
    ``timeout``: seconds after which an attempt is given up. ``breaker``: so many first failures with one
    signature stop a kind of runs (0: never). ``stuck_seconds``: how long to wait for a slot that fits.
    """

    gpu: str = ""
    priority: int = 0
    group_size: int | None = None
    timeout: float | None = None
    extra_retries: int = 0
    breaker: int = 5
    locations: Mapping[str, str] = field(default_factory=dict)
    skip_bad: bool = False
    checkpoint_seconds: float = 120.0
    flush_seconds: float = 10.0
    stuck_seconds: float = 300.0


@dataclass(kw_only=True)
class _Flight:
    """A task on a slot; ``open`` are its runs that neither finished nor failed yet."""

    task: Task
    slot: Slot
    since: float
    open: dict[str, Job] = field(default_factory=dict)
    ending: Failure | None = None


def lockstep_of(method: str) -> bool:
    from deyo.methods import method_lockstep

    return not is_analysis(method) and method_lockstep(method)


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

    def __post_init__(self) -> None:
        sizer = GroupSizer(memory=self.memory, lockstep=self.lockstep, fixed=self.options.group_size)
        self.scheduler = Scheduler(group_limit=sizer.limit)
        self.ledger = AttemptLedger(extra_retries=self.options.extra_retries)
        self.breaker = CircuitBreaker(self.options.breaker)
        self.board = FailureBoard()
        self.throughput = Throughput()
        self.flights: dict[str, _Flight] = {}
        self.by_slot: dict[str, str] = {}
        self.artifacts: dict[str, Artifact] = {}
        self.pretraining: dict[str, int] = {}
        self.failures: dict[str, Failure] = {}
        self.committed = 0
        self.message = ""
        self.tally = Tally(sweep=self.plan.sweep, total=len(self.plan.runs))
        self.cost_left = 0.0
        self.cost_done = 0.0
        self._stop: SweepStatus | None = None
        self._tasks = 0
        self._stuck_since: float | None = None
        self._flush_due = 0.0

    # The loop

    def run(self) -> SweepOutcome:
        """Until every run is done, failed or given up, or something stops the sweep."""
        started = self.executor.now()
        try:
            self._enqueue()
            self.started = started
            while self._stop is None and self._unfinished():
                self._dispatch()
                for event in self.executor.poll(POLL_SECONDS):
                    self._handle(event)
                self._regular_work()
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
            job = self._job(run)
            self.cost_left += job.cost
            if job.needs and job.needs not in self.pretraining:
                self.pretraining[job.needs] = 0
                self._pretrain(job)
            self.scheduler.add(job)
        self.progress.update(self.tally)

    def _job(self, run: PlannedRun) -> Job:
        config = run.config
        return Job(
            run=run,
            group=group_key(config),
            network=network_key(config),
            images=images_key(config),
            kind=kind_key(config),
            cost=self.durations.seconds(config),
            priority=self.options.priority,
            gpu=self.options.gpu,
            needs=pretrain_key(config) if config.pretrain_seed is not None else "",
        )

    def _pretrain(self, job: Job) -> None:
        config = job.run.config
        task = PretrainTask(
            task_id=self._task_id(),
            key=job.needs,
            model=config.model,
            benchmark=config.benchmark,
            benchmark_options=config.benchmark_options,
            seed=config.pretrain_seed or 0,
            locations=self.options.locations,
        )
        self.scheduler.add_pretraining(task, cost=job.cost, priority=job.priority, gpu=job.gpu)

    def _unfinished(self) -> bool:
        s = self.scheduler
        return bool(self.flights or s.pending or s.pretraining)

    # Out

    def _dispatch(self) -> None:
        while (assignment := self.scheduler.next()) is not None:
            self._start(assignment)

    def _start(self, assignment: Assignment) -> None:
        task = assignment.pretrain or self._group_task(assignment.jobs)
        flight = _Flight(
            task=task,
            slot=assignment.slot,
            since=self.executor.now(),
            open={job.run.run_id: job for job in assignment.jobs},
        )
        self.flights[task.task_id] = flight
        self.by_slot[assignment.slot.slot_id] = task.task_id
        self.tally.running += len(assignment.jobs)
        self.executor.start(task, assignment.slot)

    def _group_task(self, jobs: tuple[Job, ...]) -> GroupTask:
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
        keys = {job.network for job in jobs}
        return GroupTask(
            task_id=self._task_id(),
            runs=tuple(job.run for job in jobs),
            attempts=attempts,
            resume=resume,
            locations=self.options.locations,
            artifacts={key: self.artifacts[key] for key in keys if key in self.artifacts},
            checkpoint_seconds=self.options.checkpoint_seconds,
            skip_bad=self.options.skip_bad,
        )

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
            case TaskEnded():
                self._ended(event.task_id, event.failure)
            case SlotJoined():
                self.scheduler.join(event.slot)
            case SlotLost():
                task_id = self.by_slot.get(event.slot_id)
                if task_id is not None:
                    self._ended(task_id, event.failure)
                self.scheduler.leave(event.slot_id)

    def _message(self, flight: _Flight, message: Message) -> None:
        if isinstance(message, Artifact):
            self.artifacts[message.key] = keep_artifact(message, self.cache)
            self.scheduler.ready(message.key)
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
                    self.throughput.add(self.executor.now(), images)
            case LogText():
                self.store.append_log(message.run_id, attempt, message.text)
            case Checkpoint():
                self.store.save_checkpoint(message.run_id, attempt, message)
            case RunFinished():
                self._finished(flight, job, attempt, message.row)
            case RunFailed():
                self._close(flight, job)
                self._failed(flight, job, message.failure, group_size=1)

    def _finished(self, flight: _Flight, job: Job, attempt: int, row: Mapping[str, Any]) -> None:
        config = job.run.config
        if row.get("group_memory_bytes") and flight.slot.device.startswith("cuda"):
            self.memory.measured(memory_key(config), row["group_size"], row["group_memory_bytes"])
        self.durations.measured(config, row)
        known = {name: value for name, value in row.items() if name in schema.RUNS.names}
        first = self.store.commit(job.run, attempt, known)
        self._close(flight, job)
        self.breaker.succeeded(job.kind)
        self.cost_done += job.cost
        self.cost_left -= job.cost
        if first:
            self.committed += 1
            self.tracker.run_finished(job.run, attempt, known)
        self.tally.done += 1

    def _close(self, flight: _Flight, job: Job) -> None:
        del flight.open[job.run.run_id]
        self.tally.running -= 1

    def _ended(self, task_id: str, failure: Failure | None) -> None:
        flight = self.flights.pop(task_id, None)
        if flight is None:
            return
        self.by_slot.pop(flight.slot.slot_id, None)
        self.scheduler.finished(flight.slot.slot_id)
        failure = flight.ending or failure
        if isinstance(flight.task, PretrainTask):
            self._pretrained(flight, flight.task, failure)
            return
        remaining = list(flight.open.values())
        if not remaining:
            return
        if failure is None:
            failure = make_failure(FailureClass.ERROR, "the worker ended without a result for this run")
        if POLICIES[failure.kind].smaller and len(remaining) > 1:
            self.memory.too_large(memory_key(remaining[0].run.config), flight.slot.gpu_name, len(flight.task.runs))
        size = len(remaining)
        for job in remaining:
            self._close(flight, job)
            self._failed(flight, job, failure, group_size=size)

    # What follows a failure

    def _failed(self, flight: _Flight, job: Job, failure: Failure, *, group_size: int) -> None:
        run_id = job.run.run_id
        attempt = flight.task.attempts[run_id]  # type: ignore[union-attr]
        verdict = self.ledger.judge(run_id, failure, group_size=group_size, node=flight.slot.node)
        if verdict.again and self._stop is None:
            # Kept as no verdict on the run: if this process dies before the next attempt, it is still to do.
            again = replace(
                failure,
                kind=FailureClass.CANCELLED,
                message=f"{failure.kind.value}, tried again: {failure.message}",
            )
            self._record(job, attempt, again)
            if group_size == 1:
                self.progress.note(f"{run_id}: {failure.kind.value}, tried again: {first_line(failure.message)}")
            job.limit = verdict.limit if verdict.limit is not None else job.limit
            job.avoid = job.avoid | {verdict.avoid} if verdict.avoid else job.avoid
            self.scheduler.add(job)
            return
        recorded = self._record(job, attempt, failure)
        self.cost_left -= job.cost
        if failure.kind is FailureClass.CANCELLED:
            return
        self.failures[run_id] = recorded
        self.tally.failed += 1
        line = self.board.add(job.run, recorded)
        if line:
            self.progress.note(line)
        if self.breaker.failed(job.kind, failure):
            self.scheduler.stop(job.kind)
            self.progress.note(
                f"stopped: the first {self.breaker.threshold} failures of {' / '.join(job.kind)} are the same "
                f"[{failure.signature}]; its other runs stay pending"
            )

    def _record(self, job: Job, attempt: int, failure: Failure) -> Failure:
        failure = replace(failure, log_path=self.store.log_path(job.run.run_id, attempt))
        self.store.fail(job.run.run_id, attempt, failure)
        self.tracker.run_failed(job.run, attempt, failure)
        return failure

    def _pretrained(self, flight: _Flight, task: PretrainTask, failure: Failure | None) -> None:
        if task.key in self.artifacts:
            return
        failure = failure or make_failure(FailureClass.ERROR, "the worker ended without a checkpoint")
        self.pretraining[task.key] += 1
        if self._stop is None and self.pretraining[task.key] <= POLICIES[failure.kind].retries:
            self.progress.note(f"pretraining {task.key}: {first_line(failure.message)}; tried again")
            again = replace(task, task_id=self._task_id())
            self.scheduler.add_pretraining(again, cost=0.0, priority=self.options.priority, gpu=self.options.gpu)
            return
        if failure.kind is FailureClass.CANCELLED:
            return
        dropped = self.scheduler.drop_waiting(task.key)
        self.message = f"pretraining {task.key} failed: {failure.message}"
        self.progress.note(f"{self.message}\n{failure.traceback}{dropped} runs that start from it stay pending")

    # Now and then

    def _regular_work(self) -> None:
        now = self.executor.now()
        self._time_out(now)
        self._check_stuck(now)
        self.tally.slots = self.scheduler.slots
        self.tally.images_per_second = self.throughput.rate(now)
        waits = "" if self.flights else self.executor.excuse()
        self.tally.banner = "; ".join(filter(None, (waits, self.tracker.degraded())))
        s = self.scheduler
        self.executor.want(s.pending + s.pretraining + len(self.flights))
        if self.cost_done:
            self.tally.eta = (now - self.started) * max(0.0, self.cost_left) / self.cost_done
        self.progress.update(self.tally)
        if now >= self._flush_due:
            before = time.monotonic()
            self.store.flush()
            self.memory.save()
            # A slow store is flushed less often: at most a twentieth of the time goes there.
            self._flush_due = now + max(self.options.flush_seconds, 20 * (time.monotonic() - before))

    def _time_out(self, now: float) -> None:
        limit = self.options.timeout
        if limit is None:
            return
        late = [f for f in self.flights.values() if now - f.since > limit and f.ending is None]
        for flight in late:
            flight.ending = make_failure(FailureClass.TIMEOUT, f"no result within {limit:g} s")
            self.executor.cancel(flight.task.task_id)

    def _check_stuck(self, now: float) -> None:
        s = self.scheduler
        if self.flights or self.executor.excuse() or not (s.pending or s.pretraining):
            self._stuck_since = None
            return
        if self._stuck_since is None:
            self._stuck_since = now
            return
        if now - self._stuck_since > self.options.stuck_seconds:
            wanted = f"a {self.options.gpu} GPU" if self.options.gpu else "any worker"
            self._halt(
                SweepStatus.STOPPED,
                f"waited {self.options.stuck_seconds:g} s for {wanted}; there are {s.slots} workers and none fits"
                + (f". {trouble}" if (trouble := getattr(self.executor, "trouble", "")) else ""),
            )

    # The end

    def _abandon(self) -> None:
        """Give up what is in flight: recorded as cancelled, which the next ``run`` takes up again."""
        reason = make_failure(FailureClass.CANCELLED, self.message or "the sweep was stopped")
        for flight in list(self.flights.values()):
            self.executor.cancel(flight.task.task_id)
            for job in list(flight.open.values()):
                self._close(flight, job)
                try:
                    self._failed(flight, job, reason, group_size=1)
                except StoreError:
                    continue  # the disk is full: an attempt without an end is to do again anyway
        self.flights.clear()
        try:
            self.store.flush()
        except StoreError as error:
            self._halt(SweepStatus.STOPPED, str(error))
        self.memory.save()

    def _outcome(self, seconds: float) -> SweepOutcome:
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

    ``parts`` are further fields of ``Driver`` (``memory``, ``durations``, ``lockstep``, ``cache``).
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
