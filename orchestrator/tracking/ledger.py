"""What the sweep has said of its runs: messages become units that MLflow does not show yet. No I/O."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa

from orchestrator.tracking import naming, settle
from orchestrator.tracking.curves import CurveFold, GapError
from orchestrator.tracking.naming import PREFIX
from orchestrator.tracking.state import FAILED, FINISHED, KILLED, RUNNING, Member, Unit
from orchestrator.tracking.units import Units, finish
from orchestrator.types import Failure, FailureClass, PlannedRun

MAX_WAITING = 2000  # finished runs held in memory; the others are read from the store
MAX_HELD_POINTS = 100_000  # of their curves
MAX_POINTS = 20_000  # of one run, between two visits (a resumed run hands on all its rows anew)


class Ledger:
    """Messages in, work out: ``dirty`` holds the units to visit, ``backlog`` what is read from the store."""

    def __init__(self, units: Units, clock: Callable[[], float]) -> None:
        self.units, self._clock = units, clock
        self.dirty: OrderedDict[str, None] = OrderedDict()
        self.backlog: OrderedDict[str, int] = OrderedDict()
        self.open = True
        self._finished = self._held = 0  # runs and points that wait, about: exact at each ``recount``

    def run_started(self, run: PlannedRun, attempt: int) -> None:
        """An attempt begins. What an earlier one has shown is compared before this one's end is trusted."""
        unit, before = self.units.at(run.run_id, naming.axes(run.config))
        member = Member(run_id=run.run_id, seed=before.seed, pretrain_seed=before.pretrain_seed)
        member.attempt, member.fold = attempt, CurveFold(dense=unit.density)
        member.started_at = int(self._clock() * 1000)
        member.suspect = before.suspect or before.sent >= 0 or before.published
        member.floor = None if before.floor is None else max(before.floor, before.sent)
        unit.members[run.run_id] = member
        self.mark(unit)

    def rows(self, run_id: str, attempt: int, batch: pa.RecordBatch) -> None:
        """Rows of ``batches`` of a run in flight; those of another attempt are ignored."""
        found = self.units.find(run_id)
        if found is None:
            return
        unit, member = found
        label = unit.curve_label(member)
        if member.attempt != attempt or member.fold is None or unit.deleted or label is None:
            return
        try:
            points = settle.place(member.fold.add(batch), label)
        except GapError:
            points = []
            member.fold = None
        if len(member.points) + len(points) > MAX_POINTS:
            member.fold, member.points = None, []
            return
        member.points += points
        self.mark(unit)

    def lost_rows(self, run_id: str, attempt: int) -> None:
        """Rows of this attempt did not come through: its curves wait for the commit and the store."""
        found = self.units.find(run_id)
        if found is not None and found[1].attempt == attempt:
            found[1].fold = None

    def run_finished(self, run: PlannedRun, attempt: int, row: Mapping[str, Any]) -> None:
        """The attempt was committed."""
        axes = naming.axes(run.config)
        if self._finished >= MAX_WAITING:
            self._defer(run.run_id, axes, attempt)
            return
        unit, member = self.units.at(run.run_id, axes)
        self._finished += 1
        self._held += len(member.points)
        if member.attempt != attempt or self._held > MAX_HELD_POINTS:
            member.fold, member.points = None, []
        finish(member, {**row, **axes, "run_id": run.run_id, "attempt": attempt}, attempt)
        self.mark(unit)

    def run_failed(self, run: PlannedRun, attempt: int, failure: Failure) -> None:
        """The attempt failed; another one may follow."""
        unit, member = self.units.at(run.run_id, naming.axes(run.config))
        if member.status == FINISHED:
            return
        self._stop(member, KILLED if failure.kind == FailureClass.CANCELLED else FAILED)
        member.attempt = attempt
        unit.tags |= failure_tags(failure, attempt, member if unit.grouped else None)
        self.mark(unit)

    def sweep_finished(self) -> None:
        """The sweep has ended: what is still running was stopped."""
        self.open = False
        for unit in self.units.live.values():
            for member in unit.members.values():
                if member.status == RUNNING:
                    self._stop(member, KILLED)
            self.mark(unit)

    def from_store(self, row: Mapping[str, Any]) -> None:
        """A committed run of the backlog, by its ``runs`` row."""
        run_id, attempt = row["run_id"], row["attempt"]
        self.backlog.pop(run_id, None)
        axes = naming.axes(row)
        known = self.units.known.get(self.units.key(run_id, axes))
        if known is not None and known.tags.get(naming.PUBLISHED) == naming.published_mark({run_id: attempt}):
            return
        unit, member = self.units.at(run_id, axes)
        running_again = member.status == RUNNING and member.attempt > attempt
        if not running_again and not member.published:
            if member.attempt != attempt:
                member.fold, member.points = None, []
            finish(member, row, attempt)
        self.mark(unit)

    def waiting(self) -> int:
        """Finished runs that MLflow does not show yet."""
        return sum(u.waiting() for u in self.units.live.values()) + len(self.backlog)

    def recount(self) -> None:
        """Look at what waits in memory, before a round of visits (at each message it would take too long)."""
        waiting = [m for u in self.units.live.values() for m in u.members.values() if m.waiting]
        self._finished, self._held = len(waiting), sum(len(m.points) for m in waiting)

    def to_be_read(self, keys: Iterable[str]) -> list[str]:
        """The runs of these units whose curves must come from the store."""
        units = (self.units.live[key] for key in keys if key in self.units.live)
        return [m.run_id for u in units for m in u.members.values() if m.waiting and (m.fold is None or m.suspect)]

    def mark(self, unit: Unit) -> None:
        """The unit has something to publish."""
        self.dirty[unit.key] = None

    def visited(self, unit: Unit) -> None:
        """The unit was published: drop it if nothing more can come."""
        if unit.key in self.dirty or unit.waiting():
            return
        states = {m.status for m in unit.members.values()}
        complete = states <= {FINISHED} and len(unit.members) >= unit.expected
        if complete or not self.open or (not unit.grouped and RUNNING not in states):
            self.units.forget(unit)

    def let_go(self, unit: Unit) -> None:
        """Give a unit's content up: MLflow refuses it."""
        unit.tags = {}
        for member in unit.members.values():
            member.points, member.fold, member.row = [], None, None
            member.published = member.status == FINISHED

    def _defer(self, run_id: str, axes: Mapping[str, Any], attempt: int) -> None:
        """Too much waits in memory: this run comes from the store when its turn comes."""
        self.backlog[run_id] = attempt
        unit = self.units.live.get(self.units.key(run_id, axes))
        if unit is None:
            return
        if unit.grouped:
            unit.members.pop(run_id, None)
        else:
            self.units.forget(unit)
            self.dirty.pop(unit.key, None)

    def _stop(self, member: Member, status: str) -> None:
        member.status, member.fold = status, None
        member.finished_at = int(self._clock() * 1000)


def failure_tags(failure: Failure, attempt: int, member: Member | None) -> dict[str, str]:
    """Why an attempt failed and where its log is; of a group's member, with its seed."""
    where = f"seed {member.seed}, attempt {attempt}" if member else f"attempt {attempt}"
    tags = {PREFIX + "last_failure": naming.tag_value(f"{where}: {failure.kind}: {failure.message}")}
    if failure.log_path:
        tags[PREFIX + "log"] = naming.tag_value(failure.log_path)
    return tags
