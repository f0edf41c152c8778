"""Tables 2 and 3 of the paper: average (unweighted mean over groups) and worst-group accuracy."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.tables.data import SweepData
from orchestrator.tables.layouts.base import Layout, LayoutOptions, is_biased
from orchestrator.tables.metrics import metric
from orchestrator.tables.model import Column, Table
from orchestrator.tables.pivot import pivot

TITLES = {
    "average_accuracy": "Avg Acc",
    "worst_group_accuracy": "Worst-Group Acc",
    "accuracy": "Sample Acc",
    "adjusted_accuracy": "Adjusted Acc",
}
NOTE = (
    "Avg Acc is the unweighted mean over groups (the paper's average); "
    "sample mean and training-weighted average: --metric accuracy, adjusted_accuracy."
)


def titled(column: Column) -> Column:
    return replace(column, title=TITLES.get(column.metric, column.title))


def build(data: SweepData, options: LayoutOptions) -> list[Table]:
    metrics = options.metrics or (metric("average_accuracy"), metric("worst_group_accuracy"))
    table = pivot(data, ["label"], [], metrics, options.with_pivot(decimals=2), name="biased")
    return [replace(table, columns=tuple(map(titled, table.columns))).with_notes(NOTE)]


LAYOUT = Layout(
    name="biased",
    help="methods down; average and worst-group accuracy, two decimals (T2, T3)",
    experiments=("T2", "T3"),
    suits=is_biased,
    build=build,
)
