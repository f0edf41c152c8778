"""A reference number and a difference beside each of a table's cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from orchestrator.tables.model import Cell, Column, Row, Table

NARROW = 3
"""Up to this many columns of numbers, references stand beside; in wider tables, below."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The number to compare a cell with, and the difference (ours − reference)."""

    value: Cell
    difference: Cell


Find = Callable[[Row, Column, Cell], Reference | None]


def beside(table: Table, name: str, find: Find) -> Table:
    """The table with ``name``'s numbers and the differences. Rows of single seeds are left as they are."""
    found = [
        [
            find(row, column, cell) if cell is not None and cell.entries and row.kind != "seed" else None
            for column, cell in zip(table.columns, cells)
        ]
        for row, cells in zip(table.rows, table.cells)
    ]
    if not any(r is not None for line in found for r in line):
        return table
    numbers = sum(c.kind in ("value", "average", "weighted") for c in table.columns)
    return _across(table, name, found) if numbers <= NARROW else _down(table, name, found)


def _across(table: Table, name: str, found: list[list[Reference | None]]) -> Table:
    columns: list[Column] = []
    grid: list[list[Cell | None]] = [[] for _ in table.rows]
    for j, column in enumerate(table.columns):
        compared = any(line[j] is not None for line in found)
        group = ", ".join(x for x in (column.group, column.title) if x)
        columns.append(replace(column, group=group, title="ours") if compared else column)
        for line, cells in zip(grid, table.cells):
            line.append(cells[j])
        if not compared:
            continue
        columns.append(replace(column, group=group, title=name, kind="paper", higher=None))
        columns.append(replace(column, group=group, title="Δ", kind="difference", higher=None))
        for line, references in zip(grid, found):
            reference = references[j]
            line += [None, None] if reference is None else [reference.value, reference.difference]
    return replace(table, columns=tuple(columns), cells=tuple(map(tuple, grid)))


def _down(table: Table, name: str, found: list[list[Reference | None]]) -> Table:
    rows: list[Row] = []
    grid: list[tuple[Cell | None, ...]] = []
    for row, cells, references in zip(table.rows, table.cells, found):
        rows.append(row)
        grid.append(cells)
        if all(r is None for r in references):
            continue
        rows.append(replace(row, title=name, kind="paper"))
        grid.append(tuple(r and r.value for r in references))
        rows.append(replace(row, title="Δ", kind="difference"))
        grid.append(tuple(r and r.difference for r in references))
    return replace(table, rows=tuple(rows), cells=tuple(grid))
