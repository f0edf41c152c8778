"""A table before it is rendered: rows, columns, cells and caption, the same for every format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.tables.data import Entry
from orchestrator.tables.statistics import Summary


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell: statistics (``summary``), or plain ``text``.

    ``best`` and ``second`` are set in bold and underlined. ``signed`` prints a plus sign (differences).
    ``interval`` is a 95 % interval around the mean. ``flag`` is "outside" (of two standard errors), "unclear" (not
    distinguishable), "part" (over less of the stream than what it is compared with) or "". ``thousands`` groups
    digits. ``entries`` are the runs behind the cell.
    """

    summary: Summary | None = None
    text: str | None = None
    decimals: int = 1
    best: bool = False
    second: bool = False
    signed: bool = False
    thousands: bool = False
    interval: tuple[float, float] | None = None
    flag: str = ""
    entries: tuple[Entry, ...] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column. Neighbours of one ``group`` share a spanning title. ``higher``: more is better; None: no best.

    ``key`` holds the axes' values, ``metric`` the metric's name, ``kind`` is "value", "average", "weighted",
    "paper", "difference", "text" or "interval".
    """

    title: str
    group: str = ""
    key: Mapping[str, Any] = field(default_factory=dict)
    metric: str = ""
    unit: str = ""
    higher: bool | None = None
    kind: str = "value"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row; consecutive rows of one ``section`` stand under its title. ``kind`` is "value", "average", "seed",
    "paper" or "difference"; only "value" rows compete for best.
    """

    title: str
    section: str = ""
    key: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "value"


@dataclass(frozen=True, kw_only=True)
class Table:
    """``cells[i][j]`` belongs to ``rows[i]`` and ``columns[j]``; None where nothing was planned.

    ``notes`` is the caption's fine print, one statement an item. ``best_along`` says whether the best is sought
    down each column ("column") or along each row ("row").
    """

    name: str
    title: str
    stub: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    cells: tuple[tuple[Cell | None, ...], ...]
    notes: tuple[str, ...] = ()
    best_along: str = "column"
    ddof: int = 1

    def with_notes(self, *notes: str) -> Table:
        return replace(self, notes=self.notes + tuple(n for n in notes if n))


def sections(rows: Sequence[Row]) -> list[tuple[str, list[int]]]:
    """Row indices by section, in order."""
    found: list[tuple[str, list[int]]] = []
    for i, row in enumerate(rows):
        if not found or found[-1][0] != row.section:
            found.append((row.section, []))
        found[-1][1].append(i)
    return found


def spans(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """Spanning titles with the number of columns under each, in order."""
    found: list[tuple[str, int]] = []
    for column in columns:
        if found and found[-1][0] == column.group:
            found[-1] = (column.group, found[-1][1] + 1)
        else:
            found.append((column.group, 1))
    return found
