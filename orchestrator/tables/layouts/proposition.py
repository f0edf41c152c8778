"""Proposition 1 of the paper on synthetic factors: does the score's sign foretell what a sample does?"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from deyo.types import ConfigError
from orchestrator.tables import names
from orchestrator.tables.data import Entry, SweepData
from orchestrator.tables.layouts.base import Layout, LayoutOptions, by_axis, unique_runs
from orchestrator.tables.model import Cell, Column, Row, Table
from orchestrator.tables.pivot import spread_note
from orchestrator.tables.provenance import caption
from orchestrator.tables.statistics import Summary, mean_std

COLUMNS = {
    "agree": "sign agrees",
    "harmful": "harmful",
    "harmful_confident": "harmful, lower entropy half",
    "before": "accuracy before",
    "all": "after: all",
    "low-entropy": "after: lower entropy half",
    "harmless": "after: harmless",
}


def measured(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of ``COLUMNS`` of one run, in percent."""
    found = json.loads(row["analysis"])
    score, change, entropy = (np.asarray(found["changes"][name]) for name in ("score", "change", "entropy"))
    # A score of exactly zero foretells no change; one whose change is below rounding foretells none either.
    judged = (score != 0) & (np.abs(change) > 1e-12)
    confident = entropy <= np.median(entropy)
    paths = {name: path["accuracy"] for name, path in found["trajectories"].items()}
    fractions = {
        "agree": float(np.mean(np.sign(score[judged]) == np.sign(change[judged]))),
        "harmful": float(np.mean(score < 0)),
        "harmful_confident": float(np.mean(score[confident] < 0)),
        "before": paths["all"][0],
        **{name: accuracy[-1] for name, accuracy in paths.items()},
    }
    return {name: 100 * value for name, value in fractions.items()}


def of_proposition(data: SweepData) -> SweepData:
    """The finished runs of the analysis."""
    return unique_runs(data.where(lambda e: e.axes["method"] == "proposition" and bool(e.row.get("analysis"))))


def build(data: SweepData, options: LayoutOptions) -> list[Table]:
    chosen = of_proposition(data)
    if not chosen.entries:
        raise ConfigError("no finished run of the analysis 'proposition' in this sweep")
    rows, cells = [], []
    for label, part in by_axis(chosen, "label"):
        rows.append(Row(title=names.title("label", label), key={"label": label}))
        cells.append(_cells(part.entries, options.pivot.ddof))
    table = Table(
        name="proposition",
        title=f"{data.sweep}: Proposition 1 on synthetic factors (%)",
        stub="world",
        columns=tuple(Column(title=title, metric=name, unit="%") for name, title in COLUMNS.items()),
        rows=tuple(rows),
        cells=tuple(cells),
        ddof=options.pivot.ddof,
    )
    seeds = len({e.replicate for e in chosen.entries})
    return [
        table.with_notes(
            "Sign agrees: samples for which one step on them alone changes the gap between the classes' mean logits "
            "in the direction that the proposition's score says. Harmful: samples with a negative score.",
            spread_note(chosen, options.pivot.ddof, seeds),
            *caption(list(chosen.entries)),
        )
    ]


def _cells(entries: Sequence[Entry], ddof: int) -> tuple[Cell, ...]:
    runs = {e.replicate: measured(e.row) for e in entries}
    cells = []
    for name in COLUMNS:
        values = {replicate: numbers[name] for replicate, numbers in runs.items()}
        mean, std = mean_std(list(values.values()), ddof)
        summary = Summary(mean=mean, std=std, n=len(values), expected=len(values), values=values)
        cells.append(Cell(summary=summary, decimals=1, entries=tuple(entries)))
    return tuple(cells)


LAYOUT = Layout(
    name="proposition",
    help="synthetic worlds down; agreement of signs, harmful samples, accuracy after adaptation across (P1)",
    suits=lambda data: {e.axes["method"] for e in data.entries} == {"proposition"},
    build=build,
)
