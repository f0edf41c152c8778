"""What passes around groups' loops (a network taken, rows written, the way to the next group), from recorded rows."""

from __future__ import annotations

import contextlib
import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import zip_longest
from typing import Any

SOON = 1.0
"""A group that begins within so many seconds of another's end on the same device had waited for it."""


@dataclass
class Group:
    """The runs of one task: when it began and ended (seconds since the epoch), and what of that was known work.

    ``loops`` has the seconds of each loop once: runs whose streams are alike share one, others follow one another.
    """

    start: float
    end: float = 0.0
    runs: int = 0
    reading: float = 0.0
    loops: set[float] = field(default_factory=set)

    def add(self, row: Mapping[str, Any]) -> None:
        self.end = max(self.end, _time(row["finished_at"]))
        self.runs += 1
        self.reading += row["decode_seconds"] or 0.0
        self.loops.add(row["seconds"] * row["group_size"])

    def between(self, following: Group | None) -> float:
        """What a run took beside all that, up to the start of the ``following`` group if that came soon."""
        end = self.end
        if following is not None and 0 <= following.start - end <= SOON:
            end = following.start
        return (end - self.start - sum(self.loops) - self.reading) / self.runs


class Between:
    """What runs took beside their groups' loops and reading, on one kind of device.

    Of several workers on one device (and of a CPU's) only what passes within their groups is seen: another's group
    begins before theirs ends.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[str, str], dict[tuple[str, ...], Group]] = defaultdict(dict)

    def add(self, row: Mapping[str, Any]) -> None:
        """Learn from a finished run's row; one without times says nothing."""
        if not (row["started_at"] and row["finished_at"] and row["group_size"] and row["seconds"]):
            return
        groups = self._places[row["host"] or "", row["device"] or ""]
        key = row["started_at"], row["method"], row["model"]
        with contextlib.suppress(ValueError):  # a time that is none
            if key not in groups:
                groups[key] = Group(start=_time(row["started_at"]))
            groups[key].add(row)

    def seconds(self) -> float | None:
        """Seconds a run, those of the median group; None if nothing is known."""
        found = []
        for groups in self._places.values():
            ordered = [groups[key] for key in sorted(groups) if groups[key].runs]
            found += [group.between(following) for group, following in zip_longest(ordered, ordered[1:])]
        return max(0.0, statistics.median(found)) if found else None


def _time(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()
