"""Table 20 of the paper: ways of pretraining down, methods with average and worst-group accuracy across."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.tables import names
from orchestrator.tables.data import SweepData
from orchestrator.tables.layouts.base import Layout, LayoutOptions, is_biased
from orchestrator.tables.layouts.biased import titled
from orchestrator.tables.metrics import metric
from orchestrator.tables.model import Table
from orchestrator.tables.pivot import pivot


def build(data: SweepData, options: LayoutOptions) -> list[Table]:
    metrics = options.metrics or (metric("average_accuracy"), metric("worst_group_accuracy"))
    pivoted = options.with_pivot(decimals=2)
    table = pivot(data, ["model"], ["label"], metrics, pivoted, name="pretraining")
    columns = tuple(replace(titled(c), group=names.title("label", c.key["label"])) for c in table.columns)
    return [replace(table, columns=columns, stub="pretraining")]


def _suits(data: SweepData) -> bool:
    models = [str(m) for m in data.values("model")]
    return is_biased(data) and len(models) > 1 and any("plpd" in m for m in models)


LAYOUT = Layout(
    name="pretraining",
    help="networks, pretrained in different ways, down; each method's average and worst-group accuracy across (T20)",
    experiments=("T20",),
    suits=_suits,
    build=build,
)
