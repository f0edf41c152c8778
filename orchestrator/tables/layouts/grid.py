"""Any sweep: methods down, corruptions (by severity) across; one column of the metric where there are none."""

from __future__ import annotations

from orchestrator.tables.data import SweepData
from orchestrator.tables.layouts.base import Layout, LayoutOptions
from orchestrator.tables.metrics import metric
from orchestrator.tables.model import Table
from orchestrator.tables.pivot import pivot

COLUMNS_ACROSS = 8


def build(data: SweepData, options: LayoutOptions) -> list[Table]:
    metrics = options.metrics or (metric("accuracy"),)
    corruptions, severities = data.values("corruption"), data.values("severity")
    cols, split = [], []
    if len(corruptions) > 1:
        cols = ["corruption"]
    if len(severities) > 1:
        across = len(corruptions) * len(severities) <= COLUMNS_ACROSS
        cols, split = (["severity", *cols], []) if across else (cols, ["severity"])
    return [pivot(data, ["label"], cols, metrics, options.with_pivot(split=tuple(split)), name="grid")]


LAYOUT = Layout(
    name="grid",
    help="methods down; corruptions by severity across, with averages; models and scenarios in sections",
    suits=lambda data: True,
    build=build,
)
