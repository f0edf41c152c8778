"""Child processes that decode images straight into a memory-mapped array: Pillow in threads is bound to one core.

They load neither PyTorch nor the program that started them, and end with it, however that ends: see
``deyo.decode_child``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import deyo
from deyo.decode_child import READY
from deyo.types import DataError

CHILD_IMAGES = 512
"""Images for which a child is worth its start (0.15 s)."""

_LAST_SECONDS = 5.0

_LIVES = 2
"""Children that a part may cost before it is given up."""


class ChildGoneError(Exception):
    """A child ended in the middle of its work."""


class Child:
    """One process, which writes into the array of ``pixels`` (an .npy file). Raises OSError if it cannot start."""

    def __init__(self, pixels: Path, nice: int) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", "-m", "deyo.decode_child"],
            stdin=pipe,
            stdout=pipe,
            env=_environment(),
            start_new_session=True,  # a terminal's Ctrl-C is not for it
        )
        try:
            started = self._ask({"pixels": str(pixels), "nice": nice}) == READY
        except ChildGoneError:
            started = False
        if not started:
            self.close()
            raise OSError(f"{sys.executable} -m deyo.decode_child ended with {self.process.returncode}")

    def read(self, part: Any, start: int) -> list[int] | None:
        """Positions of ``part`` that could not be read into the rows from ``start``; None: none could.

        Raises ChildGoneError.
        """
        return self._ask((part, start))

    def _ask(self, request: Any) -> Any:
        requests, answers = self.process.stdin, self.process.stdout
        assert requests is not None
        assert answers is not None
        try:
            pickle.dump(request, requests)
            requests.flush()
            return pickle.load(answers)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_LAST_SECONDS)  # its pipes close before it has ended: how it ends says why
            raise ChildGoneError from error

    def close(self) -> None:
        """End it; what it is doing is given up."""
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        self.process.wait()


class Children:
    """Children for the array of ``pixels``, one for each thread that calls ``read`` at a time.

    ``nice``: by how much they let others go first.
    """

    def __init__(self, pixels: Path, *, nice: int = 0) -> None:
        self._pixels, self._nice = pixels, nice
        self._all: list[Child] = []
        self._free: list[Child] = []
        self._lock = threading.Lock()
        self._none = not sys.executable

    def __enter__(self) -> Children:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._none = True
        for child in self._all:
            child.close()

    def read(self, part: Any, start: int) -> list[int] | None:
        """Positions of ``part`` that could not be read into the rows from ``start``.

        None: it is for the caller to read, because reading raises or no child can work here. Where children died of
        it, raises MemoryError if they were killed, OSError if the array's disk is full, else DataError.
        """
        code: int | None = 0
        for _ in range(_LIVES):
            child = self._borrow()
            if child is None:
                return None
            try:
                unread = child.read(part, start)
            except ChildGoneError:
                child.close()
                code = child.process.returncode
                if code is not None and code > 0:  # nothing of the image's doing: it could not import something
                    self._none = True
                    return None
                continue
            with self._lock:
                self._free.append(child)
            return unread
        raise _death(code, part)

    def _borrow(self) -> Child | None:
        with self._lock:
            if self._free:
                return self._free.pop()
        if self._none:
            return None
        try:
            child = Child(self._pixels, self._nice)
        except OSError:
            self._none = True
            return None
        with self._lock:
            self._all.append(child)
        return child


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _environment() -> dict[str, str]:
    """This process's, with all that it imports from. NumPy's own threads would only take memory."""
    here = [os.getcwd() if entry == "" else entry for entry in sys.path if isinstance(entry, str)]
    path = [*here, str(Path(deyo.__file__).parent.parent)]
    single = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), **single}


def _death(code: int | None, part: Any) -> Exception:
    what = f"{_LIVES} processes that decoded images ended with {code} at {part.files[0]} to {part.files[-1]}"
    if code == -signal.SIGKILL:
        return MemoryError(f"{what}: killed, probably for lack of memory. Fewer --workers need less")
    if code == -signal.SIGBUS:
        return OSError(errno.ENOSPC, f"{what}: the disk has no room for the array")
    return DataError(what)
