"""Reads ahead: while a worker runs a group, the image sets of its next groups are prepared.

A thread opens one set after the other, as a run would, and child processes decode it (``deyo.decode_children``). No
run depends on it: what is not done when a run needs it, or failed, that run meets and does itself. One worker of a
host reads ahead at a time, with all the processes that it may start; where room is scarce, none does.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from deyo.benchmarks.base import BaseBenchmark
from deyo.cache import NotAheadError
from deyo.cache_build import locked
from orchestrator import engine
from orchestrator.grouping import images_key, needs_source, source_keys
from orchestrator.rows import canonical
from orchestrator.types import GroupTask, ProbeTask, RunConfig, Task

if TYPE_CHECKING:
    from orchestrator.worker import WorkerState

_TURN_SECONDS = 0.2  # between looks whether another worker of the host is done


class _TakenError(Exception):
    """Another worker of this host reads ahead."""


@dataclass(kw_only=True, eq=False)
class Wish:
    """The images of ``config``, of a ``benchmark`` that shares what it opens with the worker's. ``over``: given up."""

    keys: frozenset[Hashable]
    config: RunConfig
    benchmark: BaseBenchmark
    over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.benchmark = copy.copy(self.benchmark)
        self.benchmark.ahead, self.benchmark.progress = True, self._look

    def prepare(self) -> None:
        """Whatever keeps a set from being prepared is for the run that needs it to say."""
        config = self.config
        with contextlib.suppress(Exception):
            engine.images_for(self.benchmark, config.scenario, config.corruption, config.severity, config.corruptions)
        if needs_source(config) and not self.over.is_set():
            with contextlib.suppress(Exception):
                self.benchmark.source_images()

    def _look(self, *_: Any) -> None:
        if self.over.is_set():
            raise NotAheadError("given up")


class Ahead:
    """What one worker prepares for its next tasks. Its thread lives as long as there is something to do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[Wish] = deque()
        self._done: set[Hashable] = set()
        self._now: Wish | None = None
        self._thread: threading.Thread | None = None

    def begin(self, task: Task) -> None:
        """``task`` begins: from now on nothing is prepared but what it needs itself, until it wants more."""
        keys = set().union(*(_keys(task, config) for config in _own(task)))
        with self._lock:
            self._queue.clear()
            if self._now is not None and not self._now.keys & (keys - self._done):
                self._now.over.set()

    def want(self, task: GroupTask | ProbeTask, state: WorkerState) -> None:
        """The images of ``task`` are open: now prepare what it names for later."""
        with self._lock:
            self._done.update(*(_keys(task, config) for config in _own(task)))
            under_way = self._now is not None and not self._now.over.is_set()
            known = self._done | (self._now.keys if under_way else set())
        wishes = [wish for config in task.ahead if (wish := _wish(task, config, state, known)) is not None]
        with self._lock:
            self._queue = deque(wishes)
            if wishes and self._thread is None:
                self._thread = threading.Thread(target=self._work, name="images read ahead", daemon=True)
                self._thread.start()

    def stop(self, seconds: float = 10.0) -> None:
        """Give up all; waits up to ``seconds`` until nothing is under way any more."""
        with self._lock:
            self._queue.clear()
            if self._now is not None:
                self._now.over.set()
            thread = self._thread
        if thread is not None:
            thread.join(seconds)

    def _work(self) -> None:
        while (wish := self._next()) is not None:
            with contextlib.suppress(Exception):  # the cache cannot be written to
                _in_turn(wish)

    def _next(self) -> Wish | None:
        with self._lock:
            if self._now is not None and not self._now.over.is_set():
                self._done |= self._now.keys  # not tried again, however it went
            self._now = self._queue.popleft() if self._queue else None
            if self._now is None:
                self._thread = None
            return self._now


def _in_turn(wish: Wish) -> None:
    """Prepare it as soon as no other worker of the host reads ahead."""
    while not wish.over.is_set():
        try:
            with locked(wish.benchmark.cache / "prepared" / "ahead.lock", _taken):
                wish.prepare()
                return
        except _TakenError:
            wish.over.wait(_TURN_SECONDS)


def _taken() -> None:
    raise _TakenError


def _wish(task: GroupTask | ProbeTask, config: RunConfig, state: WorkerState, known: set[Hashable]) -> Wish | None:
    """What is to be done for ``config``, if it is anything: images that are decoded from files."""
    keys = _keys(task, config)
    if keys <= known:
        return None
    try:
        benchmark = state.benchmark(task, config.benchmark, config.benchmark_options)
    except Exception:
        return None  # a run will say so
    if not isinstance(benchmark, BaseBenchmark) or not benchmark.DECODES or benchmark.root is None:
        return None
    return Wish(keys=keys, config=config, benchmark=benchmark)


def _own(task: Task) -> list[RunConfig]:
    if isinstance(task, GroupTask):
        return [run.config for run in task.runs]
    return [task.run.config] if isinstance(task, ProbeTask) else []


def _keys(task: Task, config: RunConfig) -> frozenset[Hashable]:
    """Names what ``config`` reads, where ``task`` says that data lies, and with the same images left out."""
    skip_bad = isinstance(task, GroupTask | ProbeTask) and task.skip_bad
    where = canonical(dict(task.locations))
    return frozenset((key, where, skip_bad) for key in (images_key(config), *source_keys(config)))
