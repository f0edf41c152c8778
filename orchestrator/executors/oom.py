"""Whether the kernel ended a process for lack of memory: it says so to nobody but its own counter."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

VMSTAT = "/proc/vmstat"
EXPLAINS_SECONDS = 30.0
"""How long before a worker's death is noticed the end that explains it may have been heard of, from another worker."""

ANSWER_SECONDS = 15.0
"""How long a host is given to tell its counter: a process has to start there, perhaps with little memory."""


def oom_kills() -> int:
    """Processes that this host's kernel has ended for lack of memory since it started, those in containers too.

    0 where it does not say.
    """
    try:
        with open(VMSTAT, encoding="ascii") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    except (OSError, ValueError, IndexError):
        return 0


@dataclass
class Kills:
    """What one host's kernel has ended for lack of memory, as the workers there tell. One end explains one death.

    ``unexplained`` has the time at which each was heard of; those before the first word of the host are not known.
    """

    latest: int | None = None
    unexplained: list[float] = field(default_factory=list)

    def hear(self, count: int, now: float) -> None:
        """The host's counter is at ``count``."""
        if self.latest is not None:
            self.unexplained += [now] * (count - self.latest)
        self.latest = max(count, self.latest or 0)

    def explain(self, noticed: float) -> bool:
        """Whether one is left that may have been the death noticed at that time; it is taken."""
        self.unexplained = [heard for heard in self.unexplained if heard >= noticed - EXPLAINS_SECONDS]
        return bool(self.unexplained and self.unexplained.pop(0))


@dataclass
class Inquiry:
    """Asks the host of a worker whose death was ``noticed`` (time.monotonic()) for its counter: ``after``."""

    noticed: float
    after: int | None = None
    asked: Any = None

    @classmethod
    def at(cls, node_id: str, *, here: bool) -> Inquiry:
        """``here``: the host is this one. Elsewhere a tiny task of no resources looks."""
        noticed = time.monotonic()
        if here:
            return cls(noticed, after=oom_kills())
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        place = NodeAffinitySchedulingStrategy(node_id, soft=False)
        look = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=place)(oom_kills)
        return cls(noticed, asked=look.remote())

    def over(self) -> bool:
        """Whether the answer is there, or there will be none."""
        if self.asked is None:
            return True
        import ray

        if not ray.wait([self.asked], timeout=0)[0]:
            return time.monotonic() > self.noticed + ANSWER_SECONDS
        try:
            self.after = ray.get(self.asked)
        except ray.exceptions.RayError:
            pass  # the host went as well
        self.asked = None
        return True
