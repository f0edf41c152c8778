"""What a driver does now and then: timeouts, the wait for slots, what is shown, what is flushed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.attempts import make_failure
from orchestrator.flight import Flight, Options
from orchestrator.grouping import MemoryModel
from orchestrator.progress import Progress, Tally, Throughput
from orchestrator.scheduler import Scheduler
from orchestrator.types import Executor, FailureClass, Store, Tracker
from orchestrator.waiting import Waiting

_FLUSH_SHARE = 20
"""Flushing takes at most one part in so many of the time, however slow the store is."""


@dataclass(kw_only=True)
class Upkeep:
    """Looks after one sweep; ``flights`` is the driver's own dictionary."""

    store: Store
    tracker: Tracker
    executor: Executor
    scheduler: Scheduler
    progress: Progress
    tally: Tally
    options: Options
    memory: MemoryModel
    flights: Mapping[str, Flight]
    throughput: Throughput = field(default_factory=Throughput)
    waiting: Waiting = field(init=False)
    _stuck_since: float | None = None
    _flush_due: float = 0.0

    def __post_init__(self) -> None:
        self.waiting = Waiting(self.progress.note)

    def look(self) -> str:
        """One round; why the sweep cannot go on, if it cannot."""
        now = self.executor.now()
        self._time_out(now)
        self._show(now)
        if now >= self._flush_due:
            before = time.monotonic()
            self.flush()
            self._flush_due = now + max(self.options.flush_seconds, _FLUSH_SHARE * (time.monotonic() - before))
        return self._stuck(now)

    def flush(self) -> None:
        self.store.flush()
        self.memory.save()

    def _show(self, now: float) -> None:
        s = self.scheduler
        waits = "" if self.flights else self.executor.excuse()
        self.waiting.hear(waits, now)
        self.tally.banner = "; ".join(filter(None, (waits, self.tracker.degraded())))
        self.tally.slots = s.slots
        self.tally.images_per_second = self.throughput.rate(now)
        self.tally.estimate(now)
        self.executor.want(s.pending + s.waiting + s.pretraining + len(self.flights))
        self.progress.update(self.tally)

    def _time_out(self, now: float) -> None:
        limit = self.options.timeout
        if limit is None:
            return
        late = [f for f in self.flights.values() if now - f.since > limit and f.ending is None]
        for flight in late:
            flight.ending = make_failure(FailureClass.TIMEOUT, f"no result within {limit:g} s")
            self.executor.cancel(flight.task.task_id)

    def _stuck(self, now: float) -> str:
        s = self.scheduler
        if self.flights or self.executor.excuse() or not (s.pending or s.pretraining):
            self._stuck_since = None
            return ""
        if self._stuck_since is None:
            self._stuck_since = now
        if now - self._stuck_since <= self.options.stuck_seconds:
            return ""
        wanted = f"a {self.options.gpu} GPU" if self.options.gpu else "any worker"
        trouble = f". {self.executor.trouble}" if self.executor.trouble else ""
        return (
            f"waited {self.options.stuck_seconds:g} s for {wanted}; there are {s.slots} workers and none fits{trouble}"
        )
