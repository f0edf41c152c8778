"""Pretraining on its own: the networks that a sweep's runs start from, made by the same workers as its runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.artifacts import keep_artifact
from orchestrator.attempts import pretraining_retries, pretraining_words
from orchestrator.driver import Options
from orchestrator.grouping import pretrain_key
from orchestrator.told import Told
from orchestrator.types import (
    Artifact,
    Event,
    Executor,
    Failure,
    FailureClass,
    Notice,
    PretrainTask,
    RunConfig,
    Slot,
    SlotJoined,
    SlotLost,
    TaskEnded,
    TaskMessage,
)
from orchestrator.waiting import Waiting

POLL_SECONDS = 0.5


def pretraining_tasks(configs: Iterable[RunConfig], options: Options) -> list[PretrainTask]:
    """One task for each network and pretraining seed that ``configs`` start from, in their order."""
    tasks: dict[str, PretrainTask] = {}
    for config in configs:
        if config.pretrain_seed is None or pretrain_key(config) in tasks:
            continue
        key = pretrain_key(config)
        tasks[key] = PretrainTask(
            task_id=f"pretrain-{len(tasks) + 1}",
            key=key,
            model=config.model,
            benchmark=config.benchmark,
            benchmark_options=config.benchmark_options,
            seed=config.pretrain_seed,
            locations=options.locations,
        )
    return list(tasks.values())


@dataclass(kw_only=True)
class Pretraining:
    """Tasks on their way through an executor. ``made`` and ``failed`` are by ``PretrainTask.key``."""

    tasks: Sequence[PretrainTask]
    executor: Executor
    cache: Path | None = None
    report: Callable[[str], None] = lambda line: None
    stuck_seconds: float = 300.0
    made: dict[str, Artifact] = field(default_factory=dict)
    failed: dict[str, Failure] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.waiting = list(self.tasks)
        self.running: dict[str, tuple[PretrainTask, Slot]] = {}
        self.free: list[Slot] = []
        self.tries: dict[tuple[str, FailureClass], int] = {}
        self.told = Told(self.report)

    def run(self) -> None:
        """Until every task has made its checkpoint or failed for good."""
        idle_since, words = self.executor.now(), Waiting(self.report)
        while self.waiting or self.running:
            while self.waiting and self.free:
                self._start(self.waiting.pop(0), self.free.pop(0))
            self.executor.want(len(self.waiting) + len(self.running))
            for event in self.executor.poll(POLL_SECONDS):
                self._handle(event)
            waits = "" if self.running or self.free else self.executor.excuse()
            words.hear(waits, self.executor.now())
            if self.running or self.free or waits:
                idle_since = self.executor.now()
            elif self.executor.now() - idle_since > self.stuck_seconds:
                self._give_up()
        self.told.close()

    def _start(self, task: PretrainTask, slot: Slot) -> None:
        self.running[task.task_id] = task, slot
        self.report(f"pretraining {task.key} on {slot.node} ({slot.device})")
        self.executor.start(task, slot)

    def _handle(self, event: Event) -> None:
        match event:
            case SlotJoined():
                self.free.append(event.slot)
            case TaskMessage() if isinstance(event.message, Artifact) and event.task_id in self.running:
                self._made(event.message)
            case TaskMessage() if isinstance(event.message, Notice):
                self.told.hear(event.message)
            case TaskEnded():
                self._ended(event.task_id, event.failure, slot_lives=True)
            case SlotLost():
                self.free = [slot for slot in self.free if slot.slot_id != event.slot_id]
                for task_id, (_, slot) in list(self.running.items()):
                    if slot.slot_id == event.slot_id:
                        self._ended(task_id, event.failure, slot_lives=False)

    def _made(self, artifact: Artifact) -> None:
        self.made[artifact.key] = kept = keep_artifact(artifact, self.cache)
        self.report(f"made {artifact.key}: {kept.path} (sha256 {kept.sha256[:12]})")

    def _ended(self, task_id: str, failure: Failure | None, *, slot_lives: bool) -> None:
        if task_id not in self.running:
            return
        task, slot = self.running.pop(task_id)
        if slot_lives:
            self.free.append(slot)
        if task.key in self.made:
            return
        failure = failure or Failure(kind=FailureClass.ERROR, message="the task ended without a checkpoint")
        count = self.tries[task.key, failure.kind] = self.tries.get((task.key, failure.kind), 0) + 1
        if count <= pretraining_retries(failure.kind):
            self.report(f"again {task.key}: {failure.kind}: {failure.message}")
            self.waiting.append(task)
        else:
            self.failed[task.key] = failure
            self.report(f"failed {task.key}: {failure.kind}: {pretraining_words(failure)}")

    def _give_up(self) -> None:
        for task in self.waiting:
            trouble = f". {self.executor.trouble}" if self.executor.trouble else ""
            message = f"no worker became free in {self.stuck_seconds:.0f} s{trouble}"
            self.failed[task.key] = Failure(kind=FailureClass.INFRASTRUCTURE, message=message)
        self.waiting = []
