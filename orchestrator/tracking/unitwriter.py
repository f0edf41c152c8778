"""Brings one MLflow run up to date: created, points, params, tags, data set, status."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from orchestrator.tracking import naming
from orchestrator.tracking.curves import Point
from orchestrator.tracking.naming import PREFIX, PUBLISHED
from orchestrator.tracking.remote import GoneError, Remote, RemoteRun
from orchestrator.tracking.settle import ConflictError, History, lacking_points
from orchestrator.tracking.source import Source
from orchestrator.tracking.state import FINISHED, RUNNING, Member, Unit
from orchestrator.tracking.summary import group_points, millis, outcome_tags
from orchestrator.tracking.units import CURVE_LABELS, finish

REPLACED = PREFIX + "replaced"
_TAGS_WITH_POINTS = 900  # more points go in requests of their own, before the tags that vouch for them


class NotYetError(Exception):
    """The store's readers do not see the committed run yet."""


class UnitWriter:
    """Writes units below one parent run. Every method may raise ``OutageError`` and be called again."""

    def __init__(self, remote: Remote, source: Source, sweep: str) -> None:
        self._remote, self._source, self._sweep = remote, source, sweep
        self.experiment_id = ""
        self.parent_id = ""

    def publish(self, unit: Unit, *, sweep_open: bool) -> int:
        """Log what the unit lacks; how many runs became visible. ``NotYetError``: come back later."""
        if unit.deleted:
            _let_go(unit)
            return 0
        try:
            try:
                return self._publish(unit, sweep_open)
            except ConflictError:
                self._replace(unit)
                return self._publish(unit, sweep_open)
        except GoneError:
            unit.deleted = True
            if unit.remote is not None:
                unit.remote.deleted = True
            _let_go(unit)
            return 0

    def _publish(self, unit: Unit, sweep_open: bool) -> int:
        for member in unit.finished():
            if member.waiting:
                self._fetch_row(member)
        params = self._ensure(unit)
        assert unit.remote is not None
        history = self._history(unit)
        points: list[Point] = []
        settled = [m for m in unit.members.values() if m.waiting]
        for member in settled:
            points += lacking_points(unit, member, self._source, history)
        for member in unit.members.values():
            if member not in settled:
                self._apply_floor(unit, member, history)
                points += member.points
        if settled and unit.grouped:
            points += group_points([m.values for m in unit.finished()], unit.end_time() or 0)
        self._log(unit, list(dict.fromkeys(points)), params, self._tags(unit, settled))
        for member in unit.members.values():
            member.sent = max([member.sent, *(p.step for p in member.points)])
            member.points = []
        self._log_inputs(unit, settled)
        for member in settled:
            member.published, member.fold, member.row = True, None, None
        self._set_status(unit, unit.wanted_status(sweep_open))
        return len(settled)

    def _fetch_row(self, member: Member) -> None:
        """The committed row, where memory does not hold it."""
        if member.row is not None:
            return
        row = self._source.row(member.run_id)
        if row is None or row["attempt"] != member.attempt:
            raise NotYetError(member.run_id)
        finish(member, row, member.attempt)

    def _ensure(self, unit: Unit) -> dict[str, str]:
        """Create the MLflow run if there is none; the params that it lacks."""
        params = naming.params(unit.axes, with_seed=not unit.grouped)
        if unit.remote is not None:
            return {k: v for k, v in params.items() if k not in unit.remote.params}
        tags = self._first_tags(unit)
        name = naming.display_name(unit.axes, with_seed=not unit.grouped)
        mlflow_id = self._remote.create(
            self.experiment_id, name, tags=tags, start=_start_time(unit), parent=self.parent_id
        )
        unit.remote = RemoteRun(
            mlflow_id=mlflow_id, kind=unit.kind, key=unit.key, status=RUNNING, deleted=False, tags=tags
        )
        return params

    def _first_tags(self, unit: Unit) -> dict[str, str]:
        tags = {naming.KIND: unit.kind, naming.KEY: unit.key, naming.SWEEP: self._sweep, **naming.SOURCE}
        tags |= {PREFIX + "label": naming.tag_value(unit.axes["label"]), naming.STALE: "false"}
        if not unit.grouped:
            tags[PREFIX + "run_id"] = unit.key
        if unit.replaces:
            tags[PREFIX + "replaces"] = unit.replaces
        return tags

    def _history(self, unit: Unit) -> History:
        remote, mlflow_id = self._remote, unit.remote.mlflow_id if unit.remote else ""
        return cache(lambda key: remote.history(mlflow_id, key))

    def _apply_floor(self, unit: Unit, member: Member, history: Callable[[str], Mapping[int, float]]) -> None:
        """Hold back what an earlier attempt has shown already (the end of this one compares)."""
        label = unit.curve_label(member)
        if member.floor is None and label is not None and member.points:
            key = naming.clean_key(f"stream/running_accuracy{label}")
            known = unit.remote is not None and key in unit.remote.keys
            member.floor = max(history(key), default=-1) if known else -1
        if member.floor is not None:
            member.points = [p for p in member.points if p.step > member.floor]

    def _tags(self, unit: Unit, settled: list[Member]) -> dict[str, str]:
        tags = dict(unit.tags)
        if unit.grouped and unit.curve_labels:
            tags[CURVE_LABELS] = ",".join(unit.curve_labels)
        for member in settled:
            row = member.row or {}
            tags |= naming.provenance_tags(row)
            if unit.grouped:
                continue
            tags |= outcome_tags(row)
            tags[PREFIX + "attempt"] = str(member.attempt)
        if settled:
            tags[PUBLISHED] = unit.mark()
            if unit.remote is not None and unit.remote.tags.get(naming.STALE) == "true":
                tags[naming.STALE] = "false"  # it counts again
        if settled and unit.grouped:
            collapsed = sum(bool((m.row or {}).get("collapsed")) for m in settled)
            if collapsed:
                tags[PREFIX + "collapsed"] = "true"
        return tags

    def _log(self, unit: Unit, points: list[Point], params: dict[str, str], tags: dict[str, str]) -> None:
        assert unit.remote is not None
        mlflow_id = unit.remote.mlflow_id
        if len(points) > _TAGS_WITH_POINTS:
            self._remote.log(mlflow_id, points=points)
            self._remote.log(mlflow_id, params=params, tags=tags)
        elif points or params or tags:
            self._remote.log(mlflow_id, points=points, params=params, tags=tags)
        unit.tags = {}
        unit.remote.params = unit.remote.params.union(params)
        unit.remote.keys = unit.remote.keys.union(p.key for p in points)
        unit.remote.tags = {**unit.remote.tags, **tags}

    def _log_inputs(self, unit: Unit, settled: list[Member]) -> None:
        assert unit.remote is not None
        for member in settled:
            data = dataset(unit.axes, member.row or {})
            if data is None or (data["name"], data["digest"]) in unit.datasets:
                continue
            self._remote.log_dataset(unit.remote.mlflow_id, **data)
            unit.datasets.add((data["name"], data["digest"]))

    def _set_status(self, unit: Unit, status: str) -> None:
        assert unit.remote is not None
        if unit.remote.status != status:
            self._remote.set_status(unit.remote.mlflow_id, status, unit.end_time())
            unit.remote.status = status

    def _replace(self, unit: Unit) -> None:
        """Start a fresh MLflow run from the committed rows; the one with other numbers goes to the trash."""
        assert unit.remote is not None
        old = unit.remote.mlflow_id
        self._remote.log(old, tags={REPLACED: "true"})
        self._remote.delete(old)
        unit.remote, unit.replaces, unit.datasets = None, old, set()
        for member in unit.members.values():
            member.published, member.fold, member.points = False, None, []
            member.suspect, member.floor = False, -1


def dataset(axes: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, str] | None:
    """The run's test images as an MLflow dataset: the condition's name, and the fingerprint as its digest."""
    fingerprint = row.get("data_fingerprint")
    if not fingerprint:
        return None
    shown = naming.condition(axes)
    name = axes["benchmark"] if shown == axes["benchmark"] else f"{axes['benchmark']} {shown}"
    described = {k: axes[k] for k in ("benchmark", "corruption", "severity", "benchmark_options") if axes[k]}
    return {
        "name": name,
        "digest": fingerprint[:36],
        "source": naming.shown_value({"tags": {**described, "fingerprint": fingerprint}}),
        "profile": naming.shown_value({"images": row.get("images")}),
    }


def _start_time(unit: Unit) -> int:
    """When the first member started: by its row, or when that was heard of (0: now)."""
    starts = [millis((m.row or {}).get("started_at")) or m.started_at for m in unit.members.values()]
    return min((s for s in starts if s), default=0)


def _let_go(unit: Unit) -> None:
    """A run deleted by hand stays deleted: nothing is kept for it."""
    unit.tags = {}
    for member in unit.members.values():
        member.points, member.fold, member.row = [], None, None
        member.published = member.status == FINISHED
