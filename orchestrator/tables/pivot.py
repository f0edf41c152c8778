"""Free pivots: any axes as rows and columns, mean±std over seeds in the cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from deyo.types import ConfigError
from orchestrator.tables import names
from orchestrator.tables.best import mark_best
from orchestrator.tables.cells import number, summaries
from orchestrator.tables.data import SweepData
from orchestrator.tables.grid import METHOD_AXES, Grid, averaged_entries, make_grid, sorted_keys, spanned_conditions
from orchestrator.tables.metrics import SPEED, Metric
from orchestrator.tables.model import Cell, Column, Row, Table
from orchestrator.tables.provenance import caption, refuse_mixed_cells
from orchestrator.tables.statistics import summarise


@dataclass(frozen=True, kw_only=True)
class PivotOptions:
    """How a pivot is made. ``averages`` is "auto" (the weighted one only where it differs as printed), "plain",
    "weighted", "both" or "none". ``split`` names axes to split rows by, before those found to be needed.
    """

    ddof: int = 1
    averages: str = "auto"
    allow_mixed: bool = False
    split: tuple[str, ...] = ()
    second: bool = False
    decimals: int | None = None
    average_title: str = "Avg."


def pivot(
    data: SweepData,
    rows: Sequence[str],
    cols: Sequence[str],
    metrics: Sequence[Metric],
    options: PivotOptions = PivotOptions(),
    *,
    name: str = "pivot",
    title: str = "",
) -> Table:
    """A table of ``metrics`` with the axes ``rows`` down and ``cols`` across.

    Corruptions and severities that are neither are averaged within a seed first; axes of ``SPLIT`` that are
    neither make sections. Where corruptions are shown, their averages follow (plain, and weighted by images).
    Raises ``ConfigError`` for unknown axes, runs that fall together, and mixtures.
    """
    if not data.entries:
        raise ConfigError(f"sweep '{data.sweep}' has no runs yet")
    rows, cols = tuple(rows), tuple(cols)
    for axis in {*rows, *cols} & {"seed", "pretrain_seed"}:
        raise ConfigError(f"mean and std run over {axis}; show each seed's values with --seeds instead")
    if set(rows) & set(cols):
        raise ConfigError(f"axis {', '.join(set(rows) & set(cols))} is both in --rows and --cols")
    grid = make_grid(data, rows, cols, options.split)
    refuse_mixed_cells(grid.cells.values(), allow=options.allow_mixed)
    columns = _columns(grid, metrics, options)
    table_rows = _rows(grid, options)
    filled = [tuple(_cell(grid, row, column, metrics, options) for column in columns) for row in table_rows]
    along = "row" if set(cols) & set(METHOD_AXES) else "column"
    table = Table(
        name=name,
        title=title or _title(data, metrics),
        stub=" / ".join(names.heading(a) for a in rows) or "all runs",
        columns=tuple(columns),
        rows=tuple(table_rows),
        cells=tuple(filled),
        best_along=along,
        ddof=options.ddof,
    )
    table = _tidy_averages(table, options)
    table = mark_best(table, second=options.second)
    return table.with_notes(*_notes(grid, metrics, options, table))


def _averages(kind_of: str, metric: Metric) -> tuple[str, ...]:
    both = ("average", "weighted") if metric.weighted else ("average",)
    return {"none": (), "plain": ("average",), "weighted": both[-1:]}.get(kind_of, both)


def _columns(grid: Grid, metrics: Sequence[Metric], options: PivotOptions) -> list[Column]:
    keys = sorted_keys(grid.cols, [c for _, _, c in grid.cells])
    inner = "corruption" if "corruption" in grid.cols else None
    outer_axes = [a for a in grid.cols if a != inner]
    columns: list[Column] = []
    for position, key in enumerate(keys):
        values = dict(zip(grid.cols, key))
        outer = ", ".join(names.title(a, values[a]) for a in outer_axes)
        for metric in metrics:
            columns.append(_column(values, outer, metric, len(metrics) > 1, grid.cols))
        if inner is None:
            continue
        following = dict(zip(grid.cols, keys[position + 1])) if position + 1 < len(keys) else None
        ended = following is None or any(following[a] != values[a] for a in outer_axes)
        members = [k for k in keys if all(dict(zip(grid.cols, k))[a] == values[a] for a in outer_axes)]
        if ended and len(members) > 1:
            shared = {a: values[a] for a in outer_axes}
            for metric in metrics:
                columns += _average_columns(shared, outer, metric, len(metrics) > 1, options)
    return columns


def _column(values: dict[str, Any], outer: str, metric: Metric, several: bool, axes: tuple[str, ...]) -> Column:
    if "corruption" in values:
        own, group = names.title("corruption", values["corruption"]), outer
    elif len(axes) > 1:
        own = names.title(axes[-1], values[axes[-1]])
        group = ", ".join(names.title(a, values[a]) for a in axes[:-1])
    else:
        own, group = (names.title(axes[0], values[axes[0]]) if axes else ""), ""
    if several:
        group, own = ", ".join(x for x in (group, own) if x), metric.title
    return Column(
        title=own or metric.title, group=group, key=values, metric=metric.name, unit=metric.unit, higher=metric.higher
    )


def _average_columns(
    shared: dict[str, Any], outer: str, metric: Metric, several: bool, options: PivotOptions
) -> list[Column]:
    out = []
    for kind in _averages(options.averages, metric):
        name = options.average_title if kind == "average" else f"{options.average_title} by images"
        out.append(
            Column(
                title=f"{name} {metric.title}" if several else name,
                group=outer,
                key=shared,
                metric=metric.name,
                unit=metric.unit,
                higher=metric.higher,
                kind=kind,
            )
        )
    return out


def _rows(grid: Grid, options: PivotOptions) -> list[Row]:
    keys = sorted_keys((*grid.split, *grid.rows), [(*s, *r) for s, r, _ in grid.cells])
    cut = len(grid.split)
    rows: list[Row] = []
    for position, key in enumerate(keys):
        section = ", ".join(names.title(a, v) for a, v in zip(grid.split, key))
        values = dict(zip((*grid.split, *grid.rows), key))
        title = " ".join(names.title(a, v) for a, v in zip(grid.rows, key[cut:])) or "all runs"
        rows.append(Row(title=title, section=section, key=values))
        last = position + 1 == len(keys) or keys[position + 1][:cut] != key[:cut]
        if last and "corruption" in grid.rows and options.averages != "none":
            shared = dict(zip(grid.split, key))
            rows.append(Row(title=options.average_title, section=section, key=shared, kind="average"))
    return rows


def _cell(grid: Grid, row: Row, column: Column, metrics: Sequence[Metric], options: PivotOptions) -> Cell | None:
    metric = next(m for m in metrics if m.name == column.metric)
    split = tuple(row.key[a] for a in grid.split)
    if row.kind == "value" and column.kind == "value":
        key = (split, tuple(row.key[a] for a in grid.rows), tuple(column.key[a] for a in grid.cols))
        entries = grid.cells.get(key, [])
    else:
        entries = averaged_entries(grid, split, row, column)
    if not entries:
        return None
    summary = summarise(
        entries,
        metric,
        ddof=options.ddof,
        weighted=column.kind == "weighted",
        conditions=spanned_conditions(grid, split, row, column),
    )
    decimals = metric.decimals if options.decimals is None else options.decimals
    return Cell(summary=summary, decimals=decimals, thousands=metric.unit == "samples", entries=tuple(entries))


def _tidy_averages(table: Table, options: PivotOptions) -> Table:
    """Without the weighted averages, where they print the same as the plain ones (``averages`` = "auto")."""
    if options.averages != "auto":
        return table
    weighted = [j for j, c in enumerate(table.columns) if c.kind == "weighted"]
    if any(_prints(row[j]) != _prints(row[j - 1]) for row in table.cells for j in weighted):
        return table
    keep = [j for j in range(len(table.columns)) if j not in weighted]
    return replace(
        table,
        columns=tuple(table.columns[j] for j in keep),
        cells=tuple(tuple(row[j] for j in keep) for row in table.cells),
    )


def _prints(cell: Cell | None) -> str:
    if cell is None or cell.summary is None or cell.summary.mean is None:
        return ""
    return number(cell.summary.mean, cell)


def _title(data: SweepData, metrics: Sequence[Metric]) -> str:
    constant = []
    for axis in ("benchmark", "scenario", "model", "corruption", "severity"):
        values = data.values(axis)
        if len(values) == 1 and values[0] is not None:
            constant.append(names.title(axis, values[0]))
    what = ", ".join(f"{m.title} ({m.unit})" if m.unit else m.title for m in metrics)
    return f"{data.sweep or 'sweep'}: {what}" + (f"; {', '.join(constant)}" if constant else "")


def spread_note(data: SweepData, ddof: int, n: int) -> str:
    """The sentence on mean, std and seeds; ``n`` is the number of seeds behind a full cell."""
    seeds = sorted({e.replicate[0] for e in data.entries})
    pretrained = sorted({e.replicate[1] for e in data.entries} - {None})
    kind = {0: "population std, ddof 0", 1: "sample std, ddof 1"}.get(ddof, f"std with ddof {ddof}")
    which = f"seed{'s' * (len(seeds) > 1)} {_listed(seeds)}"
    if pretrained:
        which += f"; networks pretrained with seed{'s' * (len(pretrained) > 1)} {_listed(pretrained)}"
    if n < 2:
        return f"n=1 ({which}): no std."
    return f"Mean±std over n={n} seeds unless marked ({kind}; {which})."


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds[:8])) + (", …" if len(seeds) > 8 else "")


def _notes(grid: Grid, metrics: Sequence[Metric], options: PivotOptions, table: Table) -> list[str]:
    data = grid.data
    lines = [spread_note(data, options.ddof, max((s.expected for s in summaries(table)), default=1))]
    kinds = {c.kind for c in table.columns} | {r.kind for r in table.rows}
    averaged = [a for a in ("corruption", "severity") if a not in (*grid.rows, *grid.cols, *grid.split)]
    hidden = [a for a in averaged if len(data.values(a)) > 1]
    if hidden:
        lines.append(f"Cells are plain means over {' and '.join(hidden)}, taken within a seed first.")
    if "average" in kinds:
        same = options.averages == "auto" and "weighted" not in kinds and any(m.weighted for m in metrics)
        more = "; weighted by images it prints the same" if same else ""
        lines.append(f"{options.average_title} is the plain mean over corruptions, within a seed first{more}.")
    if "weighted" in kinds:
        lines.append(f"{options.average_title} by images weights each corruption by its number of images.")
    if not data.planned:
        lines.append("The sweep's plan is not at hand: seeds that some cells have count as missing in others.")
    return lines + caption(data.entries, speed=any(m.name in SPEED for m in metrics))
