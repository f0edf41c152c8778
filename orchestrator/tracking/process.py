"""The publisher's process: ``python -m orchestrator.tracking.process``, started by ``MlflowTracker``.

It reads framed messages from standard input and writes its status as JSON lines to standard output. The
tracking URI comes in the environment (a password in it must not show in a process list). When the input ends
without a "close" the driver is dead: what shows as RUNNING is ended as KILLED, and the process exits.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from dataclasses import asdict
from typing import Any, BinaryIO

from orchestrator.tracking.frames import URI_VARIABLE, read_frames
from orchestrator.tracking.publisher import Publisher
from orchestrator.tracking.remote import OutageError, Remote
from orchestrator.tracking.source import StoreSource
from orchestrator.tracking.state import Status, SweepInfo

MAX_QUEUED_ROWS = 64 * 2**20  # bytes of rows that may wait while MLflow is slow
STATUS_SECONDS = 0.5
MAX_BACKOFF = 30.0
LAST_WORDS_SECONDS = 15.0

_EOF = ("eof",)


def main() -> None:
    """Serve one sweep until "close" or the end of the input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to answer
    os.nice(5)  # where cores are few, the runs come first
    statuses = _private_stdout()
    inbox = Inbox(sys.stdin.buffer)
    signal.signal(signal.SIGTERM, lambda *_: inbox.end())
    uri = os.environ.pop(URI_VARIABLE)
    try:
        Service(uri, inbox, statuses).serve()
    finally:
        sys.stderr.flush()
        os._exit(0)  # the reader may be inside a read of standard input, which an ordinary exit waits for


class Inbox:
    """Messages from the driver. The pipe is always drained; of too many rows, the newest are let go."""

    def __init__(self, stream: BinaryIO) -> None:
        self._queue: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._bytes = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def end(self) -> None:
        self._queue.put(_EOF)

    def take(self, timeout: float) -> tuple[Any, ...] | None:
        """The next message, or None if none came in time."""
        try:
            message = self._queue.get(timeout=timeout) if timeout > 0 else self._queue.get_nowait()
        except queue.Empty:
            return None
        if message[0] == "rows":
            with self._lock:
                self._bytes -= message[3].nbytes
        return message

    def _read(self, stream: BinaryIO) -> None:
        for message in read_frames(stream):
            self._put(message)
        self.end()

    def _put(self, message: tuple[Any, ...]) -> None:
        if message[0] == "rows":
            with self._lock:
                full = self._bytes + message[3].nbytes > MAX_QUEUED_ROWS
                self._bytes += 0 if full else message[3].nbytes
            if full:
                message = ("lost_rows", message[1], message[2])
        self._queue.put(message)


class Service:
    """Messages in, MLflow work between them, statuses out."""

    def __init__(self, uri: str, inbox: Inbox, statuses: Any) -> None:
        self._uri, self._inbox, self._statuses = uri, inbox, statuses
        self._publisher: Publisher | None = None
        self._info: SweepInfo | None = None
        self._early: list[tuple[Any, ...]] = []
        self._outage = ""
        self._failures = 0
        self._retry_at = 0.0
        self._said: dict[str, Any] = {}
        self._next_status = 0.0
        self._deadline: float | None = None

    def serve(self) -> None:
        while True:
            message = self._inbox.take(0 if self._work() else 0.1)
            while message is not None:
                if message[0] == "eof":
                    self._last_words()
                    return
                self._hear(message)
                message = self._inbox.take(0)
            self._say()
            if self._deadline is not None and self._over():
                return

    def _hear(self, message: tuple[Any, ...]) -> None:
        name, *arguments = message
        if name == "sweep":
            self._info = arguments[0]
        elif name == "close":
            self._deadline = time.monotonic() + arguments[0]
            self._retry_at = 0.0
        elif self._publisher is None:
            self._early.append(message)
        else:
            _tell(self._publisher, message)

    def _work(self) -> bool:
        """One piece of work; whether there may be more at once."""
        if self._info is None or time.monotonic() < self._retry_at:
            return False
        try:
            if self._publisher is None:
                self._connect(self._info)
                return True
            worked = self._publisher.step()
        except OutageError as error:
            self._suffer(str(error))
            return False
        except Exception as error:  # a fault of ours must not end the publishing of the rest
            traceback.print_exc()
            self._suffer(f"publisher: {type(error).__name__}: {error}")
            return False
        if worked:
            self._outage, self._failures = "", 0
        return worked

    def _connect(self, info: SweepInfo) -> None:
        remote = Remote(self._uri)
        self._publisher = Publisher(remote, StoreSource(info.root, info.sweep), info)
        for message in self._early:
            _tell(self._publisher, message)
        self._early = []

    def _suffer(self, why: str) -> None:
        if why != self._outage:
            print(f"{time.strftime('%FT%T')} {why}", file=sys.stderr, flush=True)
        self._outage = why
        self._failures += 1
        self._retry_at = time.monotonic() + min(MAX_BACKOFF, 0.5 * 2 ** min(self._failures, 10))

    def _over(self) -> bool:
        """After "close": whether all is published, or the patience is at its end."""
        publisher = self._publisher
        done = publisher is not None and publisher.idle()
        hopeless = bool(self._outage) and self._failures > 1
        if not done and not hopeless and time.monotonic() < (self._deadline or 0):
            return False
        if not done:
            self._last_words()
        self._say(force=True)
        return True

    def _last_words(self) -> None:
        """Leave nothing RUNNING, if MLflow lets us in the time that is left."""
        if self._publisher is None:
            return
        timer = threading.Timer(LAST_WORDS_SECONDS, os._exit, args=(1,))
        timer.daemon = True
        timer.start()
        try:
            self._publisher.abandon()
        except Exception as error:
            print(f"left as it is: {error}", file=sys.stderr, flush=True)
        timer.cancel()

    def _say(self, *, force: bool = False) -> None:
        if not force and time.monotonic() < self._next_status:
            return
        self._next_status = time.monotonic() + STATUS_SECONDS
        status = self._publisher.status() if self._publisher else Status(waiting=_finished(self._early))
        status.outage = self._outage
        text = asdict(status)
        if text != self._said or force:
            self._said = text
            try:
                self._statuses.write(json.dumps(text) + "\n")
                self._statuses.flush()
            except OSError:  # the driver is dead; the end of the input says so too
                pass


def _tell(publisher: Publisher, message: tuple[Any, ...]) -> None:
    name, *arguments = message
    try:
        if name == "sweep_finished":
            publisher.sweep_finished(*arguments)
        else:
            getattr(publisher.ledger, name)(*arguments)
    except Exception:  # one odd message must not cost the others
        traceback.print_exc()


def _finished(messages: list[tuple[Any, ...]]) -> int:
    return sum(m[0] == "run_finished" for m in messages)


def _private_stdout() -> Any:
    """The real standard output for statuses; whatever libraries print goes to standard error instead."""
    mine = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(mine, "w", encoding="utf-8")


if __name__ == "__main__":
    main()
