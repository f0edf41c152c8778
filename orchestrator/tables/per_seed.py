"""Each seed's value under its row: what stands behind mean±std."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.tables.data import Replicate
from orchestrator.tables.model import Cell, Row, Table
from orchestrator.tables.statistics import Summary


def with_seeds(table: Table) -> Table:
    """The table with a row for each seed under each row of values, and one for the median (collapsed runs move
    a mean far, a median little).
    """
    rows: list[Row] = []
    cells: list[tuple[Cell | None, ...]] = []
    for row, values in zip(table.rows, table.cells):
        rows.append(row)
        cells.append(values)
        if row.kind not in ("value", "average"):
            continue
        replicates = _replicates(values)
        shared = len({network for _, network in replicates}) == 1
        for replicate in replicates:
            title = seed_title((replicate[0], None) if shared else replicate)  # one for all stands in the notes
            rows.append(Row(title=title, section=row.section, key=row.key, kind="seed"))
            cells.append(tuple(_seed_cell(c, replicate) for c in values))
        rows.append(Row(title="median", section=row.section, key=row.key, kind="seed"))
        cells.append(tuple(_median_cell(c) for c in values))
    return replace(table, rows=tuple(rows), cells=tuple(cells))


def seed_title(replicate: Replicate) -> str:
    seed, pretrained = replicate
    return f"seed {seed}" if pretrained in (None, seed) else f"seed {seed}, network {pretrained}"


def every(summary: Summary) -> dict[Replicate, str]:
    """Each replicate of a summary with what became of it: "", "missing", "failed", "NaN" or "n/a"."""
    found = dict.fromkeys(summary.values, "")
    for word, members in (
        ("missing", summary.missing),
        ("failed", summary.failed),
        ("NaN", summary.nan),
        ("n/a", summary.absent),
    ):
        found |= dict.fromkeys(members, word)
    return found


def _replicates(cells: tuple[Cell | None, ...]) -> list[Replicate]:
    found = {r for c in cells if c is not None and c.summary is not None for r in every(c.summary)}
    return sorted(found, key=lambda r: (r[0], -1 if r[1] is None else r[1]))


def _seed_cell(cell: Cell | None, replicate: Replicate) -> Cell | None:
    if cell is None or cell.summary is None:
        return None
    fate = every(cell.summary).get(replicate)
    if fate is None:
        return None
    if fate:
        return replace(cell, summary=None, text=fate, best=False, second=False)
    return _single(cell, cell.summary.values[replicate], collapsed=replicate in cell.summary.collapsed)


def _median_cell(cell: Cell | None) -> Cell | None:
    if cell is None or cell.summary is None or cell.summary.median is None:
        return None
    return _single(cell, cell.summary.median, collapsed=False)


def _single(cell: Cell, value: float, *, collapsed: bool) -> Cell:
    marks = ((0, None),) if collapsed else ()
    summary = Summary(mean=value, std=None, n=1, expected=1, collapsed=marks)
    return replace(cell, summary=summary, best=False, second=False)
