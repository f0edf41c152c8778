"""What a person sees of a running sweep: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol, TextIO

COLD_SECONDS = 300.0
"""After so long a start the cold part of it no longer matters."""


@dataclass(kw_only=True)
class Tally:
    """Where a sweep stands. ``left`` counts runs neither done nor failed; ``eta`` in seconds, if known.

    ``cost_left`` and ``cost_done`` are the scheduler's estimates of runs to do and done in this call.
    """

    sweep: str
    total: int
    done: int = 0
    failed: int = 0
    running: int = 0
    slots: int = 0
    images_per_second: float = 0.0
    eta: float | None = None
    banner: str = ""
    cost_left: float = 0.0
    cost_done: float = 0.0
    _began: float | None = None
    _before: int = 0
    _ends: int = 0
    _last_end: float = 0.0
    _seen: float = 0.0
    _warm: tuple[float, float] = (0.0, 0.0)
    _speed: float | None = None

    def begin(self, now: float) -> None:
        """The first task starts."""
        if self._began is None:
            self._began, self._before = now, self.done + self.failed

    def estimate(self, now: float) -> None:
        """The time left, once what was done tells it; between two ends of runs the clock runs down.

        The first runs of each worker are cold (they load, decode and compile) and tell little: the speed is that of
        what was done after them, or of everything once the sweep is so old that a cold start no longer matters.
        """
        if self._began is None:
            return
        if self.cost_done > self._seen:
            self._seen, self._last_end = self.cost_done, now
            self._ends += 1
            self._learn(now, self._began)
        if self._speed is not None:
            self.eta = max(0.0, self.cost_left / self._speed - (now - self._last_end))

    def _learn(self, now: float, began: float) -> None:
        cold = max(1, self.slots)
        if self._ends <= cold:
            self._warm = now, self.cost_done
            since, cost = began, 0.0
            known = now - began > COLD_SECONDS and self.done + self.failed - self._before >= cold
        else:
            since, cost = self._warm
            known = self._ends >= 2 * cold
        if known and now > since:
            self._speed = (self.cost_done - cost) / (now - since)

    @property
    def left(self) -> int:
        return self.total - self.done - self.failed

    def line(self) -> str:
        parts = [f"{self.sweep}: {self.done}/{self.total} done", f"{self.failed} failed", f"{self.left} left"]
        parts.append(f"{self.running} running on {self.slots} worker{'s' * (self.slots != 1)}")
        if self.images_per_second:
            parts.append(f"{self.images_per_second:,.0f} images/s")
        if self.eta is not None and self.left:
            parts.append(f"{duration(self.eta)} left")
        if self.banner:
            parts.append(self.banner)
        return ", ".join(parts)


class Progress(Protocol):
    """Shows a sweep's tally; ``note`` prints a line that stays."""

    def update(self, tally: Tally) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self, tally: Tally) -> None: ...


@dataclass
class SilentProgress:
    """Keeps the notes and shows nothing: for use from Python."""

    notes: list[str] = field(default_factory=list)

    def update(self, tally: Tally) -> None:
        return

    def note(self, text: str) -> None:
        self.notes.append(text)

    def close(self, tally: Tally) -> None:
        return


@dataclass
class PlainProgress:
    """A line when something changed, at most one each ``every`` seconds."""

    stream: TextIO = field(default_factory=lambda: sys.stdout)
    every: float = 5.0
    _last: float = field(default=0.0)
    _shown: tuple[int, int] = (-1, -1)
    _line: str = ""

    def update(self, tally: Tally) -> None:
        state = (tally.done, tally.failed)
        if state == self._shown or time.monotonic() - self._last < self.every:
            return
        self._last, self._shown = time.monotonic(), state
        self.note(tally.line())

    def note(self, text: str) -> None:
        self._line = text
        print(text, file=self.stream, flush=True)

    def close(self, tally: Tally) -> None:
        if tally.line() != self._line:
            self.note(tally.line())


class RichProgress:
    """A bar that is drawn in place on a terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        self.console = Console()
        self.bar = Bar(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[detail]}"),
            console=self.console,
            transient=False,
        )
        self.task = None

    def update(self, tally: Tally) -> None:
        if self.task is None:
            self.task = self.bar.add_task(tally.sweep, total=tally.total, detail="")
            self.bar.start()
        self.bar.update(self.task, completed=tally.done + tally.failed, total=tally.total, detail=_detail(tally))

    def note(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False)

    def close(self, tally: Tally) -> None:
        self.update(tally)
        self.bar.stop()


def make_progress(*, quiet: bool = False) -> Progress:
    """The bar on a terminal, plain lines elsewhere, nothing if ``quiet``."""
    if quiet:
        return SilentProgress()
    return RichProgress() if sys.stdout.isatty() else PlainProgress()


@dataclass
class Throughput:
    """Images a second over the last ``window`` seconds."""

    window: float = 20.0
    _seen: deque[tuple[float, int]] = field(default_factory=deque)
    _sum: int = 0

    def add(self, now: float, images: int) -> None:
        if self._seen and now - self._seen[-1][0] < 0.1:
            at, count = self._seen.pop()
            self._seen.append((at, count + images))
        else:
            self._seen.append((now, images))
        self._sum += images

    def rate(self, now: float) -> float:
        while self._seen and now - self._seen[0][0] > self.window:
            self._sum -= self._seen.popleft()[1]
        if not self._seen:
            return 0.0
        return self._sum / max(now - self._seen[0][0], 1.0)


def duration(seconds: float) -> str:
    """``1 h 05 min``, ``3 min 20 s``, ``12 s``."""
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"


def _detail(tally: Tally) -> str:
    parts = [f"{tally.failed} failed"] if tally.failed else []
    parts.append(f"{tally.running} running")
    if tally.images_per_second:
        parts.append(f"{tally.images_per_second:,.0f} images/s")
    if tally.eta is not None and tally.left:
        parts.append(f"{duration(tally.eta)} left")
    if tally.banner:
        parts.append(tally.banner)
    return " · ".join(parts)
