"""What follows a failure: recorded, tried again or given up, told, and perhaps the end of its kind of runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from orchestrator.attempts import (
    AttemptLedger,
    CircuitBreaker,
    make_failure,
    pretraining_retries,
    pretraining_words,
)
from orchestrator.flight import Flight, Options
from orchestrator.outcome import FailureBoard, first_line
from orchestrator.pool import Job
from orchestrator.progress import Progress, Tally
from orchestrator.scheduler import Scheduler
from orchestrator.types import Failure, FailureClass, GroupTask, PretrainTask, Store, Tracker


@dataclass(kw_only=True)
class Aftermath:
    """``stopping`` says that nothing is to be tried again; ``task_id`` gives fresh ones."""

    store: Store
    tracker: Tracker
    scheduler: Scheduler
    progress: Progress
    tally: Tally
    options: Options
    stopping: Callable[[], bool]
    task_id: Callable[[], str]
    failures: dict[str, Failure] = field(default_factory=dict)
    board: FailureBoard = field(default_factory=FailureBoard)
    again: FailureBoard = field(default_factory=lambda: FailureBoard("tried again"))

    def __post_init__(self) -> None:
        self.ledger = AttemptLedger(extra_retries=self.options.extra_retries)
        self.breaker = CircuitBreaker(self.options.breaker)
        self._pretraining: dict[str, int] = {}

    def run_failed(self, flight: Flight, job: Job, failure: Failure, *, group_size: int) -> None:
        """One run of a flight of ``group_size`` open runs failed."""
        assert isinstance(flight.task, GroupTask)
        run_id = job.run.run_id
        attempt = flight.task.attempts[run_id]
        verdict = self.ledger.judge(
            run_id, failure, group_size=group_size, node=flight.slot.node, width=flight.task.width
        )
        if verdict.again and not self.stopping():
            kept = self._record(job, attempt, _no_verdict(failure))
            if line := self.again.add(job.run, replace(failure, log_path=kept.log_path)):
                self.progress.note(line)
            job.limit = verdict.limit if verdict.limit is not None else job.limit
            job.narrow |= verdict.narrow
            job.avoid = job.avoid | {verdict.avoid} if verdict.avoid else job.avoid
            self.scheduler.add(job)
            return
        failure = _no_verdict(failure, "the sweep was stopped") if verdict.again else failure
        recorded = self._record(job, attempt, failure)
        self.tally.cost_left -= job.cost
        if failure.kind is not FailureClass.CANCELLED:
            self._given_up(job, recorded)

    def pretraining_failed(self, task: PretrainTask, failure: Failure) -> str:
        """A checkpoint was not made; the message for the outcome if its runs have to wait for the next sweep."""
        count = self._pretraining[task.key] = self._pretraining.get(task.key, 0) + 1
        if not self.stopping() and count <= pretraining_retries(failure.kind):
            self.progress.note(f"pretraining {task.key}: {first_line(failure.message)}; tried again")
            again = replace(task, task_id=self.task_id())
            self.scheduler.add_pretraining(again, cost=0.0, priority=self.options.priority, gpu=self.options.gpu)
            return ""
        if failure.kind is FailureClass.CANCELLED:
            return ""
        dropped = self.scheduler.drop_waiting(task.key)
        said = f"pretraining {task.key} failed: {pretraining_words(failure)}"
        self.progress.note(f"{said}\n{dropped} runs that start from it stay pending")
        return f"pretraining {task.key} failed: {failure.message}"

    def _given_up(self, job: Job, failure: Failure) -> None:
        self.failures[job.run.run_id] = failure
        self.tally.failed += 1
        line = self.board.add(job.run, failure)
        if line:
            self.progress.note(line)
        if self.breaker.failed(job.kind, failure):
            self.scheduler.stop(job.kind)
            self.progress.note(
                f"stopped: the first {self.breaker.threshold} failures of {' / '.join(map(str, job.kind))} are the "
                f"same [{failure.signature}]; its other runs stay pending"
            )

    def _record(self, job: Job, attempt: int, failure: Failure) -> Failure:
        failure = replace(failure, log_path=self.store.log_path(job.run.run_id, attempt))
        self.store.fail(job.run.run_id, attempt, failure)
        self.tracker.run_failed(job.run, attempt, failure)
        return failure


def no_result() -> Failure:
    """For a task that ended without a word on some of its runs."""
    return make_failure(FailureClass.ERROR, "the worker ended without a result for this run")


def _no_verdict(failure: Failure, then: str = "tried again") -> Failure:
    """How a failure is kept that leaves further tries: if the driver ends before them, the run is still to do."""
    return replace(failure, kind=FailureClass.CANCELLED, message=f"{failure.kind.value}, {then}: {failure.message}")
