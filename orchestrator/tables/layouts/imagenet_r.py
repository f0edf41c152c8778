"""Tables 10 to 13 of the paper: ImageNet-R and VisDA-2021, models across."""

from __future__ import annotations

from orchestrator.tables.data import SweepData
from orchestrator.tables.layouts.base import Layout, LayoutOptions
from orchestrator.tables.metrics import metric
from orchestrator.tables.model import Table
from orchestrator.tables.pivot import pivot

BENCHMARKS = {"imagenet-r", "visda-2021"}


def build(data: SweepData, options: LayoutOptions) -> list[Table]:
    metrics = options.metrics or (metric("accuracy"),)
    split = tuple(axis for axis in ("benchmark", "scenario") if len(data.values(axis)) > 1)
    pivoted = options.with_pivot(split=split)
    return [pivot(data, ["label"], ["model"], metrics, pivoted, name="imagenet-r")]


LAYOUT = Layout(
    name="imagenet-r",
    help="methods down, models across; benchmarks and scenarios in sections (T10, T11, T12, T13)",
    experiments=("T10", "T11", "T12", "T13"),
    suits=lambda data: set(data.values("benchmark")) <= BENCHMARKS,
    build=build,
)
