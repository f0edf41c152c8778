"""Finds the unit and the member that a run belongs to, with what MLflow and the store already have of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.tracking.naming import PUBLISHED, STALE, group_key
from orchestrator.tracking.remote import RemoteRun
from orchestrator.tracking.source import Source
from orchestrator.tracking.state import FINISHED, Member, SweepInfo, Unit
from orchestrator.tracking.summary import millis, run_values

CURVE_LABELS = "deyo.curves"


class Units:
    """The units that are not done, and the MLflow runs that exist (``known``, by key)."""

    def __init__(self, source: Source, info: SweepInfo) -> None:
        self._source, self._info = source, info
        self.live: dict[str, Unit] = {}
        self.known: dict[str, RemoteRun] = {}
        self._unit_of: dict[str, str] = {}
        self._met = False

    def find(self, run_id: str) -> tuple[Unit, Member] | None:
        """The unit and member of a run that was heard of."""
        unit = self.live.get(self._unit_of.get(run_id, ""))
        return (unit, unit.members[run_id]) if unit and run_id in unit.members else None

    def at(self, run_id: str, axes: Mapping[str, Any]) -> tuple[Unit, Member]:
        """The unit and member of a run; both are made if they do not exist."""
        key = self.key(run_id, axes)
        unit = self.live.get(key)
        if unit is None:
            unit = self.live[key] = self._new_unit(key, axes)
        member = unit.members.get(run_id)
        if member is None:
            if unit.grouped:
                self._drop_predecessor(unit, axes)
            seeds = {"seed": axes["seed"], "pretrain_seed": axes.get("pretrain_seed")}
            member = unit.members[run_id] = Member(run_id=run_id, **seeds)
            _doubt(unit, member)
        self._unit_of[run_id] = key
        return unit, member

    def _drop_predecessor(self, unit: Unit, axes: Mapping[str, Any]) -> None:
        """The run of the same seed that this one replaces (newer code or weights) no longer counts."""
        for run_id, other in list(unit.members.items()):
            if (other.seed, other.pretrain_seed) == (axes["seed"], axes.get("pretrain_seed")):
                del unit.members[run_id]
                self._unit_of.pop(run_id, None)

    def key(self, run_id: str, axes: Mapping[str, Any]) -> str:
        return group_key(axes) if self._info.granularity == "group" else run_id

    def forget(self, unit: Unit) -> None:
        """Drop a unit that is done; its MLflow run stays known."""
        self.live.pop(unit.key, None)
        for run_id in unit.members:
            self._unit_of.pop(run_id, None)
        if unit.remote is not None:
            kept = {k: v for k, v in unit.remote.tags.items() if k in (PUBLISHED, STALE, CURVE_LABELS)}
            unit.remote.tags = kept
            self.known[unit.key] = unit.remote

    def meet(self, runs: Mapping[str, RemoteRun]) -> None:
        """Take over the MLflow runs that exist, also for units that were heard of before."""
        self.known, self._met = dict(runs), True
        for unit in self.live.values():
            if unit.remote is None:
                self._adopt(unit)

    def _new_unit(self, key: str, axes: Mapping[str, Any]) -> Unit:
        kind = self._info.granularity
        unit = Unit(kind=kind, key=key, axes=axes, expected=self._info.sizes.get(key, 1))
        if self._met:
            self._adopt(unit)
        return unit

    def _adopt(self, unit: Unit) -> None:
        remote = self.known.get(unit.key)
        if unit.grouped:
            self._add_committed(unit)
        if remote is None:
            return
        unit.remote, unit.deleted = remote, remote.deleted
        labels = [label for label in remote.tags.get(CURVE_LABELS, "").split(",") if label]
        unit.curve_labels = labels + [label for label in unit.curve_labels if label not in labels]
        shown = remote.tags.get(PUBLISHED) == unit.mark()
        for member in unit.members.values():
            member.published = member.status == FINISHED and shown and not member.points
            if not member.published:
                _doubt(unit, member)

    def _add_committed(self, unit: Unit) -> None:
        """The seeds of the group that the store has: its means span them too."""
        for run_id in self._source.groups().get(unit.key, ()):
            row = self._source.row(run_id)
            if row is not None and run_id not in unit.members:
                unit.members[run_id] = committed_member(row)
                self._unit_of[run_id] = unit.key


def committed_member(row: Mapping[str, Any]) -> Member:
    """A finished member from its ``runs`` row."""
    member = Member(run_id=row["run_id"], seed=row["seed"], pretrain_seed=row.get("pretrain_seed"))
    finish(member, row, row["attempt"])
    return member


def finish(member: Member, row: Mapping[str, Any], attempt: int) -> None:
    """The member's attempt was committed with this row."""
    member.status, member.attempt, member.row = FINISHED, attempt, row
    member.values, member.finished_at = run_values(row), millis(row.get("finished_at"))
    member.published = False


def _doubt(unit: Unit, member: Member) -> None:
    """Points of this member may be in an MLflow run that existed before."""
    if unit.remote is not None and unit.remote.keys:
        member.suspect, member.floor = True, None
