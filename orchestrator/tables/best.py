"""The best of each column (or row), ties after rounding as printed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from orchestrator.tables.cells import number
from orchestrator.tables.model import Cell, Table, sections


def _printed(cell: Cell | None) -> float | None:
    if cell is None or cell.summary is None or cell.summary.mean is None:
        return None
    return float(number(cell.summary.mean, cell).replace(",", ""))


def ranks(cells: list[Cell | None], higher: bool) -> list[int]:
    """For each cell 0 if it is best, 1 if second best, else 2; equal as printed is equal in rank."""
    values = [_printed(c) for c in cells]
    distinct = sorted({v for v in values if v is not None}, reverse=higher)
    return [min(distinct.index(v), 2) if v is not None else 2 for v in values]


def mark_best(table: Table, *, second: bool = False) -> Table:
    """The table with its best cells marked, within each section and column (or along each row). A line of
    candidates with one value only has no best.
    """
    grid = [list(row) for row in table.cells]
    for line, higher in _lines(table):
        cells = [grid[i][j] for i, j in line]
        if higher is None or sum(_printed(c) is not None for c in cells) < 2:
            continue
        for (i, j), rank in zip(line, ranks(cells, higher)):
            if rank == 0 or (rank == 1 and second):
                grid[i][j] = replace(grid[i][j], best=rank == 0, second=rank == 1)
    return replace(table, cells=tuple(tuple(row) for row in grid))


def _lines(table: Table) -> Iterator[tuple[list[tuple[int, int]], bool | None]]:
    """The lines along which cells compete: their positions and the direction."""
    if table.best_along == "row":
        for i, row in enumerate(table.rows):
            if row.kind in ("value", "average"):
                by_metric: dict[tuple[str, str], list[int]] = {}
                for j, column in enumerate(table.columns):
                    if column.higher is not None:
                        by_metric.setdefault((column.metric, column.kind), []).append(j)
                for members in by_metric.values():
                    yield [(i, j) for j in members], table.columns[members[0]].higher
        return
    for _, members in sections(table.rows):
        candidates = [i for i in members if table.rows[i].kind == "value"]
        for j, column in enumerate(table.columns):
            yield [(i, j) for i in candidates], column.higher
