"""Runs, slots and executors for tests of scheduling and of the driver."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.attempts import make_failure
from orchestrator.driver import Driver, Options
from orchestrator.grouping import group_key, images_key, kind_key, network_key
from orchestrator.memory_store import MemoryStore
from orchestrator.pool import Job
from orchestrator.progress import SilentProgress
from orchestrator.tracking.null import NullTracker
from orchestrator.types import (
    Artifact,
    Event,
    Failure,
    FailureClass,
    GroupTask,
    Plan,
    PlannedRun,
    PretrainTask,
    RunConfig,
    RunFinished,
    RunStatus,
    Slot,
    SlotIdle,
    SlotJoined,
    SlotLost,
    Task,
    TaskEnded,
    TaskMessage,
)


def config(**changes: Any) -> RunConfig:
    values: dict[str, Any] = {
        "benchmark": "digits-c",
        "scenario": "mild",
        "model": "resnet50-gn",
        "method": "tent",
        "label": "tent",
        "settings": {"learning_rate": 0.001},
        "seed": 0,
        "batch_size": 64,
        "corruption": "contrast",
        "severity": 5,
    }
    return RunConfig(**{**values, **changes})


def planned(number: int = 0, status: RunStatus = RunStatus.NEW, **changes: Any) -> PlannedRun:
    return PlannedRun(run_id=f"{number:016x}", config=config(seed=number, **changes), status=status)


def job(number: int = 0, *, cost: float = 1.0, gpu: str = "", priority: int = 0, **changes: Any) -> Job:
    run = planned(number, **changes)
    return Job(
        run=run,
        group=group_key(run.config),
        network=network_key(run.config),
        images=images_key(run.config),
        kind=kind_key(run.config),
        cost=cost,
        gpu=gpu,
        priority=priority,
    )


def slot(name: str = "s0", *, node: str = "n0", gpu: str = "", memory: int = 0) -> Slot:
    return Slot(slot_id=name, node=node, device="cuda:0" if gpu else "cpu", gpu_name=gpu, memory_bytes=memory)


def failure(kind: FailureClass = FailureClass.ERROR, message: str = "RuntimeError: no") -> Failure:
    return make_failure(kind, message)


Answer = Callable[[GroupTask, Slot, int], Sequence[Any]]
"""What a worker does with its nth task: messages, then possibly a ``Failure``, or a ``SlotLost`` failure."""


@dataclass
class Lost:
    """The worker dies with this failure."""

    failure: Failure


def finish_all(task: GroupTask, slot: Slot, number: int) -> Sequence[Any]:
    return [RunFinished(run_id=run.run_id, row={"images": 10, "seconds": 0.1}) for run in task.runs]


@dataclass
class ScriptedExecutor:
    """Workers that answer by a function; time stands still unless ``tick`` is set."""

    answer: Answer = finish_all
    slots: Sequence[Slot] = (Slot(slot_id="s0", node="n0", device="cpu"),)
    respawn: bool = True
    tick: float = 0.0
    tasks: list[tuple[Task, Slot]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    hold: bool = False
    releases: bool = False
    because: str = ""
    trouble: str = ""
    wanted: int = 0
    _events: deque[Event] = field(default_factory=deque)
    _time: float = 0.0
    _respawned: int = 0

    def __post_init__(self) -> None:
        self._events.extend(SlotJoined(slot=s) for s in self.slots)

    def start(self, task: Task, slot: Slot) -> None:
        self.tasks.append((task, slot))
        if self.hold:
            return
        if isinstance(task, PretrainTask):
            self._answer_pretraining(task, slot)
            return
        answers = self.answer(task, slot, len(self.tasks) - 1)
        ended: Failure | None = None
        if self.releases and not any(isinstance(item, Lost | Failure) for item in answers):
            self._events.append(SlotIdle(task_id=task.task_id, slot_id=slot.slot_id))
        for item in answers:
            if isinstance(item, Lost):
                self._lose(slot, item.failure)
                return
            if isinstance(item, Failure):
                ended = item
            else:
                self._events.append(TaskMessage(task_id=task.task_id, message=item))
        self._events.append(TaskEnded(task_id=task.task_id, slot_id=slot.slot_id, failure=ended))

    def _answer_pretraining(self, task: PretrainTask, slot: Slot) -> None:
        artifact = Artifact(key=task.key, path="/nowhere/weights.safetensors", sha256="0" * 64, blob=b"weights")
        self._events.append(TaskMessage(task_id=task.task_id, message=artifact))
        self._events.append(TaskEnded(task_id=task.task_id, slot_id=slot.slot_id))

    def _lose(self, slot: Slot, failure: Failure) -> None:
        self._events.append(SlotLost(slot_id=slot.slot_id, failure=failure))
        if self.respawn:
            self._respawned += 1
            fresh = Slot(slot_id=f"r{self._respawned}", node=slot.node, device=slot.device)
            self._events.append(SlotJoined(slot=fresh))

    def emit(self, event: Event) -> None:
        self._events.append(event)

    def poll(self, timeout: float) -> Sequence[Event]:
        self._time += self.tick
        events = list(self._events)
        self._events.clear()
        return events

    def cancel(self, task_id: str) -> None:
        self.cancelled.append(task_id)

    def expected(self) -> int:
        return len(self.slots)

    def want(self, tasks: int) -> None:
        self.wanted = tasks

    def excuse(self) -> str:
        return self.because

    def now(self) -> float:
        return self._time

    def close(self) -> None:
        return


def make_driver(
    runs: Sequence[PlannedRun], executor: Any, *, store: Any = None, lockstep: bool = False, **options: Any
) -> Driver:
    return Driver(
        plan=Plan(sweep="test", runs=tuple(runs)),
        store=store or MemoryStore(),
        tracker=NullTracker(),
        executor=executor,
        options=Options(**options),
        progress=SilentProgress(),
        lockstep=lambda method: lockstep,
    )
