"""Tables as CSV for other tools: one line a cell, all tables in one file."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from orchestrator.tables.model import Cell, Column, Row, Table
from orchestrator.tables.per_seed import every

FIELDS = (
    "table",
    "section",
    "row",
    "row_kind",
    "column_group",
    "column",
    "column_kind",
    "metric",
    "unit",
    "mean",
    "std",
    "n",
    "expected",
    "median",
    "low",
    "high",
    "best",
    "flag",
    "seeds",
    "missing",
    "failed",
    "nan",
    "collapsed",
    "text",
    "notes",
)


def render(tables: Sequence[Table], *, width: int = 100, color: bool = False) -> str:
    """A header and a line for each cell. Numbers have full precision, in the table's unit; ``seeds`` holds
    ``SEED=VALUE`` pairs; a table's notes (protocol, precision, weights, …) stand on each of its lines.
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, FIELDS, lineterminator="\n")
    writer.writeheader()
    for table in tables:
        for row, cells in zip(table.rows, table.cells):
            writer.writerows(
                record(table, row, column, cell) for column, cell in zip(table.columns, cells) if cell is not None
            )
    return out.getvalue().rstrip("\n")


def record(table: Table, row: Row, column: Column, cell: Cell) -> dict[str, Any]:
    """One cell as flat values; None where there is none."""
    values: dict[str, Any] = {
        "table": table.name,
        "section": row.section,
        "row": row.title,
        "row_kind": row.kind,
        "column_group": column.group,
        "column": column.title,
        "column_kind": column.kind,
        "metric": column.metric,
        "unit": column.unit,
        "best": cell.best,
        "flag": cell.flag,
        "text": cell.text,
        "notes": " ".join(table.notes),
    }
    if cell.interval is not None:
        values["low"], values["high"] = cell.interval
    summary = cell.summary
    if summary is not None:
        values |= {"mean": summary.mean, "std": summary.std, "n": summary.n, "expected": summary.expected}
        values["median"] = summary.median
        values["seeds"] = " ".join(f"{_name(r)}={summary.values.get(r, w)!s}" for r, w in every(summary).items())
        for field in ("missing", "failed", "nan", "collapsed"):
            values[field] = " ".join(map(_name, getattr(summary, field)))
    return values


def _name(replicate: tuple[int, int | None]) -> str:
    seed, pretrained = replicate
    return str(seed) if pretrained is None else f"{seed}/{pretrained}"
