"""Plots from recorded samples: risk-coverage curves, accuracy by entropy quartile, Areas 1 to 4."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from deyo.confidence import aurc, risk_coverage
from orchestrator.report.panels import slug
from orchestrator.report.style import Look, Plot, legend, looks, panel
from orchestrator.tables import names
from orchestrator.tables.data import SweepData
from orchestrator.tables.layouts.aurc import TITLES, Score, grouped, parts, scores, worst_group
from orchestrator.tables.paper import adapts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 200
LINES = 10
"""Curves in one panel; the best-ordering scores are kept."""
TITLE = 56
"""Letters of one line of a title."""
LONG = 28
"""Letters of a legend's entry from which on entries stand below each other."""

Key = tuple[str, str]


def confidence_plots(data: SweepData) -> list[Plot]:
    """All plots that the sweep's recorded samples allow; none where it recorded none."""
    plots = []
    for title, part in parts(scores(data)):
        group = worst_group(part)
        where = title + ("" if group is None else f", worst group ({group})")
        inside = [_within(s, group) for s in part]
        plots += risk_coverage_plot(inside, where)
        plots += quartile_plot(inside, where)
        plots += area_plot([_within(s, None) for s in part], title)
    return plots


def _within(score: Score, group: int | None) -> Score:
    """The score within a group only."""
    if group is None:
        return score
    chosen = score.group == group
    return Score(
        entry=score.entry,
        confidence=score.confidence,
        score=score.score[chosen],
        correct=score.correct[chosen],
        group=score.group[chosen],
    )


def _lines(part: Sequence[Score]) -> dict[Key, list[Score]]:
    """``grouped``, without the empty ones."""
    return grouped([s for s in part if len(s.correct)])


def risk_coverage_plot(part: Sequence[Score], where: str) -> list[Plot]:
    """Risk against coverage, a line for each score: the mean over seeds, with a band."""
    lines = _lines(part)
    area = {key: float(np.mean([aurc(s.score, s.correct) for s in same])) for key, same in lines.items()}
    kept = sorted(lines, key=lambda key: area[key])[:LINES]
    if not kept:
        return []
    figure, axes = panel(height=3.0 + 0.12 * len(kept))
    styles = dict(zip(kept, looks([f"{c} {label}" for c, label in kept]).values()))
    grid = np.linspace(1 / POINTS, 1, POINTS)
    for key in kept:
        risks = np.stack([np.interp(grid, *risk_coverage(s.score, s.correct)) for s in lines[key]])
        _line(axes, grid, 100 * risks, styles[key], f"{_title(key)}: {100 * area[key]:.1f}")
    axes.set_xlabel("coverage (% of samples kept, most confident first)")
    axes.set_ylabel("risk (% wrong)")
    axes.set_title(textwrap.fill(where, TITLE))
    axes.set_ylim(bottom=0)
    columns = 2 if max(len(_title(key)) for key in kept) < LONG else 1
    axes.figure.legend(loc="outside lower center", ncols=columns, title="score (run): AURC in %", handlelength=2.6)
    caption = f"{where}: risk-coverage curves; lower is better. Mean over seeds, band: ± one standard deviation."
    return [Plot(name=slug("risk-coverage", where), title=where, caption=caption, figure=figure)]


def _line(axes: Axes, x: np.ndarray, values: np.ndarray, look: Look, label: str) -> None:
    mean = values.mean(0)
    spread = values.std(0, ddof=1) if len(values) > 1 else np.zeros_like(mean)
    axes.plot(100 * x, mean, color=look.colour, linestyle=look.dash, marker=look.marker, markevery=(9, 36), label=label)
    low, high = (np.clip(edge, 0, 100) for edge in (mean - spread, mean + spread))
    axes.fill_between(100 * x, low, high, color=look.colour, alpha=0.15, linewidth=0)


def _title(key: Key) -> str:
    confidence, label = key
    return f"{TITLES.get(confidence, confidence)} ({names.title('label', label)})"


