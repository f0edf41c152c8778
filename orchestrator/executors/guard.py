"""Runs a task so that no exception escapes, and what it prints becomes messages."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from typing import TextIO

from orchestrator.attempts import classify
from orchestrator.executors.log_text import log_texts
from orchestrator.executors.notices import heard
from orchestrator.types import Failure, Message, Notice, Task
from orchestrator.worker import WorkerState, execute


class Tee(io.StringIO):
    """Text written is kept, and goes on to ``stream`` (which Ray saves, even of a process that crashes)."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self.stream = stream

    def write(self, text: str) -> int:
        if self.stream is not None:
            self.stream.write(text)
            self.stream.flush()
        return super().write(text)


def guarded(task: Task, state: WorkerState) -> Iterator[Message | Failure]:
    """The task's messages; if it failed as a whole, its ``Failure`` comes last."""
    try:
        yield from execute(task, state)
    except Exception as error:
        state.recover()
        yield classify(error)


def captured(task: Task, state: WorkerState, *, echo: bool = False) -> Iterator[Message | Failure]:
    """``guarded``, with printed text handed on as ``LogText`` of every run of the group.

    With ``echo`` the text also goes where it would have gone.
    """
    messages = guarded(task, state)
    while True:
        text, told = Tee(sys.stdout if echo else None), []
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text), heard(told):
            message = next(messages, None)
        yield from (Notice(text=line) for line in told)
        printed = text.getvalue()
        if isinstance(message, Failure):
            printed += message.traceback
        if printed:
            yield from log_texts(task, printed)
        if message is None:
            return
        yield message
