"""A cluster in virtual time: what the scheduler and the driver do at sizes that no test machine has.

Workers have memory, speed and bad luck drawn from a seed; hosts join and die. The driver's code is the real one.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.attempts import make_failure
from orchestrator.types import (
    Event,
    Failure,
    FailureClass,
    GroupTask,
    MemoryMeasured,
    PlannedRun,
    PretrainTask,
    ProbeTask,
    RunFinished,
    Slot,
    SlotJoined,
    SlotLost,
    Task,
    TaskEnded,
    TaskMessage,
)


@dataclass(frozen=True, kw_only=True)
class Card:
    """A kind of GPU; a card's speed is drawn between ``slowest`` and ``fastest``."""

    name: str = "H100"
    memory_bytes: int = 80 * 2**30
    slowest: float = 0.98
    fastest: float = 1.02


@dataclass(frozen=True, kw_only=True)
class World:
    """What the simulated cluster is like; times in seconds, memory in bytes, probabilities for each group.

    ``seconds`` gives a run's duration on a card of speed 1; each host has one kind of ``cards``, drawn for it.
    ``losses_per_hour`` are of a worker at work, ``deaths_per_hour`` of a host. ``group_gain``: a group of width R takes
    R ** group_gain times as long as one run.
    """

    seconds: Callable[[PlannedRun], float]
    cards: Sequence[Card] = (Card(),)
    losses_per_hour: float = 0.0
    deaths_per_hour: float = 0.0
    network_bytes: int = 2 * 2**30
    run_bytes: int = 4 * 2**30
    load_seconds: float = 5.0
    probe_seconds: float = 2.0
    group_gain: float = 1.0
    lose_worker: float = 0.0
    fail_run: float = 0.0
    restart_seconds: float = 15.0
    notice_seconds: float = 15.0


