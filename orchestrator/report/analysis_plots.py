"""Pictures of analyses, drawn from what their runs kept: Grad-CAM, transforms side by side, Proposition 1."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from orchestrator.analyses.pictures import decoded
from orchestrator.report.facts import done_runs
from orchestrator.report.panels import slug
from orchestrator.report.style import Plot, legend, looks, panel
from orchestrator.tables import names
from orchestrator.tables.data import Entry, SweepData, getter
from orchestrator.tables.layouts.aurc import APART
from orchestrator.tables.layouts.proposition import measured
from orchestrator.tables.parts import varying

SIDE = 1.15
"""Inches of a small picture."""

PATHS = {"all": "all samples", "low-entropy": "lower entropy half", "harmless": "harmless by the score"}


def analysis_plots(data: SweepData) -> list[Plot]:
    """The pictures of every analysis run of the sweep, in its order."""
    draw = {"grad-cam": _grad_cam, "transforms": _transforms, "proposition": _proposition}
    runs = [entry for entry in done_runs(data) if entry.row.get("analysis") and entry.axes["method"] in draw]
    apart = varying(runs, ("severity", *APART), known=("benchmark", "corruption", "model"))
    found: list[Plot] = []
    for entry in runs:
        where = _where(entry, apart)
        found += draw[entry.axes["method"]](entry, json.loads(entry.row["analysis"]), where)
    return found


def _where(entry: Entry, apart: Sequence[str]) -> str:
    """A run in words: its benchmark, network and seed, and the axes ``apart`` that tell it from others like it."""
    axes = entry.axes
    parts = [axes["benchmark"], axes["corruption"], axes["model"] if axes["model"] != "none" else None]
    parts += [names.title(axis, getter(axis)(entry)) for axis in apart]
    seed, pretrain_seed = entry.replicate
    parts.append(f"seed {seed}" if pretrain_seed is None else f"pretraining seed {pretrain_seed}")
    return ", ".join(str(p) for p in parts if p is not None)


def _grad_cam(entry: Entry, found: Mapping[str, Any], where: str) -> list[Plot]:
    """Images over their maps: the confident right ones in the upper half, the wrong ones below (Figure 2b, c)."""
    from matplotlib.figure import Figure

    kinds = {"right": True, "wrong": False}
    halves = {word: [e for e in found["examples"] if e["correct"] is right] for word, right in kinds.items()}
    halves = {word: examples for word, examples in halves.items() if examples}
    if not halves:
        return []
    columns = max(map(len, halves.values()))
    figure = Figure(figsize=(SIDE * max(columns, 3) + 0.4, (SIDE * 2 + 0.4) * len(halves)))
    grid = figure.subplots(2 * len(halves), columns, squeeze=False)
    for half, (word, examples) in enumerate(halves.items()):
        for j in range(columns):
            for line, axes in enumerate(grid[2 * half : 2 * half + 2, j]):
                _frame(axes)
                if j >= len(examples):
                    axes.set_visible(False)
                    continue
                example = examples[j]
                axes.imshow(decoded(example["image"]))
                if line:
                    axes.imshow(decoded(example["heat"]), cmap="inferno", alpha=0.55, vmin=0, vmax=255)
                else:
                    entropy = "–" if example["entropy"] is None else f"{example['entropy']:.2g}"
                    axes.set_title(f"{word}, {example['label']}→{example['prediction']}\nH={entropy}", fontsize=7)
    settings = entry.axes["settings"]
    title = f"{where}, {settings['statistics']} statistics"
    caption = (
        f"{title}: Grad-CAM at {found['layer']} of the lowest-entropy samples of {found['among']}, right ones above, "
        "wrong ones below; label→prediction, H: entropy in nats."
    )
    return [Plot(name=slug("grad-cam", title), title=title, caption=caption, figure=figure)]


def _transforms(entry: Entry, found: Mapping[str, Any], title: str) -> list[Plot]:
    """A row of views for each image (Figure 3)."""
    from matplotlib.figure import Figure

    examples = found["examples"]
    views = list(examples[0]["views"]) if examples else []
    if not views:
        return []
    figure = Figure(figsize=(SIDE * len(views) + 0.3, SIDE * len(examples) + 0.35))
    for line, example in zip(figure.subplots(len(examples), len(views), squeeze=False), examples):
        for axes, view in zip(line, views):
            _frame(axes)
            axes.imshow(decoded(example["views"][view]))
            if example is examples[0]:
                axes.set_title(view)
    caption = f"{title}: images as they are, and under each transform that destroys the object (AugMix keeps it)."
    return [Plot(name=slug("transforms", title), title=title, caption=caption, figure=figure)]


def _frame(axes: Any) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)


def _proposition(entry: Entry, found: Mapping[str, Any], _: str) -> list[Plot]:
    """What each sample does against what the score foretells, and accuracy while adapting on three choices."""
    numbers = measured(entry.row)
    where = f"{entry.axes['label']}, seed {entry.replicate[0]}"
    return [
        _changes(found["changes"], where, numbers),
        _trajectories({name: path["accuracy"] for name, path in found["trajectories"].items()}, where),
    ]


def _changes(changes: Mapping[str, Sequence[float]], where: str, numbers: Mapping[str, float]) -> Plot:
    score, change, entropy = (np.asarray(changes[name]) for name in ("score", "change", "entropy"))
    figure, axes = panel(height=3.4)
    dots = axes.scatter(score, change, c=entropy, cmap="viridis", s=9, linewidths=0)
    axes.axhline(0, color="#888888", linewidth=0.8)
    axes.axvline(0, color="#888888", linewidth=0.8)
    axes.set_xlabel("score ŷ·v(x)·(E₊v − E₋v)")
    axes.set_ylabel("change of the gap by one step")
    axes.set_title(where)
    figure.colorbar(dots, ax=axes, label="entropy (nats)")
    caption = (
        f"{where}: one step of entropy minimisation on each sample alone. The sign of the score foretells that of "
        f"the change for {numbers['agree']:.1f} % of the samples; {numbers['harmful']:.1f} % are harmful (negative), "
        f"of the lower entropy half {numbers['harmful_confident']:.1f} %."
    )
    return Plot(name=slug("proposition-changes", where), title=where, caption=caption, figure=figure)


def _trajectories(paths: Mapping[str, Sequence[float]], where: str) -> Plot:
    figure, axes = panel()
    titles = [PATHS.get(name, name) for name in paths]
    for name, accuracy, look in zip(titles, paths.values(), looks(titles).values()):
        steps = np.arange(len(accuracy))
        axes.plot(steps, 100 * np.asarray(accuracy), color=look.colour, linestyle=look.dash, label=name)
    axes.set_xlabel("steps of adaptation")
    axes.set_ylabel("accuracy (%)")
    axes.set_title(where)
    legend(axes, titles)
    caption = f"{where}: accuracy while adapting on all samples, the lower entropy half, or those of positive score."
    return Plot(name=slug("proposition-accuracy", where), title=where, caption=caption, figure=figure)
