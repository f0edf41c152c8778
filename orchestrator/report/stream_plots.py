"""Plots along the stream: running accuracy and selected share, a band over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from orchestrator.report.curves import WINDOWS, Curve, on_grid
from orchestrator.report.panels import panels, slug
from orchestrator.report.style import Plot, legend, looks, panel
from orchestrator.tables import names
from orchestrator.tables.data import Entry, SweepData

DETAILED = 30
"""Panels for single corruptions are drawn up to this many."""

Lines = Callable[[Curve], tuple[np.ndarray, np.ndarray]]


def running_accuracy(data: SweepData, curves: Mapping[str, Curve]) -> list[Plot]:
    """A plot for each part of the sweep, over all its corruptions."""
    return _plots(data, curves, "running-accuracy", "Running accuracy", _accuracy, "accuracy so far (%)", 100)


def by_corruption(data: SweepData, curves: Mapping[str, Curve]) -> list[Plot]:
    """The same for each corruption, where they are few enough to be looked at."""
    found = []
    for title, part in panels(data):
        corruptions = names.ordered("corruption", part.values("corruption"))
        if len(corruptions) < 2:
            continue
        for corruption in corruptions:
            one = part.where(lambda e, c=corruption: e.axes["corruption"] == c)
            heading = ", ".join(x for x in (title, names.title("corruption", corruption)) if x)
            found += _panel(one, curves, "running-accuracy", heading, _accuracy, "accuracy so far (%)", 100)
    return found if len(found) <= DETAILED else []


def selected_share(data: SweepData, curves: Mapping[str, Curve]) -> list[Plot]:
    """The share of images that passed every filter, of the methods that drop any."""
    labels = [
        label
        for label in data.values("label")
        if any(np.nanmin(curves[e.run_id].selected, initial=1) < 0.999 for e in _with_curve(data, curves, label))
    ]
    chosen = data.where(lambda e: e.axes["label"] in labels)
    return _plots(chosen, curves, "selected-share", "Selected share", _share, "images selected (%)", 100)


def _accuracy(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    return curve.position, curve.accuracy


def _share(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    return curve.window, curve.selected


def _with_curve(data: SweepData, curves: Mapping[str, Curve], label: str) -> list[Entry]:
    return [e for e in data.entries if e.axes["label"] == label and e.run_id in curves]


def _plots(
    data: SweepData, curves: Mapping[str, Curve], name: str, heading: str, of: Lines, y: str, scale: float
) -> list[Plot]:
    found = []
    for title, part in panels(data):
        found += _panel(part, curves, name, title or heading, of, y, scale)
    return found


def _panel(
    part: SweepData, curves: Mapping[str, Curve], name: str, title: str, of: Lines, y: str, scale: float
) -> list[Plot]:
    labels = names.ordered("label", [v for v in part.values("label") if _with_curve(part, curves, v)])
    if not labels:
        return []
    figure, axes = panel()
    styles = looks(labels)
    for label in labels:
        x, mean, low, high = band(_with_curve(part, curves, label), curves, of)
        look = styles[label]
        every = max(len(x) // 6, 1)
        axes.plot(
            x,
            mean * scale,
            color=look.colour,
            linestyle=look.dash,
            marker=look.marker,
            markevery=(every // 2, every),
            label=names.title("label", label),
        )
        axes.fill_between(x, low * scale, high * scale, color=look.colour, alpha=0.18, linewidth=0)
    axes.set_xlabel("images seen")
    axes.set_ylabel(y)
    axes.set_title(title)
    axes.xaxis.set_major_formatter(lambda v, _: f"{v / 1000:g}k" if v >= 10_000 else f"{v:g}")
    legend(axes, [names.title("label", v) for v in labels])
    seeds = len({e.replicate for e in part.entries if e.run_id in curves})
    caption = f"{title}: {y} along the stream; line: mean over n={seeds} seeds, band: ± one standard deviation" + (
        ", each seed averaged over corruptions first." if len(part.values("corruption")) > 1 else "."
    )
    return [Plot(name=slug(name, title), title=title, caption=caption, figure=figure)]


def band(
    entries: Sequence[Entry], curves: Mapping[str, Curve], of: Lines
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Positions, mean, mean − std and mean + std over seeds, both within [0, 1], where all shares are; conditions are
    averaged within a seed.
    """
    lines = [of(curves[e.run_id]) for e in entries]
    points = max(len(line[0]) for line in lines)
    x, values = on_grid([a for a, _ in lines], [b for _, b in lines], max(points, WINDOWS // 4))
    seeds: dict[object, list[np.ndarray]] = {}
    for e, line in zip(entries, values):
        seeds.setdefault(e.replicate, []).append(line)
    by_seed = np.stack([np.mean(v, axis=0) for v in seeds.values()])
    mean = by_seed.mean(0)
    spread = by_seed.std(0, ddof=1) if len(by_seed) > 1 else np.zeros_like(mean)
    return x, mean, np.clip(mean - spread, 0, 1), np.clip(mean + spread, 0, 1)
