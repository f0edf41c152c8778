"""What a layout is, and what layouts share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.tables.data import Entry, SweepData
from orchestrator.tables.metrics import Metric
from orchestrator.tables.model import Table
from orchestrator.tables.pivot import PivotOptions

BIASED = ("waterbirds", "colored-mnist", "colored-digits")


@dataclass(frozen=True, kw_only=True)
class LayoutOptions:
    """What a layout is asked for. ``metrics`` is empty where the layout chooses."""

    metrics: tuple[Metric, ...] = ()
    pivot: PivotOptions = field(default_factory=PivotOptions)

    def with_pivot(self, **changes: Any) -> PivotOptions:
        return replace(self.pivot, **changes)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A way to lay out a sweep. ``experiments`` are the paper's tables of this form (ids of methods.md §6), with
    which ``--compare paper`` compares. ``suits`` says whether a sweep is of this kind.
    """

    name: str
    help: str
    experiments: tuple[str, ...] = ()
    suits: Callable[[SweepData], bool]
    build: Callable[[SweepData, LayoutOptions], Sequence[Table]]


def is_biased(data: SweepData) -> bool:
    """Whether every run has groups: by its scenario, its benchmark, or its numbers."""
    return all(_grouped(e) for e in data.entries) and bool(data.entries)


def _grouped(entry: Entry) -> bool:
    axes = entry.axes
    return (
        axes["scenario"] == "biased" or axes["benchmark"] in BIASED or entry.row.get("worst_group_accuracy") is not None
    )


def unique_runs(data: SweepData) -> SweepData:
    """Each run once, whatever labels were merged into it."""
    seen: set[tuple[str, Any]] = set()

    def first(entry: Entry) -> bool:
        key = (entry.run_id, entry.replicate)
        if entry.run_id and key in seen:
            return False
        seen.add(key)
        return True

    return data.where(first)


def by_axis(data: SweepData, axis: str) -> list[tuple[Any, SweepData]]:
    """The sweep split by the values of an axis."""
    return [(v, data.where(lambda e, v=v: e.axes[axis] == v)) for v in data.values(axis)]
