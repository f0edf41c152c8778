"""Pending runs, indexed so that a slot's next group is found without looking at the others.

Runs lie in levels by (priority, cost class), levels hold buckets of compatible runs, buckets hold a queue for
each set of images. Every operation is a few dictionary look-ups and at most one heap operation.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from orchestrator.grouping import GroupKey
from orchestrator.types import PlannedRun

COST_RATIO = 2.0
"""Runs within this ratio of cost count as equally long: among them affinity decides."""


@dataclass(slots=True, kw_only=True)
class Job:
    """A run as the scheduler sees it.

    ``cost`` in seconds on an ordinary slot; ``limit`` the largest group it may join; ``narrow`` that it
    goes at width 1; ``avoid`` nodes where it
    failed; ``gpu`` the kind of GPU that it asks for; ``needs`` the checkpoint that it starts from, if that is
    made in this sweep; ``kind`` what the circuit breaker counts by.
    """

    run: PlannedRun
    group: GroupKey
    network: str
    images: str
    kind: Hashable
    cost: float = 1.0
    priority: int = 0
    gpu: str = ""
    needs: str = ""
    limit: int | None = None
    narrow: bool = False
    avoid: frozenset[str] = frozenset()


BucketKey = tuple[GroupKey, int | None]
LevelKey = tuple[int, int]


@dataclass(slots=True)
class Bucket:
    """Compatible runs of one level, by images; ``active`` counts the slots that work on it."""

    key: BucketKey
    network: str
    queues: OrderedDict[str, deque[Job]] = field(default_factory=OrderedDict)
    count: int = 0
    cost: float = 0.0
    active: int = 0

    @property
    def score(self) -> float:
        """Work left for each slot that would be on it: new slots go where this is largest."""
        return self.cost / (1 + self.active)


@dataclass(slots=True)
class Level:
    """Buckets of one priority and cost class, found by network, by network and images, or by work left."""

    buckets: dict[BucketKey, Bucket] = field(default_factory=dict)
    by_network: dict[str, dict[BucketKey, None]] = field(default_factory=dict)
    by_images: dict[tuple[str, str], dict[BucketKey, None]] = field(default_factory=dict)
    heap: list[tuple[float, int, BucketKey]] = field(default_factory=list)
    ticket: int = 0

    def add(self, job: Job) -> None:
        key = (job.group, job.limit)
        bucket = self.buckets.get(key)
        if bucket is None:
            bucket = self.buckets[key] = Bucket(key, job.network)
            self.by_network.setdefault(job.network, {})[key] = None
        queue = bucket.queues.get(job.images)
        if queue is None:
            queue = bucket.queues[job.images] = deque()
            self.by_images.setdefault((job.network, job.images), {})[key] = None
        queue.append(job)
        bucket.count += 1
        bucket.cost += job.cost
        self.rank(bucket)

    def rank(self, bucket: Bucket) -> None:
        """Enter the bucket's present score; older entries are recognised as stale when they come up."""
        self.ticket += 1
        heapq.heappush(self.heap, (-bucket.score, self.ticket, bucket.key))
        if len(self.heap) > 64 + 8 * len(self.buckets):
            self.heap = [(-b.score, i, b.key) for i, b in enumerate(self.buckets.values())]
            self.ticket = len(self.heap)
            heapq.heapify(self.heap)

    def choose(self, network: str, images: str) -> Bucket:
        """The bucket for a slot that holds ``network`` and ``images``: the most of what is there already."""
        for index, key in ((self.by_images, (network, images)), (self.by_network, network)):
            keys = index.get(key)  # type: ignore[call-overload]
            if keys:
                return self.buckets[next(iter(keys))]
        while True:
            score, _, key = heapq.heappop(self.heap)
            bucket = self.buckets.get(key)
            if bucket is None:
                continue
            if -score > bucket.score * (1 + 1e-9):
                self.rank(bucket)
                continue
            return bucket

    def take(self, bucket: Bucket, images: str, most: int) -> list[Job]:
        """Up to ``most`` jobs: those on ``images`` first, then image set by image set."""
        taken: list[Job] = []
        while bucket.queues and len(taken) < most:
            name = images if images in bucket.queues else next(iter(bucket.queues))
            queue = bucket.queues[name]
            while queue and len(taken) < most:
                taken.append(queue.popleft())
            if queue:
                bucket.queues.move_to_end(name)  # the next slot begins with other images
            else:
                del bucket.queues[name]
                _discard(self.by_images, (bucket.network, name), bucket.key)
        bucket.count -= len(taken)
        bucket.cost -= sum(job.cost for job in taken)
        if bucket.queues:
            self.rank(bucket)
        else:
            del self.buckets[bucket.key]
            _discard(self.by_network, bucket.network, bucket.key)
        return taken


def _discard(index: dict, key: Hashable, member: BucketKey) -> None:
    members = index[key]
    del members[member]
    if not members:
        del index[key]


@dataclass
class Pool:
    """All pending runs that ask for one kind of GPU (or for none).

    Runs that can be one group and whose costs differ little lie in one level, that of the first of them: what an
    estimate is off by does not tear groups apart.
    """

    levels: dict[LevelKey, Level] = field(default_factory=dict)
    order: list[LevelKey] = field(default_factory=list)
    count: int = 0
    _homes: dict[tuple[int, BucketKey], LevelKey] = field(default_factory=dict)

    def add(self, job: Job) -> None:
        key = self._level_of(job)
        level = self.levels.get(key)
        if level is None:
            level = self.levels[key] = Level()
            heapq.heappush(self.order, key)
        level.add(job)
        self.count += 1

    def _level_of(self, job: Job) -> LevelKey:
        own, bucket = (-job.priority, -cost_class(job.cost)), (job.group, job.limit)
        home = self._homes.get((job.priority, bucket))
        if home in self.levels and bucket in self.levels[home].buckets and abs(home[1] - own[1]) <= 1:
            return home
        self._homes[job.priority, bucket] = own
        return own

    def first(self) -> tuple[LevelKey, Level] | None:
        """The most urgent level, longest runs first."""
        while self.order:
            key = self.order[0]
            if self.levels[key].buckets:
                return key, self.levels[key]
            heapq.heappop(self.order)
            del self.levels[key]
        return None

    def jobs(self) -> Iterator[Job]:
        for level in self.levels.values():
            for bucket in level.buckets.values():
                for queue in bucket.queues.values():
                    yield from queue


def cost_class(cost: float) -> int:
    return math.floor(math.log(max(cost, 1e-6), COST_RATIO))
