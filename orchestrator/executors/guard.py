"""Runs a task so that no exception escapes, and what it prints becomes messages."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator

from orchestrator.attempts import classify
from orchestrator.types import Failure, GroupTask, LogText, Message, Task
from orchestrator.worker import WorkerState, execute


def guarded(task: Task, state: WorkerState) -> Iterator[Message | Failure]:
    """The task's messages; if it failed as a whole, its ``Failure`` comes last."""
    try:
        yield from execute(task, state)
    except GeneratorExit:
        raise
    except Exception as error:
        state.recover()
        yield classify(error)


def captured(task: Task, state: WorkerState) -> Iterator[Message | Failure]:
    """``guarded``, with printed text handed on as ``LogText`` of every run of the group."""
    messages = guarded(task, state)
    end: Message | Failure | None
    while True:
        text = io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            end = next(messages, None)
        if text.getvalue():
            yield from log_texts(task, text.getvalue())
        if end is None:
            return
        if isinstance(end, Failure) and end.traceback:
            yield from log_texts(task, end.traceback)
        yield end


def log_texts(task: Task, text: str) -> Iterator[LogText]:
    """``text`` in the log of each of the task's runs."""
    for run in task.runs if isinstance(task, GroupTask) else ():
        yield LogText(run_id=run.run_id, text=text)
