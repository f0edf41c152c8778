"""Plots of results: accuracy by corruption and by group, sensitivity curves, speed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from orchestrator.report.panels import panels, slug
from orchestrator.report.style import Plot, legend, looks, panel
from orchestrator.tables import names
from orchestrator.tables.data import SweepData
from orchestrator.tables.layouts.base import LayoutOptions, is_biased, unique_runs
from orchestrator.tables.layouts.sensitivity import LAYOUT as SENSITIVITY
from orchestrator.tables.metrics import Metric, metric
from orchestrator.tables.model import Table
from orchestrator.tables.pivot import PivotOptions, pivot
from orchestrator.tables.statistics import Summary, summarise


def accuracy_by_corruption(data: SweepData, options: PivotOptions = PivotOptions()) -> list[Plot]:
    """A dot plot for each part: corruptions down, accuracy across, a dot with its standard deviation a method."""
    found = []
    for title, part in panels(data):
        if len(part.values("corruption")) > 1:
            table = pivot(part, ["corruption"], ["label"], [metric("accuracy")], options)
            found += _dots(table, "accuracy-by-corruption", title or "Accuracy by corruption", "accuracy (%)")
    return found


def accuracy_by_group(data: SweepData, options: PivotOptions = PivotOptions()) -> list[Plot]:
    """The same for groups (spurious correlation), the worst last."""
    if not is_biased(data):
        return []
    found = []
    for title, part in panels(data):
        groups = list(dict.fromkeys(g["name"] for e in part.entries for g in e.row.get("group_accuracies") or ()))
        rows = [(g, metric(f"group:{g}")) for g in groups]
        rows += [("average", metric("average_accuracy")), ("worst group", metric("worst_group_accuracy"))]
        lines = {
            label: [(name, _summary(part, label, of, options)) for name, of in rows]
            for label in names.ordered("label", part.values("label"))
        }
        heading = title or "Accuracy by group"
        found += _dot_plot(lines, "accuracy-by-group", heading, "accuracy (%)")
    return found


def _summary(part: SweepData, label: str, of: Metric, options: PivotOptions) -> Summary:
    return summarise([e for e in part.entries if e.axes["label"] == label], of, ddof=options.ddof)


def _dots(table: Table, name: str, title: str, x: str) -> list[Plot]:
    lines: dict[str, list[tuple[str, Summary]]] = {}
    for j, column in enumerate(table.columns):
        for row, cells in zip(table.rows, table.cells):
            cell = cells[j]
            if cell is not None and cell.summary is not None:
                lines.setdefault(column.key["label"], []).append((row.title, cell.summary))
    return _dot_plot(lines, name, title, x)


def _dot_plot(lines: dict[str, list[tuple[str, Summary]]], name: str, title: str, x: str) -> list[Plot]:
    rows = list(dict.fromkeys(row for line in lines.values() for row, _ in line))
    if not any(s.mean is not None for line in lines.values() for _, s in line):
        return []
    figure, axes = panel(height=1.1 + 0.28 * len(rows) + 0.22 * -(-len(lines) // 4))
    styles = looks(list(lines))
    shift = np.linspace(-0.22, 0.22, len(lines)) if len(lines) > 1 else [0.0]
    for (label, line), offset in zip(lines.items(), shift):
        shown = [(rows.index(row), s) for row, s in line if s.mean is not None]
        look = styles[label]
        axes.errorbar(
            [s.mean for _, s in shown],
            [i + offset for i, _ in shown],
            xerr=[s.std or 0.0 for _, s in shown],
            fmt=look.marker,
            color=look.colour,
            elinewidth=1.2,
            label=names.title("label", label),
        )
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    for i, row in enumerate(rows):
        if row in ("Avg.", "worst group"):
            axes.axhspan(i - 0.5, i + 0.5, color="#eef2f5", zorder=0)
    axes.set_xlabel(x)
    axes.set_title(title)
    legend(axes, [names.title("label", v) for v in lines])
    caption = f"{title}: {x}, a mark for each method; bars: ± one standard deviation over seeds."
    return [Plot(name=slug(name, title), title=title, caption=caption, figure=figure)]


def sensitivity_curves(data: SweepData, options: LayoutOptions = LayoutOptions()) -> list[Plot]:
    """A curve for each setting that a sensitivity sweep varies (figures 7, 8 and 9)."""
    if not SENSITIVITY.suits(data):
        return []
    tables = SENSITIVITY.build(data, options)
    others = [line for table in tables if table.name == "others" for line in _levels(table)]
    found = []
    for table in tables:
        setting = table.name.removeprefix("sensitivity-")
        if setting == table.name or len(table.rows) < 2:
            continue
        found += _curve(table, setting, others)
    return found


def _levels(table: Table) -> list[tuple[str, float]]:
    """(method, number) of what the sweep compares the curves with, where there is one number each."""
    if len(table.columns) != 1:
        return []
    found = [(row.title, cells[0].summary) for row, cells in zip(table.rows, table.cells) if cells[0] is not None]
    return [(title, s.mean) for title, s in found if s is not None and s.mean is not None]


def _curve(table: Table, setting: str, levels: Sequence[tuple[str, float]] = ()) -> list[Plot]:
    figure, axes = panel()
    for j, (column, look) in enumerate(zip(table.columns, looks([c.title for c in table.columns]).values())):
        shown = [
            (row.key[f"settings.{setting}"], line[j].summary)
            for row, line in zip(table.rows, table.cells)
            if line[j] is not None and line[j].summary is not None and line[j].summary.mean is not None
        ]
        if not shown:
            continue
        numeric = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v, _ in shown)
        axes.errorbar(
            [v if numeric else str(v) for v, _ in shown],
            [s.mean for _, s in shown],
            yerr=[s.std or 0.0 for _, s in shown],
            color=look.colour,
            marker=look.marker,
            linestyle=look.dash if numeric else "none",
            capsize=2,
            label=column.title,
        )
    for title, level in levels:
        axes.axhline(level, color="#666666", linestyle=(0, (4, 2)), linewidth=1.2, label=title)
    axes.set_xlabel(table.stub)
    axes.set_ylabel("accuracy (%)")
    axes.set_title(table.stub)
    legend(axes, [*(c.title for c in table.columns), *(title for title, _ in levels)])
    caption = f"Accuracy for each {table.stub}; bars: ± one standard deviation over seeds."
    if levels:
        caption += f" Level lines: {', '.join(title for title, _ in levels)}."
    return [Plot(name=slug("sensitivity", setting), title=table.stub, caption=caption, figure=figure)]


SPEED_AXES = ("benchmark", "benchmark_options", "model", "scenario", "batch_size", "precision")


def speed(data: SweepData, options: PivotOptions = PivotOptions()) -> list[Plot]:
    """Images per second of each method, a plot for each part."""
    found = []
    for title, part in panels(unique_runs(data), SPEED_AXES):
        labels = names.ordered("label", part.values("label"))
        rows = [(label, _summary(part, label, metric("images_per_second"), options)) for label in labels]
        rows = [(label, s) for label, s in rows if s.mean is not None]
        if rows:
            found.append(_bars(rows, title or "Images per second"))
    return found


def _bars(rows: Sequence[tuple[str, Summary]], title: str) -> Plot:
    figure, axes = panel(height=0.9 + 0.3 * len(rows))
    styles = looks([label for label, _ in rows])
    for i, (label, s) in enumerate(rows):
        axes.barh(i, s.mean, height=0.62, color=styles[label].colour, alpha=0.85)
        axes.annotate(
            f"{s.mean:,.0f}" if s.mean >= 10 else f"{s.mean:.1f}",
            (s.mean, i),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
        )
    axes.set_yticks(range(len(rows)), [names.title("label", label) for label, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.margins(x=0.16)
    axes.set_xlabel("images per second (a run's share of its group)")
    axes.set_title(title)
    caption = f"{title}: images per second, mean over runs; adaptation alone, decoding apart."
    return Plot(name=slug("speed", title), title=title, caption=caption, figure=figure)
