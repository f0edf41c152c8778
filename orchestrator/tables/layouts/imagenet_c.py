"""Tables 1, 5, 8 and 9 of the paper: 15 corruptions in their four groups, and the average."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.tables import names
from orchestrator.tables.data import SweepData
from orchestrator.tables.layouts.base import Layout, LayoutOptions
from orchestrator.tables.metrics import metric
from orchestrator.tables.model import Column, Table
from orchestrator.tables.pivot import pivot


def build(data: SweepData, options: LayoutOptions) -> list[Table]:
    metrics = options.metrics or (metric("accuracy"),)
    split = tuple(axis for axis in ("severity", "scenario") if len(data.values(axis)) > 1)
    tables = [
        pivot(data, ["label"], ["corruption"], [m], options.with_pivot(split=split), name="imagenet-c") for m in metrics
    ]
    return [replace(t, columns=tuple(map(_grouped, t.columns))) for t in tables]


def _grouped(column: Column) -> Column:
    """The column under its corruption's group: Noise, Blur, Weather, Digital."""
    return replace(column, group=names.corruption_group(column.key.get("corruption")))


def _suits(data: SweepData) -> bool:
    corruptions = {c for c in data.values("corruption") if c is not None}
    return len(corruptions) >= 8 and len({names.corruption_group(c) for c in corruptions}) >= 3


LAYOUT = Layout(
    name="imagenet-c",
    help="methods down; the corruptions under Noise, Blur, Weather, Digital across, then the average (T1, T5, T8, T9)",
    experiments=("T1", "T5a", "T5b", "T8", "T9a", "T9b"),
    suits=_suits,
    build=build,
)
