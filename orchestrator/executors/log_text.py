"""What a task prints belongs to each of its runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from orchestrator.types import Event, GroupTask, LogText, PretrainTask, SlotLost, Task, TaskMessage


def log_texts(task: Task, text: str) -> Iterator[LogText]:
    """``text`` in the log of each of the task's runs."""
    for run in task.runs if isinstance(task, GroupTask) else ():
        yield LogText(run_id=run.run_id, text=text)


def with_last_words(task: Task, text: str, death: Sequence[Event]) -> list[Event]:
    """The events of a worker's ``death`` at ``task``, and the ``text`` that it printed last.

    It goes into the logs of the task's runs. A pretraining has no log: there it goes with the failure.
    """
    if not text:
        return list(death)
    said = f"--- the worker died; the last that it printed:\n{text}"
    if isinstance(task, PretrainTask):
        return [replace(e, failure=replace(e.failure, traceback=said)) if isinstance(e, SlotLost) else e for e in death]
    return [*(TaskMessage(task_id=task.task_id, message=m) for m in log_texts(task, said)), *death]