@dataclass
class SimulatedExecutor:
    """``hosts`` of ``gpus`` cards each; ``joins`` and ``deaths`` are (time, host) pairs."""

    world: World
    hosts: int
    gpus: int = 8
    joins: Sequence[tuple[float, int]] = ()
    deaths: Sequence[tuple[float, int]] = ()
    seed: int = 0
    trouble: str = ""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.time = 0.0
        self.busy: dict[str, float] = {}
        self.capacity: list[tuple[float, float]] = []  # (time, change of total speed)
        self.speed: dict[str, float] = {}
        self.resident: dict[str, str] = {}
        self.tasks: dict[str, tuple[Task, Slot]] = {}
        self._heap: list[tuple[float, int, Callable[[], list[Event]]]] = []
        self._ticket = itertools.count()
        self._by_host: dict[int, dict[str, Slot]] = {}
        self.kinds = [self.random.choice(self.world.cards) for _ in range(self.hosts)]
        later = {host for _, host in self.joins}
        for host in range(self.hosts):
            if host not in later:
                self._at(0.0, lambda host=host: self._join(host))
        for when, host in self.joins:
            self._at(when, lambda host=host: self._join(host))
        for when, host in self.deaths:
            self._at(when, lambda host=host: self._die(host))

    # The protocol

    def start(self, task: Task, slot: Slot) -> None:
        if slot.slot_id not in self._by_host.get(int(slot.node.removeprefix("host")), {}):
            return  # dead, which the driver does not know yet
        self.tasks[task.task_id] = (task, slot)
        loading = self._loading(task, slot)
        if isinstance(task, GroupTask):
            each = sum(self.world.seconds(run) for run in task.runs) / len(task.runs)
            work = each * _width(task) ** self.world.group_gain
            if self._too_large(task, slot):
                self._at(self.time + loading, lambda: self._end(task, slot, _oom()))
                return
        else:
            work = self.world.probe_seconds if isinstance(task, ProbeTask) else 60.0
        duration = loading + work / self.speed[slot.slot_id]
        if (moment := self._loss(duration)) is not None:
            self._at(self.time + moment, lambda: self._crash(task, slot))
            return
        self._at(self.time + duration, lambda: self._finish(task, slot, duration))

    def poll(self, timeout: float) -> Sequence[Event]:
        """Jumps to the next thing that happens; all that happens at that moment."""
        events: list[Event] = []
        while self._heap and not events:
            self.time = max(self.time, self._heap[0][0])
            while self._heap and self._heap[0][0] <= self.time:
                events += heapq.heappop(self._heap)[2]()
        if not events:
            self.time += timeout
        return events

    def cancel(self, task_id: str) -> None:
        if task_id in self.tasks:
            task, slot = self.tasks[task_id]
            failure = make_failure(FailureClass.CANCELLED, "cancelled")
            self._at(self.time, lambda: self._end(task, slot, failure))

    def expected(self) -> int:
        return sum(map(len, self._by_host.values()))

    def want(self, tasks: int) -> None:
        return

    def excuse(self) -> str:
        return ""

    def now(self) -> float:
        return self.time

    def close(self) -> None:
        self._heap.clear()

    def lower_bound(self, work: float) -> float:
        """No schedule does ``work`` card-seconds sooner, even without loading, losses or unequal ends."""
        speed, done, before = 0.0, 0.0, 0.0
        for moment, change in sorted(self.capacity):
            gained = speed * (moment - before)
            if speed > 0 and done + gained >= work:
                break
            done, before, speed = done + gained, moment, speed + change
        return before + (work - done) / speed if speed > 0 else float("inf")

    # What happens

    def _loading(self, task: Task, slot: Slot) -> float:
        """Seconds until the network is on the card, if it is not."""
        if isinstance(task, PretrainTask):
            return 0.0
        model = (task.run if isinstance(task, ProbeTask) else task.runs[0]).config.model
        before, self.resident[slot.slot_id] = self.resident.get(slot.slot_id), model
        return self.world.load_seconds if before != model else 0.0

    def _loss(self, duration: float) -> float | None:
        """When a task that takes so long loses its worker, if it does."""
        if self.random.random() < self.world.lose_worker:
            return duration * self.random.random()
        moment = self._next(self.world.losses_per_hour)
        return moment if moment < duration else None

    def _next(self, per_hour: float) -> float:
        """Seconds until something happens that happens so often."""
        return self.random.expovariate(per_hour / 3600) if per_hour else float("inf")

    def _join(self, host: int) -> list[Event]:
        if (death := self._next(self.world.deaths_per_hour)) < float("inf"):
            self._at(self.time + death, lambda: self._die(host))
        return [self._new_slot(host, number) for number in range(self.gpus)]

    def _new_slot(self, host: int, number: int) -> SlotJoined:
        card = self.kinds[host]
        slot = Slot(
            slot_id=f"host{host}/gpu{number}#{next(self._ticket)}",
            node=f"host{host}",
            device="cuda:0",
            gpu_name=card.name,
            memory_bytes=card.memory_bytes,
        )
        self.speed[slot.slot_id] = self.random.uniform(card.slowest, card.fastest)
        self.capacity.append((self.time, self.speed[slot.slot_id]))
        self._by_host.setdefault(host, {})[slot.slot_id] = slot
        return SlotJoined(slot=slot)

    def _die(self, host: int) -> list[Event]:
        """Its cards stop now; that they are lost is noticed a little later."""
        gone = self._by_host.pop(host, {})
        for slot_id in gone:
            self.capacity.append((self.time, -self.speed[slot_id]))
        lost = [t for t, (_, slot) in self.tasks.items() if slot.slot_id in gone]
        for task_id in lost:
            del self.tasks[task_id]
        failure = make_failure(FailureClass.NODE_LOST, f"host{host} is gone")
        events: list[Event] = [SlotLost(slot_id=slot_id, failure=failure) for slot_id in gone]
        self._at(self.time + self.world.notice_seconds, lambda: events)
        return []

    def _crash(self, task: Task, slot: Slot) -> list[Event]:
        if self.tasks.pop(task.task_id, None) is None:
            return []
        host = int(slot.node.removeprefix("host"))
        number = int(slot.slot_id.split("/gpu")[1].split("#")[0])
        self._by_host[host].pop(slot.slot_id)
        self.capacity.append((self.time, -self.speed[slot.slot_id]))
        self._at(
            self.time + self.world.restart_seconds,
            lambda: [self._new_slot(host, number)] if host in self._by_host else [],
        )
        failure = make_failure(FailureClass.WORKER_LOST, "the worker's process died")
        return [SlotLost(slot_id=slot.slot_id, failure=failure)]

    def _finish(self, task: Task, slot: Slot, duration: float) -> list[Event]:
        if task.task_id not in self.tasks:
            return []
        self.busy[slot.slot_id] = self.busy.get(slot.slot_id, 0.0) + duration
        if isinstance(task, ProbeTask):
            peaks = [MemoryMeasured(runs=runs, peak_bytes=self._bytes(runs)) for runs in (1, 2)]
            return [*(TaskMessage(task_id=task.task_id, message=p) for p in peaks), *self._end(task, slot, None)]
        if not isinstance(task, GroupTask):
            return self._end(task, slot, None)
        if self.random.random() < self.world.fail_run:
            return self._end(task, slot, make_failure(FailureClass.ERROR, "RuntimeError: drawn to fail"))
        row = self._row(task, duration)
        events: list[Event] = [
            TaskMessage(task_id=task.task_id, message=RunFinished(run_id=run.run_id, row=row)) for run in task.runs
        ]
        return events + self._end(task, slot, None)

    def _row(self, task: GroupTask, duration: float) -> dict[str, Any]:
        return {
            "images": 1000,
            "seconds": duration / _width(task),
            "group_size": _width(task),
            "group_memory_bytes": self._bytes(_width(task)),
        }

    def _end(self, task: Task, slot: Slot, failure: Failure | None) -> list[Event]:
        if self.tasks.pop(task.task_id, None) is None:
            return []
        return [TaskEnded(task_id=task.task_id, slot_id=slot.slot_id, failure=failure)]

    def _too_large(self, task: GroupTask, slot: Slot) -> bool:
        return self._bytes(_width(task)) > slot.memory_bytes

    def _bytes(self, runs: int) -> int:
        return self.world.network_bytes + runs * self.world.run_bytes

    def _at(self, when: float, what: Callable[[], list[Event]]) -> None:
        heapq.heappush(self._heap, (when, next(self._ticket), what))


def _width(task: GroupTask) -> int:
    return max(task.width, len(task.runs))


def _oom() -> Failure:
    return make_failure(FailureClass.CUDA_OOM, "CUDA out of memory")
