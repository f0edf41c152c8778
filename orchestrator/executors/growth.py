"""What a sweep asks of a cluster that grows on demand, and how long it waits for that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

KIND = "accelerator_type:"
GROW_SECONDS = 3600.0
"""A sweep waits so long for a host since it asked for one, or since it last had one more or one less."""


@dataclass(kw_only=True)
class Growth:
    """So many workers were asked for, of ``bundle`` (Ray's resources) each; ``since`` when nothing has changed.

    ``able``: the cluster has an autoscaler. Where there is none, asking does no harm, and waiting no good.
    """

    workers: int
    bundle: Mapping[str, float]
    since: float
    able: bool = True
    _there: int = 0

    @property
    def _short(self) -> bool:
        return self.able and self._there < self.workers

    @property
    def asked(self) -> str:
        """In words."""
        each = ", each with " if self.workers > 1 else " with "
        return f"the autoscaler was asked for {self.workers} worker{'s' * (self.workers > 1)}{each}{words(self.bundle)}"

    def see(self, workers: int, now: float) -> None:
        """There are so many workers now, those included that start."""
        if workers != self._there:
            self._there, self.since = workers, now

    def waits(self, now: float) -> bool:
        """Whether hosts may still come."""
        return self._short and now - self.since <= GROW_SECONDS

    def trouble(self, now: float) -> str:
        """Why no host came, once it is too late; else empty."""
        if not self._short or self.waits(now):
            return ""
        kind = next((f", with the resource {name}" for name in self.bundle if name.startswith(KIND)), "")
        return f"{self.asked} {(now - self.since) / 60:.0f} min ago. Does it have hosts of that kind{kind}?"


def words(bundle: Mapping[str, float]) -> str:
    """Ray's resources in a person's words: ``1 GPU of type H100, 2 CPU cores and 16 GB``."""
    parts = []
    for name, amount in bundle.items():
        if name == "memory":
            parts.append(f"{amount / 2**30:.3g} GB")
        elif name == "CPU":
            parts.append(f"{amount:g} CPU core{'s' * (amount != 1)}")
        elif not name.startswith(KIND):
            kind = next((k.partition(":")[2] for k in bundle if k.startswith(KIND)), "")
            parts.append(f"{amount:g} {name}{f' of type {kind}' if kind else ''}")
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
