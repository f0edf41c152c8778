"""Shares one cluster between several sweeps: by priority, evenly among equals.

Every driver on a shared cluster tells the broker how many workers it could use; the answer is how many it may have.
A driver over its share lets workers go as they finish their groups. The broker is one small actor without resources;
it ends when no driver has spoken to it for a minute.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass

import ray

NAME, NAMESPACE = "deyo-sweep-broker", "deyo-sweep"
FORGET_SECONDS = 20.0
_END_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What one driver asks for. ``capacity``: workers that the cluster could hold by its layout."""

    sweep: str
    priority: int
    wanted: int
    capacity: int
    kind: str = ""


def shares(claims: list[Claim]) -> dict[str, int]:
    """Workers for each sweep: higher priorities first, evenly among equals (of one kind of worker)."""
    found: dict[str, int] = {}
    for kind in {claim.kind for claim in claims}:
        rivals = [claim for claim in claims if claim.kind == kind]
        left = max(claim.capacity for claim in rivals)
        for priority in sorted({claim.priority for claim in rivals}, reverse=True):
            equals = sorted((c for c in rivals if c.priority == priority), key=lambda c: (c.wanted, c.sweep))
            for position, claim in enumerate(equals):
                fair = -(-left // (len(equals) - position))
                found[claim.sweep] = min(claim.wanted, fair)
                left -= found[claim.sweep]
    return found


class Broker:
    """Made into a detached, named actor by ``find_broker``."""

    def __init__(self) -> None:
        self._claims: dict[str, tuple[float, Claim]] = {}
        self._spoken = time.monotonic()
        threading.Thread(target=self._end_when_forgotten, daemon=True).start()

    def claim(self, claim: Claim) -> int:
        """How many workers the sweep may have now."""
        self._spoken = now = time.monotonic()
        self._claims[claim.sweep] = (now, claim)
        self._claims = {k: (at, c) for k, (at, c) in self._claims.items() if now - at < FORGET_SECONDS}
        return shares([c for _, c in self._claims.values()])[claim.sweep]

    def leave(self, sweep: str) -> None:
        """The sweep is over."""
        self._claims.pop(sweep, None)

    def _end_when_forgotten(self) -> None:
        while time.monotonic() - self._spoken < _END_SECONDS:
            time.sleep(5.0)
        os._exit(0)


def find_broker() -> ray.actor.ActorHandle:
    """The cluster's broker; started if there is none."""
    return (
        ray.remote(Broker)
        .options(
            name=NAME,
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",
            num_cpus=0,
            max_restarts=0,
        )
        .remote()
    )


class Share:
    """A driver's side: speaks to the broker without waiting for it, and starts another if it is gone."""

    def __init__(self, sweep: str, priority: int, kind: str) -> None:
        self.sweep, self.priority, self.kind = sweep, priority, kind
        self.quota: int | None = None
        self._broker = find_broker()
        self._asked: ray.ObjectRef | None = None

    def update(self, wanted: int, capacity: int) -> int | None:
        """Say what is wanted; the last answer that came (None before the first)."""
        if self._asked is not None:
            ready, _ = ray.wait([self._asked], timeout=0)
            if not ready:
                return self.quota
            try:
                self.quota = ray.get(self._asked)
            except ray.exceptions.RayError:
                self._broker = find_broker()
        claim = Claim(sweep=self.sweep, priority=self.priority, wanted=wanted, capacity=capacity, kind=self.kind)
        self._asked = self._broker.claim.remote(claim)
        return self.quota

    def leave(self) -> None:
        self._broker.leave.remote(self.sweep)
