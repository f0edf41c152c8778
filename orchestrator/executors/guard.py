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
from orchestrator.types import Failure, FailureClass, Message, Notice, Task
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
    """The task's messages; if it failed as a whole, its ``Failure`` comes last.

    Where a GPU's memory did not suffice while graphs of earlier tasks were kept, it is begun once more without them.
    """
    others_kept = len(state.methods) > 0
    while True:
        failure, begun = None, False
        try:
            for message in execute(task, state):
                begun = True
                yield message
        except Exception as error:
            failure = classify(error)
        if failure is None:
            return
        _recover(state)  # here the exception is gone, and with it what its frames held
        if not (failure.kind is FailureClass.CUDA_OOM and others_kept) or begun or state.broken:
            yield failure
            return
        others_kept = False


def _recover(state: WorkerState) -> None:
    try:
        state.recover()
    except Exception:  # CUDA's own word that this process is lost; the failure before it says why
        state.broken = True


def captured(task: Task, state: WorkerState, *, echo: bool = False) -> Iterator[Message | Failure]:
    """``guarded``, with printed text handed on as ``LogText`` of every run of the group.

    With ``echo`` the text also goes where it would have gone.
    """
    messages = guarded(task, state)
    while True:
        text, told = Tee(sys.stdout if echo else None), list[Notice]()
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text), heard(told):
            message = next(messages, None)
        yield from told
        printed = text.getvalue()
        if isinstance(message, Failure):
            printed += message.traceback
        if printed:
            yield from log_texts(task, printed)
        if message is None:
            return
        yield message
