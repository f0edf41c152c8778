"""Ctrl-C once: stop in order. Twice: at once. SIGTERM is the same as Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


@contextlib.contextmanager
def stopping(stop: Callable[..., Any]) -> Iterator[None]:
    """While the block runs, the first SIGINT or SIGTERM calls ``stop``; the second ends the process.

    Outside the main thread, where Python allows no handlers, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = 0

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        seen += 1
        name = signal.Signals(number).name
        if seen > 1:
            os._exit(128 + number)
        sys.stderr.write(f"\n{name}: stopping; what is in flight is given up. Once more ends at once.\n")
        stop(message=f"stopped by {name}")

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """While the block runs, the first SIGTERM raises ``KeyboardInterrupt``; the second ends the process.

    Outside the main thread nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = False

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        if seen:
            os._exit(128 + number)
        seen = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def own_sigterm() -> Iterator[None]:
    """While the block runs, Ray leaves SIGTERM to the handler that this process has, if it has one.

    Those that ``ray.init`` would put end the process with 1 or 15, whatever it is to do first. What they tidy up,
    Ray's exit handlers do too.
    """
    from ray._private import utils

    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        yield
        return
    before = utils.set_sigterm_handler
    utils.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        utils.set_sigterm_handler = before
