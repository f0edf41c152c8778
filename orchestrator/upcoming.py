"""Which image sets a slot's next groups will most likely need, so that its host can prepare them meanwhile.

A guess at what ``Scheduler.next`` will choose, which changes nothing of it: where it is wrong, images are prepared
that are needed later, or elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator
from itertools import chain, islice

from orchestrator.grouping import source_keys
from orchestrator.pool import Bucket, Job, Level, Pool

SETS = 3
"""Image sets that are prepared ahead of those that some group has asked for already."""

_LOOK = 256
"""Queues of runs that are looked at for one slot."""


def data_keys(job: Job) -> tuple[str, ...]:
    """Names all image sets that a run reads."""
    return (job.images, *source_keys(job.run.config))


def upcoming(
    pools: Iterable[Pool], network: str, images: str, known: Collection[str], stopped: Collection[Hashable]
) -> tuple[Job, ...]:
    """A job for each of the next image sets that are not ``known``, soonest first.

    ``network`` and ``images`` are what the slot holds; kinds of runs in ``stopped`` do not count.
    """
    found: list[Job] = []
    seen: set[str] = set()
    for job in islice(_heads(pools, network, images), _LOOK):
        fresh = {key for key in data_keys(job) if key not in known and key not in seen}
        if fresh and job.kind not in stopped:
            found.append(job)
            seen |= fresh
        if len(found) == SETS:
            break
    return tuple(found)


def _heads(pools: Iterable[Pool], network: str, images: str) -> Iterator[Job]:
    """The first job of each set of images of each bucket, in the order in which a slot comes by them."""
    levels = [item for pool in pools for item in pool.levels.items()]
    for _, level in sorted(levels, key=lambda item: item[0]):
        for bucket in _buckets(level, network, images):
            for name in sorted(bucket.queues, key=lambda name: name != images):  # stable: the rest as it stands
                yield bucket.queues[name][0]


def _buckets(level: Level, network: str, images: str) -> Iterator[Bucket]:
    """All of ``level``, those first that ``Level.choose`` would look at first."""
    seen = set()
    for key in chain(level.by_images.get((network, images), ()), level.by_network.get(network, ()), level.buckets):
        if key not in seen:
            seen.add(key)
            yield level.buckets[key]
