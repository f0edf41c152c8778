"""What a task prints belongs to each of its runs."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.types import GroupTask, LogText, Task


def log_texts(task: Task, text: str) -> Iterator[LogText]:
    """``text`` in the log of each of the task's runs."""
    for run in task.runs if isinstance(task, GroupTask) else ():
        yield LogText(run_id=run.run_id, text=text)