def quartile_plot(part: Sequence[Score], where: str) -> list[Plot]:
    """Accuracy by entropy quartile (Figure 2a): the network as it was pretrained where a run adapts nothing."""
    entropy = [s for s in part if s.confidence == "entropy" and len(s.correct) >= 4]
    chosen = [s for s in entropy if not adapts(s.entry.axes)] or entropy
    lines = _lines(chosen)
    if not lines:
        return []
    figure, axes = panel()
    width = 0.8 / len(lines)
    styles = looks([label for _, label in lines])
    for i, ((_, label), same) in enumerate(lines.items()):
        accuracy = np.stack([quartile_accuracy(s.score, s.correct) for s in same])
        spread = accuracy.std(0, ddof=1) if len(accuracy) > 1 else None
        axes.bar(
            np.arange(4) + (i - (len(lines) - 1) / 2) * width,
            100 * accuracy.mean(0),
            width * 0.9,
            yerr=None if spread is None else 100 * spread,
            color=styles[label].colour,
            label=names.title("label", label),
        )
    axes.set_xticks(range(4), ["0–Q1", "Q1–Q2", "Q2–Q3", "Q3–max"])
    axes.set_xlabel("entropy")
    axes.set_ylabel("accuracy (%)")
    axes.set_title(textwrap.fill(where, TITLE))
    legend(axes, [names.title("label", v) for _, v in lines])
    caption = f"{where}: accuracy within the quartiles of entropy, the lowest first."
    return [Plot(name=slug("entropy-quartiles", where), title=where, caption=caption, figure=figure)]


def quartile_accuracy(score: np.ndarray, correct: np.ndarray) -> np.ndarray:
    """Accuracy float64 [4] in the quarters of the samples by falling confidence, ties in order."""
    order = np.argsort(-score, kind="stable")
    return np.array([correct[p].mean() for p in np.array_split(order, 4)])


def area_plot(part: Sequence[Score], where: str) -> list[Plot]:
    """Accuracy and share of Areas 1 to 4 (Figure 6), for runs that computed PLPD for every sample."""
    entropy = {s.entry.run_id: s for s in part if s.confidence == "entropy"}
    found = []
    for (confidence, label), same in _lines([s for s in part if s.confidence != "entropy"]).items():
        rows = [_areas(entropy[s.entry.run_id], s) for s in same]
        if any(r is None for r in rows):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # an area that is empty in every run has no accuracy
            accuracy, share = (np.nanmean(np.stack(x), axis=0) for x in zip(*(r for r in rows if r is not None)))
        found.append(_area_panel(accuracy, share, f"{where}: {_title((confidence, label))}"))
    return found


def _areas(entropy: Score, plpd: Score) -> tuple[np.ndarray, np.ndarray] | None:
    """Accuracy and share [4] by the run's own thresholds; None where the number of its classes is unknown."""
    settings: Mapping[str, object] = plpd.entry.axes["settings"]
    classes = _classes(plpd.entry.axes)
    if classes is None:
        return None
    low_entropy = -entropy.score < float(settings.get("entropy_margin", 0.5)) * math.log(classes)
    area = 2 * low_entropy + (plpd.score > float(settings.get("plpd_threshold", 0.2)))
    count = np.bincount(area, minlength=4)
    with np.errstate(invalid="ignore"):
        return np.bincount(area, weights=plpd.correct, minlength=4) / count, count / len(area)


def _classes(axes: Mapping[str, Any]) -> int | None:
    """The C of thresholds that are fractions of ln C: of the benchmark with its options, else of the network; None
    where only the data can tell.
    """
    from deyo.benchmarks import benchmark_info
    from deyo.types import ConfigError, DataError

    try:
        known = benchmark_info(axes["benchmark"], **axes["benchmark_options"]).num_classes
        if known is None:
            from deyo.networks import network_info

            known = network_info(axes["model"]).num_classes
    except (ConfigError, DataError):
        return None
    return known


def _area_panel(accuracy: np.ndarray, share: np.ndarray, title: str) -> Plot:
    figure, axes = panel()
    axes.bar(np.arange(4) - 0.2, 100 * accuracy, 0.38, color="#0072B2", label="accuracy (%)")
    axes.bar(np.arange(4) + 0.2, 100 * share, 0.38, color="#E69F00", hatch="//", edgecolor="white", label="share (%)")
    kinds = ["high H\nlow PLPD", "high H\nhigh PLPD", "low H\nlow PLPD", "low H\nhigh PLPD"]
    axes.set_xticks(range(4), [f"Area {i + 1}\n{k}" for i, k in enumerate(kinds)])
    axes.set_title(textwrap.fill(title, TITLE))
    legend(axes, ["accuracy (%)", "share (%)"])
    caption = f"{title}: accuracy and share of the four areas of entropy (H) and PLPD; DeYO adapts on Area 4."
    return Plot(name=slug("areas", title), title=title, caption=caption, figure=figure)
