"""Whether the kernel ended a process for lack of memory: it says so to nobody but its own counter."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

VMSTAT = "/proc/vmstat"
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
class Inquiry:
    """Asks the host of a worker that died for its counter, which was ``before`` when the worker was last heard."""

    before: int
    after: int | None = None
    asked: Any = None
    until: float = 0.0

    @classmethod
    def at(cls, node_id: str, before: int, *, here: bool) -> Inquiry:
        """``here``: the host is this one. Elsewhere a tiny task of no resources looks."""
        if here:
            return cls(before, after=oom_kills())
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        place = NodeAffinitySchedulingStrategy(node_id, soft=False)
        look = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=place)(oom_kills)
        return cls(before, asked=look.remote(), until=time.monotonic() + ANSWER_SECONDS)

    def over(self) -> bool:
        """Whether the answer is there, or there will be none."""
        if self.asked is None:
            return True
        import ray

        if not ray.wait([self.asked], timeout=0)[0]:
            return time.monotonic() > self.until
        try:
            self.after = ray.get(self.asked)
        except ray.exceptions.RayError:
            pass  # the host went as well
        self.asked = None
        return True

    @property
    def killed(self) -> bool:
        """Whether a process was ended for lack of memory meanwhile."""
        return self.after is not None and self.after > self.before
