"""Table 14 of the paper: how well each confidence score orders right before wrong, within the worst group."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from deyo.confidence import aurc, excess_aurc
from deyo.types import ConfigError
from orchestrator.analyses import ANALYSES
from orchestrator.tables import names
from orchestrator.tables.best import mark_best
from orchestrator.tables.data import Entry, Replicate, SweepData
from orchestrator.tables.layouts.base import Layout, LayoutOptions, unique_runs
from orchestrator.tables.model import Cell, Column, Row, Table
from orchestrator.tables.paper import adapts
from orchestrator.tables.parts import cut
from orchestrator.tables.pivot import spread_note
from orchestrator.tables.provenance import caption
from orchestrator.tables.statistics import Summary, condition, mean_std

TITLES = {
    "entropy": "Entropy",
    "augmix": "AugMix PLPD",
    "pixel": "Pixel PLPD",
    "patch": "Patch PLPD",
    "occlusion": "Occlusion PLPD",
}


APART = (
    "benchmark_options",
    "scenario",
    "scenario_options",
    "batch_size",
    "protocol",
    "precision",
    "max_images",
)
"""Axes over which no curve is averaged, beside benchmark and network."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """One confidence score of one run: its samples' scores and whether they were right (all n samples), and the
    group of each (−1: none).
    """

    entry: Entry
    confidence: str
    score: np.ndarray
    correct: np.ndarray
    group: np.ndarray


def scores(data: SweepData) -> list[Score]:
    """The scores that the sweep's recorded samples offer: −entropy of every run, and PLPD of those that computed it
    for every sample; none where no run recorded samples.
    """
    done = [e for e in unique_runs(data).entries if e.status == "done"]
    table = data.samples([e.run_id for e in done]) if data.samples is not None and done else None
    if table is None or not len(table):
        return []
    by_run = _by_run(table)
    return [s for e in done if e.run_id in by_run for s in _scores_of(e, by_run[e.run_id])]


def _by_run(table: pa.Table) -> dict[str, dict[str, np.ndarray]]:
    table = table.select(["run_id", "position", "label", "group", "prediction", "entropy", "plpd"])
    table = table.sort_by([("run_id", "ascending"), ("position", "ascending")])
    ids = table["run_id"].to_numpy()
    starts = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))
    columns = {n: table[n].to_numpy() for n in table.column_names if n != "run_id"}
    ends = [*starts[1:], len(ids)]
    return {ids[a]: {n: c[a:b] for n, c in columns.items()} for a, b in zip(starts, ends)}


def _scores_of(entry: Entry, rows: Mapping[str, np.ndarray]) -> list[Score]:
    correct = rows["label"] == rows["prediction"]
    entry = _by_statistics(entry)
    shared: dict[str, Any] = {"entry": entry, "correct": correct, "group": rows["group"]}
    found = [Score(confidence="entropy", score=-rows["entropy"].astype(np.float64), **shared)]
    plpd = rows["plpd"].astype(np.float64)
    if len(plpd) and not np.isnan(plpd).any():
        transform = entry.axes["settings"].get("transform", "plpd")
        found.append(Score(confidence=str(transform), score=plpd, **shared))
    return found


def _by_statistics(entry: Entry) -> Entry:
    """A ``score`` run under the BatchNorm mode it watched: the score itself says which PLPD it computed."""
    if entry.axes["method"] != "score":
        return entry
    return replace(entry, axes={**entry.axes, "label": f"{entry.axes['settings']['statistics']} statistics"})


def parts(found: Sequence[Score]) -> list[tuple[str, list[Score]]]:
    """(title, scores) of each part whose curves may be averaged: one network on one benchmark as it was set up."""
    return cut(found, APART, lambda s: s.entry, named=("benchmark", "model"))


def worst_group(found: Sequence[Score]) -> int | None:
    """The group with the lowest accuracy of the network as it was pretrained: of the runs that adapt nothing, else
    of all runs; None where there are no groups.
    """
    base = [s for s in found if not adapts(s.entry.axes)] or found
    groups = sorted({int(g) for s in base for g in np.unique(s.group)} - {-1})
    if not groups:
        return None
    accuracy = {g: np.mean(np.concatenate([s.correct[s.group == g] for s in base])) for g in groups}
    return min(groups, key=lambda g: accuracy[g])


def build(data: SweepData, options: LayoutOptions) -> list[Table]:
    found = scores(data)
    if not found:
        raise ConfigError(
            "risk and coverage need each sample's entropy and PLPD, and no run of this sweep recorded samples: add "
            "`samples: true` to its spec and run it again"
        )
    sections = parts(found)
    rows, cells, groups = [], [], []
    for where, members in sections:
        group, benchmark = worst_group(members), members[0].entry.axes["benchmark"]
        groups.append("all samples" if group is None else f"group {group}, the worst of {benchmark}")
        section = where if len(sections) > 1 else ""
        for (confidence, label), same in in_order(members).items():
            title = f"{TITLES.get(confidence, confidence)} ({names.title('label', label)})"
            rows.append(Row(title=title, section=section, key={"confidence": confidence, "label": label}))
            cells.append(_cells(same, group, options.pivot.ddof))
    columns = (
        Column(title="AURC", metric="aurc", unit="%", higher=False),
        Column(title="E-AURC", metric="excess_aurc", unit="%", higher=False),
        Column(title="accuracy", metric="accuracy", unit="%"),
        Column(title="samples", metric="samples"),
    )
    title = f"{data.sweep}: area under the risk-coverage curve (%), {'; '.join(dict.fromkeys(groups))}"
    table = Table(
        name="aurc",
        title=title,
        stub="confidence (run)",
        columns=columns,
        rows=tuple(rows),
        cells=tuple(cells),
        ddof=options.pivot.ddof,
    )
    from orchestrator.tables.layouts.aurc_groups import by_group

    each = [
        table
        for where, members in sections
        for table in by_group(members, f"{data.sweep}: {where}", options.pivot.ddof)
    ]
    expected = max(
        len({s.entry.replicate for s in same}) for _, members in sections for same in in_order(members).values()
    )
    return [
        mark_best(table).with_notes(
            "Samples sorted by confidence, ties in stream order; AURC is the mean risk over all coverages, E-AURC "
            "what it exceeds a perfect score's by.",
            "BatchNorm statistics: running ones for no-adapt, the batch's for methods that adapt, else as named.",
            _adapting([s.entry for s in found]),
            spread_note(data, options.pivot.ddof, expected),
            *caption([s.entry for s in found]),
        ),
        *each,
    ]


def _adapting(entries: Sequence[Entry]) -> str:
    labels = dict.fromkeys(names.title("label", e.axes["label"]) for e in entries if adapts(e.axes))
    return f"Scored while adapting, not before: {', '.join(labels)}." if labels else ""


def in_order(members: Sequence[Score]) -> dict[tuple[str, str], list[Score]]:
    """``grouped``, in the order of ``TITLES``."""
    order = list(TITLES)
    return grouped(sorted(members, key=lambda s: order.index(s.confidence) if s.confidence in order else len(order)))


def grouped(members: Sequence[Score]) -> dict[tuple[str, str], list[Score]]:
    """Scores of a part by confidence and label. Runs that watched the same samples for other scores count once."""
    found: dict[tuple[str, str], dict[tuple[Any, ...], Score]] = {}
    for s in members:
        axes = s.entry.axes
        sample = (axes["corruption"], axes["severity"], s.entry.replicate)
        found.setdefault((s.confidence, axes["label"]), {}).setdefault(sample, s)
    return {key: list(same.values()) for key, same in found.items()}


def _cells(same: Sequence[Score], group: int | None, ddof: int) -> tuple[Cell, ...]:
    """AURC, E-AURC, accuracy (means over a replicate's conditions) and samples (their sum).

    A replicate that lacks a condition which others have is in no mean.
    """
    found: dict[Replicate, dict[Hashable, tuple[float, ...]]] = {}
    for s in same:
        chosen = slice(None) if group is None else s.group == group
        score, correct = s.score[chosen], s.correct[chosen]
        measured = (aurc(score, correct), excess_aurc(score, correct), float(np.mean(correct)))
        of_replicate = found.setdefault(s.entry.replicate, {})
        of_replicate[condition(s.entry)] = (*(100 * m for m in measured), float(len(correct)))
    values: dict[str, dict[Replicate, float]] = {"aurc": {}, "excess": {}, "accuracy": {}, "samples": {}}
    conditions = set().union(*found.values())
    for replicate, runs in found.items():
        if runs.keys() < conditions:
            continue
        for name, column in zip(values, np.array(list(runs.values())).T):
            values[name][replicate] = float(column.sum() if name == "samples" else column.mean())
    entries = tuple(s.entry for s in same)
    return tuple(
        Cell(
            summary=_summary(v, ddof, len(found)),
            decimals=0 if n == "samples" else 2,
            thousands=n == "samples",
            entries=entries,
        )
        for n, v in values.items()
    )


def _summary(values: dict[Replicate, float], ddof: int, expected: int) -> Summary:
    mean, std = mean_std(list(values.values()), ddof)
    return Summary(mean=mean, std=std, n=len(values), expected=expected, values=values)


LAYOUT = Layout(
    name="aurc",
    help="confidence scores down; AURC and E-AURC within the worst group, from recorded samples (T14)",
    experiments=("T14",),
    suits=lambda data: {"score"} <= {e.axes["method"] for e in data.entries} <= set(ANALYSES),
    build=build,
)
