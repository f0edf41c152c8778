"""What a driver is told, and what it knows of a task in flight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.pool import Job
from orchestrator.types import Failure, Slot, Task


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a sweep is run; nothing here decides a number.

    ``gpu``: the kind of GPU that runs ask for. ``group_size`` fixes the size of groups (None: from memory).
    ``timeout``: seconds after which an attempt is given up. ``breaker``: so many first failures with one
    signature stop a kind of runs (0: never). ``stuck_seconds``: how long to wait for a slot that fits where
    nothing says that one comes (``Executor.excuse``; on a cluster that grows that is so for an hour).
    """

    gpu: str = ""
    priority: int = 0
    group_size: int | None = None
    timeout: float | None = None
    extra_retries: int = 0
    breaker: int = 5
    locations: Mapping[str, str] = field(default_factory=dict)
    skip_bad: bool = False
    checkpoint_seconds: float = 120.0
    flush_seconds: float = 10.0
    stuck_seconds: float = 300.0


@dataclass(kw_only=True)
class Flight:
    """A task on a slot; ``open`` are its runs that neither finished nor failed yet.

    ``ending`` is why the driver itself gave it up (a timeout), whatever the executor reports. ``peaks`` are the bytes
    that a probe has measured by group size.
    """

    task: Task
    slot: Slot
    since: float
    open: dict[str, Job] = field(default_factory=dict)
    ending: Failure | None = None
    peaks: dict[int, int] = field(default_factory=dict)
