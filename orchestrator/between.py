"""What passes around groups' loops (a network taken, rows written, the way to the next group), from recorded rows."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Any

Row = Mapping[str, Any]

SOON = 1.0
"""A group that begins within so many seconds of another's end on the same device had waited for it."""


def seconds_between(rows: Iterable[Row]) -> float:
    """Seconds a run beside its group's loop and its reading: those of the median group. 0 if nothing is known."""
    places: dict[tuple[str, str], dict[tuple[str, ...], list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["started_at"] and row["finished_at"] and row["group_size"]:
            group = row["started_at"], row["method"], row["model"]
            places[row["host"] or "", row["device"] or ""][group].append(row)
    found = []
    for groups in places.values():
        ordered = [groups[group] for group in sorted(groups)]
        found += [_between(*pair) for pair in zip_longest(ordered, ordered[1:])]
    return max(0.0, statistics.median(found)) if found else 0.0


def _between(group: Sequence[Row], following: Sequence[Row] | None) -> float:
    """What a run of ``group`` took beside its loop, up to the start of the ``following`` one if that came soon."""
    start, end = _time(group[0]["started_at"]), max(_time(row["finished_at"]) for row in group)
    if following is not None and 0 <= (begun := _time(following[0]["started_at"])) - end <= SOON:
        end = begun
    loop = group[0]["seconds"] * group[0]["group_size"]
    return (end - start - loop - sum(row["decode_seconds"] or 0.0 for row in group)) / len(group)


def _time(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()
