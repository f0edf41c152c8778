"""Tables 18 and 19 of the paper: variants of DeYO and EATA down, benchmarks with average and worst across."""

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
    table = pivot(data, ["label"], ["benchmark"], metrics, pivoted, name="multiple-augmentations")
    columns = tuple(replace(titled(c), group=names.title("benchmark", c.key["benchmark"])) for c in table.columns)
    return [replace(table, columns=columns)]


def _suits(data: SweepData) -> bool:
    if not is_biased(data):
        return False
    settings = [e.axes["settings"] for e in data.entries]
    return any(s.get("entropy_copies") or s.get("transform") == "augmix" for s in settings)


LAYOUT = Layout(
    name="multiple-augmentations",
    help="variants down; each benchmark's average and worst-group accuracy across (T18, T19)",
    experiments=("T18", "T19"),
    suits=_suits,
    build=build,
)
