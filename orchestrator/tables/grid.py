"""The runs of a sweep sorted into a table's cells, and the axes by which rows must be split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.tables import names
from orchestrator.tables.data import Entry, SweepData, getter
from orchestrator.tables.model import Column, Row
from orchestrator.tables.statistics import Condition, condition

# Axes that a table never averages over: where one of them varies inside a cell, rows are split by it.
SPLIT = (
    "benchmark",
    "benchmark_options",
    "scenario",
    "scenario_options",
    "model",
    "batch_size",
    "protocol",
    "precision",
    "max_images",
    "label",
)
METHOD_AXES = ("label", "method")

Key = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Entries by (section, row) and column."""

    data: SweepData
    split: tuple[str, ...]
    rows: tuple[str, ...]
    cols: tuple[str, ...]
    cells: Mapping[tuple[Key, Key, Key], list[Entry]]
    merged: dict[tuple[str, ...], dict[tuple[Key, Key], list[Entry]]] = field(default_factory=dict)
    spanned: dict[tuple[str, ...], dict[tuple[Key, Key], dict[Condition, None]]] = field(default_factory=dict)


def make_grid(data: SweepData, rows: tuple[str, ...], cols: tuple[str, ...], split_by: Sequence[str]) -> Grid:
    get = {axis: getter(axis) for axis in (*rows, *cols, *split_by, *SPLIT)}
    split = [a for a in split_by if a not in rows and a not in cols]
    for axis in SPLIT:
        if axis in rows or axis in cols or axis in split or (axis == "label" and "method" in (*rows, *cols)):
            continue
        seen: dict[Key, Any] = {}
        shown = [get[a] for a in (*rows, *cols, *split)]
        value = get[axis]
        if any(seen.setdefault(tuple(g(e) for g in shown), value(e)) != value(e) for e in data.entries):
            split.append(axis)
    cells: dict[tuple[Key, Key, Key], list[Entry]] = {}
    by_split, by_row, by_col = ([get[a] for a in axes] for axes in (split, rows, cols))
    for e in data.entries:
        key = tuple(tuple(g(e) for g in part) for part in (by_split, by_row, by_col))
        cells.setdefault(key, []).append(e)
    return Grid(data=data, split=tuple(split), rows=rows, cols=cols, cells=cells)


def sorted_keys(axes: Sequence[str], keys: list[Key]) -> list[Key]:
    """Keys in table order, first axis slowest."""
    rank = []
    for i, axis in enumerate(axes):
        values = names.ordered(axis, list(dict.fromkeys(k[i] for k in keys)))
        rank.append({v: n for n, v in enumerate(values)})
    return sorted(dict.fromkeys(keys), key=lambda k: tuple(rank[i][v] for i, v in enumerate(k)))


def averaged_entries(grid: Grid, split: Key, row: Row, column: Column) -> list[Entry]:
    """Entries of all cells that an average stands for: those that agree on the axes which it has."""
    wanted = {**row.key, **column.key}
    every = (*grid.rows, *grid.cols)
    axes = tuple(a for a in every if a in wanted)
    if axes not in grid.merged:
        index: dict[tuple[Key, Key], list[Entry]] = {}
        for (s, r, c), entries in grid.cells.items():
            here = dict(zip(every, (*r, *c)))
            index.setdefault((s, tuple(here[a] for a in axes)), []).extend(entries)
        grid.merged[axes] = index
    return grid.merged[axes].get((split, tuple(wanted[a] for a in axes)), [])


def spanned_conditions(grid: Grid, split: Key, row: Row, column: Column) -> dict[Condition, None]:
    """The conditions that a cell must span to be comparable with the other methods' cells: all those which any
    method has at this place.
    """
    wanted = {**row.key, **column.key}
    axes = tuple(a for a in (*grid.rows, *grid.cols) if a in wanted and a not in METHOD_AXES and "." not in a)
    split = tuple(None if a in METHOD_AXES else v for a, v in zip(grid.split, split))
    if axes not in grid.spanned:
        index: dict[tuple[Key, Key], dict[Condition, None]] = {}
        for (s, r, c), entries in grid.cells.items():
            here = dict(zip((*grid.rows, *grid.cols), (*r, *c)))
            s = tuple(None if a in METHOD_AXES else v for a, v in zip(grid.split, s))
            index.setdefault((s, tuple(here[a] for a in axes)), {}).update(dict.fromkeys(map(condition, entries)))
        grid.spanned[axes] = index
    return grid.spanned[axes].get((split, tuple(wanted[a] for a in axes)), {})
