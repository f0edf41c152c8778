"""Shares one cluster between several sweeps: by priority, evenly among equals.

Every driver on a shared cluster tells the broker how many workers it could use; the answer is how many it may have.
A driver over its share lets workers go as they finish their groups. The broker is one small actor without resources;
it ends when no driver has spoken to it for a minute.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import ray

from orchestrator.executors.layout import WorkerLayout

NAME, NAMESPACE = "deyo-sweep-broker", "deyo-sweep"
FORGET_SECONDS = 20.0
Asks = tuple[int, Mapping[str, float]]
_END_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What one driver asks for: ``wanted`` workers, each of ``size`` GPUs (or CPU cores).

    ``pools``: GPUs (or cores) of each kind that its workers could take on the cluster as it is now. ``asks``: for how
    many workers, and with which resources each, the cluster is to grow if it can.
    """

    sweep: str
    priority: int
    wanted: int
    size: float
    pools: Mapping[str, float]
    asks: Asks = (0, {})


def bundles(claims: Iterable[Claim]) -> list[dict[str, float]]:
    """What an autoscaler is asked for, for all sweeps together: each request takes the place of the one before."""
    return [dict(bundle) for claim in claims for workers, bundle in (claim.asks,) for _ in range(workers)]


def claim_of(
    sweep: str, priority: int, layout: WorkerLayout, nodes: Collection[Mapping[str, Any]], tasks: int | None
) -> Claim:
    """What a sweep can use of the live ``nodes`` (of ``ray.nodes()``) by its layout, with so many tasks left to do.

    Sweeps are rivals where they use the same GPUs or cores, however their specs ask for them.
    """
    any_gpu = any(node["Resources"].get("GPU") for node in nodes)
    size = layout.size(any_gpu)
    pools: dict[str, float] = {}
    capacity = 0
    for node in nodes:
        labels = node.get("Labels") or {}
        if places := layout.on_node(node["Resources"], labels, any_gpu):
            pool = layout.pool(labels, any_gpu)
            pools[pool] = pools.get(pool, 0.0) + places * size
            capacity += places
    limits = [limit for limit in (capacity, layout.most, tasks) if limit is not None]
    return Claim(sweep=sweep, priority=priority, wanted=min(limits), size=size, pools=pools)


def shares(claims: list[Claim]) -> dict[str, int]:
    """Workers for each sweep: higher priorities first, evenly (by GPUs or cores) among equals.

    Who can choose takes first what fewest others can use.
    """
    found = {claim.sweep: 0 for claim in claims}
    left: dict[str, float] = {}
    for claim in claims:
        left |= {pool: max(left.get(pool, 0.0), units) for pool, units in claim.pools.items()}
    users = Counter(pool for claim in claims for pool in claim.pools)
    for priority in sorted({claim.priority for claim in claims}, reverse=True):
        hungry = [claim for claim in claims if claim.priority == priority]
        while hungry:
            claim = min(hungry, key=lambda c: (found[c.sweep] * c.size, c.wanted, c.sweep))
            free = [pool for pool in claim.pools if left[pool] + 1e-6 >= claim.size]
            if not free or found[claim.sweep] >= claim.wanted:
                hungry.remove(claim)
                continue
            left[min(free, key=lambda pool: (users[pool], pool))] -= claim.size
            found[claim.sweep] += 1
    return found


class Broker:
    """Made into a detached, named actor by ``find_broker``."""

    def __init__(self) -> None:
        self._claims: dict[str, tuple[float, Claim]] = {}
        self._spoken = time.monotonic()
        self._asked: list[dict[str, float]] | None = None
        self._lock = threading.Lock()
        threading.Thread(target=self._end_when_forgotten, daemon=True).start()

    def claim(self, claim: Claim) -> int:
        """How many workers the sweep may have now."""
        self._spoken = now = time.monotonic()
        with self._lock:
            self._claims[claim.sweep] = (now, claim)
        return shares(self._look())[claim.sweep]

    def leave(self, sweep: str) -> None:
        """The sweep is over."""
        with self._lock:
            self._claims.pop(sweep, None)
        self._look()

    def _look(self) -> list[Claim]:
        """Forget drivers that died, ask the autoscaler for what the others want, and tell their claims."""
        with self._lock:
            now = time.monotonic()
            self._claims = {k: (at, c) for k, (at, c) in self._claims.items() if now - at < FORGET_SECONDS}
            claims = [claim for _, claim in self._claims.values()]
            wanted = bundles(claims)
            if wanted != self._asked and _request(wanted):
                self._asked = wanted
        return claims

    def _end_when_forgotten(self) -> None:
        while time.monotonic() - self._spoken < _END_SECONDS:
            time.sleep(5.0)
            self._look()
        os._exit(0)


def _request(wanted: list[dict[str, float]]) -> bool:
    """Whether the autoscaler could be told; a cluster that cannot be told does not grow, and is shared all the same."""
    from ray.autoscaler.sdk import request_resources

    try:
        request_resources(bundles=wanted)
    except Exception:
        traceback.print_exc()
        return False
    return True


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

    def __init__(self, sweep: str, priority: int) -> None:
        self.sweep, self.priority = sweep, priority
        self.quota: int | None = None
        self.asks: Asks = (0, {})
        self._broker = find_broker()
        self._asked: ray.ObjectRef | None = None

    def update(self, layout: WorkerLayout, nodes: Collection[Mapping[str, Any]], tasks: int | None) -> int | None:
        """Say what is wanted (see ``claim_of``); the last answer that came (None before the first)."""
        if self._asked is not None:
            ready, _ = ray.wait([self._asked], timeout=0)
            if not ready:
                return self.quota
            try:
                self.quota = ray.get(self._asked)
            except ray.exceptions.RayError:
                self._broker = find_broker()
        workers, bundle = self.asks
        asks = workers if tasks is None else min(workers, tasks), bundle
        claim = replace(claim_of(self.sweep, self.priority, layout, nodes, tasks), asks=asks)
        self._asked = self._broker.claim.remote(claim)
        return self.quota

    def leave(self) -> None:
        self._broker.leave.remote(self.sweep)
