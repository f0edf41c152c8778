"""From a request (what ``deyo-sweep table`` takes) to tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from deyo.types import ConfigError
from orchestrator.tables.data import SweepData, filtered
from orchestrator.tables.generated import apart
from orchestrator.tables.layouts import default_layout, layout
from orchestrator.tables.layouts.base import Layout, LayoutOptions
from orchestrator.tables.metrics import metric
from orchestrator.tables.model import Table
from orchestrator.tables.per_seed import with_seeds
from orchestrator.tables.pivot import PivotOptions, pivot

AVERAGES = ("auto", "plain", "weighted", "both", "none")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to tabulate. ``rows`` or ``cols`` ask for a free pivot, else ``layout`` (by default the one that suits)
    is built. ``metrics`` are names of ``orchestrator.tables.metrics``; ``where`` holds ``AXIS=VALUE`` conditions.
    """

    layout: str | None = None
    rows: Sequence[str] = ()
    cols: Sequence[str] = ()
    metrics: Sequence[str] = ()
    where: Sequence[str] = ()
    ddof: int = 1
    averages: str = "auto"
    seeds: bool = False
    allow_mixed: bool = False
    pivot: PivotOptions = field(init=False)

    def __post_init__(self) -> None:
        if self.ddof not in (0, 1):
            raise ConfigError(f"--ddof {self.ddof}: 1 (sample std) or 0 (population std) is meant")
        if self.averages not in AVERAGES:
            raise ConfigError(f"--averages {self.averages}: one of {', '.join(AVERAGES)}")
        if self.layout and (self.rows or self.cols):
            raise ConfigError("--layout has its own rows and columns: give either it or --rows and --cols")
        options = PivotOptions(ddof=self.ddof, averages=self.averages, allow_mixed=self.allow_mixed)
        object.__setattr__(self, "pivot", options)


def make_tables(data: SweepData, request: Request = Request()) -> list[Table]:
    """The tables that ``request`` asks for. Raises ``ConfigError`` for what cannot be."""
    return select_tables(data, request)[1]


def select_tables(data: SweepData, request: Request) -> tuple[Layout | None, list[Table]]:
    """The layout taken (None for a free pivot) and its tables. Released and generated corruptions stand in tables of
    their own.
    """
    data = filtered(data, request.where)
    if not data.entries:
        raise ConfigError(f"sweep '{data.sweep}' has no runs yet; `deyo-sweep status {data.sweep}` says why")
    chosen = None
    if not (request.rows or request.cols):
        chosen = layout(request.layout) if request.layout else default_layout(data)
    parts = apart(data)
    tables = [table for part in parts for table in _built(part, chosen, request, alone=len(parts) == 1)]
    return chosen, [with_seeds(t) for t in tables] if request.seeds else tables


def _built(data: SweepData, chosen: Layout | None, request: Request, *, alone: bool) -> Sequence[Table]:
    """The tables of one part of the sweep; ``alone``: it is the whole."""
    metrics = tuple(metric(m) for m in request.metrics)
    if chosen is None:
        rows = request.rows or ["label"]
        return [pivot(data, rows, request.cols, metrics or (metric("accuracy"),), request.pivot)]
    try:
        return chosen.build(data, LayoutOptions(metrics=metrics, pivot=request.pivot))
    except ConfigError as error:
        if alone:
            raise
        raise ConfigError(
            f"{error} (this is of {', '.join(map(str, data.values('benchmark')))} alone: released and generated "
            "corruptions stand in tables of their own; --where benchmark=NAME keeps one kind)"
        ) from None
