"""Table 4 of the paper: one number for a stream of all corruptions mixed, by severity level."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.tables.data import SweepData
from orchestrator.tables.layouts.base import Layout, LayoutOptions
from orchestrator.tables.metrics import metric
from orchestrator.tables.model import Column, Table
from orchestrator.tables.pivot import pivot


def _level(column: Column) -> Column:
    severity = column.key.get("severity")
    return column if severity is None or column.group else replace(column, title=f"Level {severity}")


def build(data: SweepData, options: LayoutOptions) -> list[Table]:
    metrics = options.metrics or (metric("accuracy"),)
    table = pivot(data, ["label"], ["severity"], metrics, options.pivot, name="mixed")
    columns = tuple(map(_level, table.columns))
    return [replace(table, columns=columns if len(metrics) > 1 else columns[::-1], cells=_flipped(table, metrics))]


def _flipped(table: Table, metrics: tuple) -> tuple:
    """Level 5 before level 3, as the paper prints it (one metric)."""
    return table.cells if len(metrics) > 1 else tuple(row[::-1] for row in table.cells)


LAYOUT = Layout(
    name="mixed",
    help="methods down, severity levels across: streams that mix or concatenate corruptions (T4)",
    experiments=("T4",),
    suits=lambda data: {e.axes["scenario"] for e in data.entries} <= {"mixed", "continual"},
    build=build,
)
