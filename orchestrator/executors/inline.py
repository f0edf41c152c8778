"""Runs groups in this process, one after the other: no Ray, easy to debug, what notebooks and tests use."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from orchestrator.attempts import make_failure
from orchestrator.executors.guard import captured
from orchestrator.types import (
    Event,
    Failure,
    FailureClass,
    Message,
    Slot,
    SlotJoined,
    Task,
    TaskEnded,
    TaskMessage,
)
from orchestrator.worker import WorkerState


class InlineExecutor:
    """One slot: this process. A task advances while ``poll`` is called."""

    def __init__(self, state: WorkerState | None = None) -> None:
        self.state = state or WorkerState()
        self.trouble = ""
        device = self.state.device
        memory = 0
        if device.type == "cuda":
            import torch

            memory = torch.cuda.get_device_properties(device).total_memory
        self.slot = Slot(
            slot_id="inline",
            node="here",
            device=str(device),
            gpu_name=self.state.device_name if memory else "",
            memory_bytes=memory,
        )
        self._events: list[Event] = [SlotJoined(slot=self.slot)]
        self._task: Task | None = None
        self._messages: Iterator[Message | Failure] | None = None

    def start(self, task: Task, slot: Slot) -> None:
        assert self._task is None, f"{self._task} is still running"
        self._task = task
        self._messages = captured(task, self.state)

    def poll(self, timeout: float) -> Sequence[Event]:
        """Events until ``timeout`` has passed or the task is over."""
        events, self._events = self._events, []
        until = time.monotonic() + timeout
        while self._task is not None and self._messages is not None and time.monotonic() < until:
            message = next(self._messages, None)
            if message is None or isinstance(message, Failure):
                events.append(TaskEnded(task_id=self._task.task_id, slot_id=self.slot.slot_id, failure=message))
                self._task = self._messages = None
            else:
                events.append(TaskMessage(task_id=self._task.task_id, message=message))
        return events

    def cancel(self, task_id: str) -> None:
        if self._task is not None and self._task.task_id == task_id:
            failure = make_failure(FailureClass.CANCELLED, "cancelled")
            self._events.append(TaskEnded(task_id=task_id, slot_id=self.slot.slot_id, failure=failure))
            self._task = self._messages = None
            self.state.ahead.stop()

    def expected(self) -> int:
        return 1

    def want(self, tasks: int) -> None:
        return

    def excuse(self) -> str:
        return ""

    def now(self) -> float:
        return time.monotonic()

    def close(self) -> None:
        self._task = self._messages = None
        self.state.ahead.stop()
