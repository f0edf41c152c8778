"""Which points a finished run still lacks in MLflow, given what an earlier attempt or publisher put there."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from copy import copy

from orchestrator.tracking.curves import TIMED, Point, fold_all
from orchestrator.tracking.naming import clean_key
from orchestrator.tracking.source import Source
from orchestrator.tracking.state import Member, Unit
from orchestrator.tracking.summary import run_points, seed_points

History = Callable[[str], dict[int, float]]


class ConflictError(Exception):
    """MLflow shows other numbers than the committed attempt: its run must be replaced."""


def place(points: Iterable[Point], label: str) -> list[Point]:
    """Curve points under their names in the unit."""
    return [p._replace(key=clean_key(f"stream/{p.key}{label}")) for p in points]


def lacking_points(unit: Unit, member: Member, source: Source, history: History) -> list[Point]:
    """Everything that is still to be logged of a finished member, curves and numbers.

    What streamed through the publisher only lacks its end; after gaps, retries and restarts the committed
    rows are read again and compared with what MLflow has. Raises ``ConflictError``, and what the store raises.
    """
    suspect = member.suspect and not _untouched(unit, member, history)
    label = unit.curve_label(member)
    points = seed_points(member.row or {}, member.suffix) if unit.grouped else run_points(member.row or {})
    if label is not None:
        points += place(_curves(unit, member, source, suspect), label)
    if not suspect or unit.remote is None:
        return member.points + points
    return missing(points, unit.remote.keys, history)


def _untouched(unit: Unit, member: Member, history: History) -> bool:
    """Whether the MLflow run has nothing of this member, so that there is nothing to compare."""
    keys = unit.remote.keys if unit.remote else frozenset()
    if not unit.grouped:
        return not keys
    label = unit.curve_label(member)
    if label is not None and any(key.endswith(label) for key in keys):
        return False
    shown = clean_key(f"by_seed/accuracy{member.suffix}")
    return shown not in keys or member.seed not in history(shown)


def _curves(unit: Unit, member: Member, source: Source, suspect: bool) -> list[Point]:
    row = member.row or {}
    images, speed = row.get("images"), row.get("images_per_second")
    fold = member.fold
    if not suspect and fold is not None and images in (None, fold.images):
        return copy(fold).finish(speed)  # a copy: after an outage this is asked again
    return fold_all(source.batches(member.run_id), unit.density, speed)


def missing(expected: Sequence[Point], keys: Collection[str], history: History) -> list[Point]:
    """The points of ``expected`` that MLflow lacks.

    ``keys`` are the metrics that the MLflow run has, ``history`` fetches one. Raises ``ConflictError`` if a
    number that MLflow shows is not the committed one. Speeds along the stream are measurements, no two
    attempts agree in them: where MLflow has one, it stays.
    """
    known = {key: history(key) for key in {p.key for p in expected} & set(keys)}
    lacking = []
    for point in expected:
        steps = known.get(point.key, {})
        if point.step not in steps:
            lacking.append(point)
        elif not _timed(point.key) and not _same(steps[point.step], point.value):
            raise ConflictError(f"{point.key} at step {point.step}: {steps[point.step]} is not {point.value}")
    return lacking


def _same(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)


def _timed(key: str) -> bool:
    parts = key.split("/")
    return parts[0] == "stream" and parts[1] in TIMED
