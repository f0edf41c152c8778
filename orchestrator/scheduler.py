"""Decides which runs go where: priority, longest first, affinity to what a slot holds, groups of R runs.

It knows nothing of Ray or of time: the driver tells it what joined, left and finished, and asks for the next
assignment. The same code runs real sweeps and the simulation.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field

from orchestrator.gpu_kinds import same_kind
from orchestrator.pool import Bucket, GroupKey, Job, Level, Pool
from orchestrator.types import PretrainTask, RunConfig, Slot
from orchestrator.upcoming import data_keys, upcoming
from orchestrator.widths import Widths, card

_PICKY_SCAN = 32
"""How many retried runs with nodes to avoid are looked at for one slot."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """Work for a slot: a group of runs at a width, one run as a probe of memory, or a pretraining."""

    slot: Slot
    jobs: tuple[Job, ...] = ()
    width: int = 1
    probe: bool = False
    pretrain: PretrainTask | None = None


@dataclass
class _Place:
    """A slot and what it holds: network and images of its last group, the bucket that it works on."""

    slot: Slot
    network: str = ""
    images: str = ""
    working: tuple[Level, Bucket] | None = None
    jobs: int = 0


@dataclass
class Scheduler:
    """Pending runs and free slots of one driver.

    ``group_limit`` says how many runs like a config may go side by side on a slot; None where a probe has to tell
    first. ``expected()`` slots share the work, those included that are about to join. Runs of the kinds and cards
    in ``alone`` go one by one: a probe could not tell.
    """

    group_limit: Callable[[RunConfig, Slot], int | None] = lambda config, slot: 1
    widths: Widths = field(default_factory=Widths)
    expected: Callable[[], int] = lambda: 0
    alone: set[tuple[GroupKey, str]] = field(default_factory=set)
    stopped: set[Hashable] = field(default_factory=set)
    held: list[Job] = field(default_factory=list)
    running: int = 0
    _places: dict[str, _Place] = field(default_factory=dict)
    _idle: dict[str, dict[str, None]] = field(default_factory=dict)
    _pools: dict[str, Pool] = field(default_factory=dict)
    _waiting: dict[str, list[Job]] = field(default_factory=dict)
    _pretraining: list[tuple[int, float, int, PretrainTask, str]] = field(default_factory=list)
    _picky: deque[Job] = field(default_factory=deque)
    _nodes: dict[str, int] = field(default_factory=dict)
    _data: dict[str, set[str]] = field(default_factory=dict)
    _ticket: int = 0

    # What there is to do

    def add(self, job: Job) -> None:
        """A run to do, now or again."""
        if job.needs:
            self._waiting.setdefault(job.needs, []).append(job)
        elif job.avoid:
            self._picky.append(job)
        else:
            self._pools.setdefault(job.gpu, Pool()).add(job)

    def add_pretraining(self, task: PretrainTask, *, cost: float, priority: int = 0, gpu: str = "") -> None:
        """A checkpoint that waiting runs need; it goes before them."""
        self._ticket += 1
        heapq.heappush(self._pretraining, (-priority, -cost, self._ticket, task, gpu))

    def ready(self, key: str) -> None:
        """The checkpoint ``key`` is there: runs that wait for it may start."""
        for job in self._waiting.pop(key, []):
            job.needs = ""
            self.add(job)

    def drop_waiting(self, key: str) -> int:
        """The checkpoint ``key`` will not come: how many runs are set aside in ``held``."""
        jobs = self._waiting.pop(key, [])
        self.held.extend(jobs)
        return len(jobs)

    def stop(self, kind: Hashable) -> None:
        """Start no more runs of this kind; they are set aside in ``held`` as they come up."""
        self.stopped.add(kind)

    @property
    def pending(self) -> int:
        """Runs that could start now, were there slots enough."""
        return len(self._picky) + sum(pool.count for pool in self._pools.values())

    @property
    def waiting(self) -> int:
        """Runs whose checkpoint is not there yet."""
        return sum(map(len, self._waiting.values()))

    @property
    def pretraining(self) -> int:
        """Checkpoints to be made that no slot works on yet."""
        return len(self._pretraining)

    @property
    def unstarted(self) -> Iterator[Job]:
        """Every run not started, for whatever reason."""
        yield from self.held
        yield from self._picky
        for jobs in self._waiting.values():
            yield from jobs
        for pool in self._pools.values():
            yield from pool.jobs()

    # Where it can be done

    def join(self, slot: Slot) -> None:
        self._places[slot.slot_id] = _Place(slot)
        self._nodes[slot.node] = self._nodes.get(slot.node, 0) + 1
        self._free(slot)

    def leave(self, slot_id: str) -> Slot | None:
        """The slot is gone; None if it was not known."""
        place = self._places.pop(slot_id, None)
        if place is None:
            return None
        self._unassign(place)
        self._idle.get(place.slot.gpu_name, {}).pop(slot_id, None)
        self._nodes[place.slot.node] -= 1
        if not self._nodes[place.slot.node]:
            del self._nodes[place.slot.node]
            self._data.pop(place.slot.node, None)
        return place.slot

    def finished(self, slot_id: str) -> None:
        """The slot's task is over; it can take another."""
        place = self._places.get(slot_id)
        if place is not None:
            self._unassign(place)
            self._free(place.slot)

    @property
    def slots(self) -> int:
        return len(self._places)

    @property
    def idle(self) -> int:
        return sum(map(len, self._idle.values()))

    # Who does what

    def next(self) -> Assignment | None:
        """The next assignment, or None if no free slot fits what is pending."""
        if not (self._pretraining or self._picky or any(pool.count for pool in self._pools.values())):
            return None
        for gpu, slots in self._idle.items():
            for slot_id in list(slots)[:1] if not self._picky else list(slots)[:_PICKY_SCAN]:
                assignment = self._assign(self._places[slot_id])
                if assignment is not None:
                    del self._idle[gpu][slot_id]
                    self._places[slot_id].jobs = len(assignment.jobs)
                    self.running += len(assignment.jobs)
                    self._note_data(assignment)
                    return assignment
        return None

    def upcoming(self, slot: Slot) -> tuple[Job, ...]:
        """Jobs whose images, new to its host, the slot will most likely need next (see ``orchestrator.upcoming``)."""
        place, known = self._places[slot.slot_id], self._data.get(slot.node, frozenset())
        pools = [pool for gpu, pool in self._pools.items() if _fits(gpu, slot)]
        return upcoming(pools, place.network, place.images, known, self.stopped)

    def _note_data(self, assignment: Assignment) -> None:
        """What a host's groups read is, or will be, prepared there."""
        known = self._data.setdefault(assignment.slot.node, set())
        for job in assignment.jobs:
            known.update(data_keys(job))

    def _assign(self, place: _Place) -> Assignment | None:
        slot = place.slot
        task = self._take_pretraining(slot)
        if task is not None:
            return Assignment(slot=slot, pretrain=task)
        retried = self._take_picky(slot)
        if retried is not None:
            place.network, place.images = retried.network, retried.images
            kept = None if retried.narrow else self.widths.get(retried.group, card(slot))
            return Assignment(slot=slot, jobs=(retried,), width=kept or 1)
        while True:
            jobs, width = self._take_group(place)
            if not jobs:
                return None
            kept = tuple(job for job in jobs if job.kind not in self.stopped)
            self.held.extend(job for job in jobs if job.kind in self.stopped)
            if kept:
                return Assignment(slot=slot, jobs=kept, width=width or 1, probe=width is None)
            self._unassign(place)

    def _take_group(self, place: _Place) -> tuple[list[Job], int | None]:
        """Runs for a slot and the width of their group; a width of None asks for a probe, of one run."""
        best: tuple[tuple[int, int], Level, Pool] | None = None
        for gpu, pool in self._pools.items():
            found = pool.first() if _fits(gpu, place.slot) else None
            # At equal urgency runs that only this kind of slot can take go first.
            if found and (best is None or found[0] < best[0] or (gpu and found[0] == best[0])):
                best = (*found, pool)
        if best is None:
            return [], None
        _, level, pool = best
        bucket = level.choose(place.network, place.images)
        sample = next(iter(bucket.queues.values()))[0]
        width = self._width(sample, place.slot, bucket.count)
        most = 1 if width is None else min(width, sample.limit or width)
        jobs = level.take(bucket, place.images, most)
        if jobs[0].narrow:
            width = 1
        pool.count -= len(jobs)
        place.network, place.images = jobs[-1].network, jobs[-1].images
        place.working = (level, bucket)
        bucket.active += 1
        return jobs, width

    def _width(self, sample: Job, slot: Slot, count: int) -> int | None:
        """The width kept for this kind of runs, else what fits on the slot; None if memory has to be measured first.

        Unless a size was asked for, no more than an even share of the plan, so that nobody idles while one slot has
        many. The plan's runs of the kind (``count`` are left) go in groups of the same size, so that little is filled
        up.
        """
        kept = self.widths.get(sample.group, card(slot))
        if kept is not None:
            return kept
        limit = self.group_limit(sample.run.config, slot)
        if limit is None:
            return 1 if (sample.group, card(slot)) in self.alone else None
        count = self.widths.planned.get(sample.group, count)
        if self.widths.asked is None:
            runs = sum(self.widths.planned.values()) or self.pending + self.running
            limit = min(limit, math.ceil(runs / max(1, self.expected(), len(self._places))))
        most = max(1, limit)
        width = math.ceil(count / math.ceil(count / most))
        self.widths.decide(sample.group, card(slot), width)
        return width

    def cannot_tell(self, job: Job, slot: Slot) -> None:
        """A probe of ``job`` on ``slot`` ended: runs like it go alone there, unless memory is known now."""
        self.alone.add((job.group, card(slot)))

    def told(self, job: Job, slot: Slot) -> None:
        """A run like ``job`` has shown what memory it takes on ``slot``."""
        self.alone.discard((job.group, card(slot)))

    def waits_for(self, job: Job, slot: Slot) -> bool:
        """Whether others like ``job`` wait until it has shown what memory it takes on ``slot``."""
        return (job.group, card(slot)) in self.alone

    def _take_pretraining(self, slot: Slot) -> PretrainTask | None:
        if self._pretraining and _fits(self._pretraining[0][4], slot):
            return heapq.heappop(self._pretraining)[3]
        return None

    def _take_picky(self, slot: Slot) -> Job | None:
        for _ in range(min(len(self._picky), _PICKY_SCAN)):
            job = self._picky.popleft()
            if job.kind in self.stopped:
                self.held.append(job)
                continue
            elsewhere = any(node not in job.avoid for node in self._nodes)
            if _fits(job.gpu, slot) and (slot.node not in job.avoid or not elsewhere):
                return job
            self._picky.append(job)
        return None

    def _free(self, slot: Slot) -> None:
        self._idle.setdefault(slot.gpu_name, {})[slot.slot_id] = None

    def _unassign(self, place: _Place) -> None:
        self.running -= place.jobs
        place.jobs = 0
        if place.working is None:
            return
        level, bucket = place.working
        place.working = None
        bucket.active -= 1
        if level.buckets.get(bucket.key) is bucket:
            level.rank(bucket)


def _fits(gpu: str, slot: Slot) -> bool:
    """Whether a slot can take what asks for ``gpu``, "" for any."""
    return not gpu or same_kind(gpu, slot.gpu_name)
