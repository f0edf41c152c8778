"""The paper's published numbers (``experiments/paper/*.csv``) beside ours."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.analyses import is_analysis
from orchestrator.tables.beside import Reference, beside
from orchestrator.tables.data import Entry
from orchestrator.tables.model import Cell, Column, Row, Table
from orchestrator.tables.paper_setting import flags, is_papers, is_part, other_options, starts_from_random
from orchestrator.tables.statistics import Summary

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "paper"
AVERAGE = "average"
CORRUPTIONS_OF_PAPER = 15
SEEDS_OF_PAPER = 3
"""Runs behind the paper's ±: it does not say; three fit its values (methods.md §3.6)."""
FIXED = (
    "benchmark",
    "benchmark_options",
    "scenario",
    "scenario_options",
    "severity",
    "model",
    "method",
    "settings",
    "batch_size",
    "precision",
    "max_images",
)
"""What all runs behind one number of the paper share."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """One number of the paper. ``settings`` are those that the row stands for; ``line`` is where it is printed in
    the paper's source. ``decimals`` is how many it is printed with.
    """

    experiment: str
    line: int
    benchmark: str
    scenario: str
    severity: int | None
    model: str
    method: str
    settings: Mapping[str, Any]
    variant: str
    corruption: str
    metric: str
    value: float
    std: float | None
    decimals: int


@cache
def published() -> tuple[Published, ...]:
    """Every number of every table of the paper."""
    found = []
    for path in sorted(FOLDER.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as lines:
            found += [_published(record) for record in csv.DictReader(lines)]
    return tuple(found)


def _published(record: Mapping[str, str]) -> Published:
    value = record["value"]
    return Published(
        experiment=record["experiment"],
        line=int(record["line"]),
        benchmark=record["benchmark"],
        scenario=record["scenario"],
        severity=int(record["severity"]) if record["severity"] else None,
        model=record["model"],
        method=record["method"],
        settings=json.loads(record["settings"] or "{}"),
        variant=record["variant"],
        corruption=record["corruption"],
        metric=record["metric"],
        value=float(value),
        std=float(record["std"]) if record["std"] else None,
        decimals=len(value.partition(".")[2]),
    )


def with_paper(table: Table, experiments: Sequence[str] = ()) -> Table:
    """The table with the paper's number and the difference beside each cell that the paper has.

    Only numbers of ``experiments`` are taken (all, if empty). A difference is flagged where it exceeds two standard
    errors: of our mean, and of the paper's where it gives a ±. Beside runs over a part of the stream it is marked as
    such, and not judged.
    """
    numbers = _Numbers(p for p in published() if not experiments or p.experiment in experiments)
    lone = _lone_labels(table)
    used: dict[str, None] = {}
    random: dict[str, None] = {}

    def find(row: Row, column: Column, cell: Cell) -> Reference | None:
        match = numbers.match(cell.entries, column, lone, row.key.get("confidence", ""))
        if match is None or cell.summary is None:
            return None
        used[match.experiment] = None
        random.update((_named(e.axes), None) for e in cell.entries if starts_from_random(e.axes))
        return _reference(cell, match)

    compared = beside(table, "paper", find)
    return compared.with_notes(*_notes(table, used), _on_start(random))


def _named(axes: Mapping[str, Any]) -> str:
    return f"{axes['model']} on {axes['benchmark']}"


def _on_start(random: Mapping[str, None]) -> str:
    if not random:
        return ""
    return f"The paper's networks start from ImageNet weights; from random weights here: {', '.join(random)}."


def _notes(table: Table, used: Mapping[str, None]) -> list[str]:
    if not used:
        entries = [e for row in table.cells for c in row if c is not None for e in c.entries]
        have = sorted({_place(e.axes) for e in entries})
        return [f"The paper has no number to compare with for {'; '.join(have[:4])}."]
    return [
        f"paper: {', '.join(used)} of the paper. Δ: ours − paper; ! marks |Δ| > 2 standard errors, of our mean "
        f"(std/√n) and of the paper's where it prints ± (taken as {SEEDS_OF_PAPER} runs); no mark is possible "
        "where neither is known."
    ]


def _place(axes: Mapping[str, Any]) -> str:
    """Where runs stand, with the options that are not the paper's."""
    other = other_options(axes)
    shown = f" {json.dumps(other, default=str)}" if other else ""
    return f"{axes['benchmark']} {axes['scenario']} {axes['model']}{shown}"


def _reference(cell: Cell, match: Published) -> Reference:
    paper = Summary(mean=match.value, std=match.std, n=SEEDS_OF_PAPER, expected=SEEDS_OF_PAPER)
    decimals = max(cell.decimals, match.decimals)
    shown = Cell(summary=paper, decimals=match.decimals, thousands=cell.thousands)
    ours = cell.summary
    if ours is None or ours.mean is None:
        return Reference(value=shown, difference=Cell())
    difference = ours.mean - match.value
    part = any(is_part(e.axes) for e in cell.entries)
    flag = "part" if part else "outside" if _outside(difference, ours, match) else ""
    delta = Summary(mean=difference, std=None, n=ours.n, expected=ours.n)
    return Reference(
        value=shown,
        difference=Cell(summary=delta, decimals=decimals, signed=True, thousands=cell.thousands, flag=flag),
    )


def standard_error(ours: Summary, match: Published) -> float | None:
    """The standard error of the difference, or None where neither side has a spread. A rounded paper value has at
    least the uncertainty of its rounding.
    """
    parts = []
    if ours.std is not None:
        parts.append(ours.std**2 / ours.n)
    if match.std is not None:
        parts.append(match.std**2 / SEEDS_OF_PAPER)
    if not parts:
        return None
    rounding = 10.0**-match.decimals / math.sqrt(12)
    return math.sqrt(math.fsum(parts) + rounding**2)


def _outside(difference: float, ours: Summary, match: Published) -> bool:
    error = standard_error(ours, match)
    return error is not None and abs(difference) > 2 * error


def _lone_labels(table: Table) -> set[str]:
    """Labels that are the only one of their method, or its plain name: those that stand for the method."""
    labels: dict[str, dict[str, None]] = {}
    for row in table.cells:
        for cell in row:
            for e in cell.entries if cell is not None else ():
                labels.setdefault(e.axes["method"], {})[e.axes["label"]] = None
    return {label for method, found in labels.items() for label in found if len(found) == 1 or label == method}


class _Numbers:
    """Published numbers by what decides a match."""

    def __init__(self, numbers: Iterable[Published]) -> None:
        self.by_place: dict[tuple[Any, ...], list[Published]] = {}
        for p in numbers:
            self.by_place.setdefault(
                (p.benchmark, p.scenario, p.severity, p.model, p.method, p.corruption, p.metric), []
            ).append(p)

    def match(self, entries: Sequence[Entry], column: Column, lone: set[str], confidence: str) -> Published | None:
        """The published number that the runs ``entries`` reproduce, or None."""
        first = entries[0].axes
        if column.kind == "weighted" or any(e.axes[a] != first[a] for e in entries for a in FIXED):
            return None
        if not is_papers(first):
            return None
        corruptions = dict.fromkeys(e.axes["corruption"] for e in entries)
        model = first["model"].partition("+")[0]
        variants = {confidence} if confidence else {"with-plpd"} if "plpd" in flags(first) else {"", "without-plpd"}
        method = "no-adapt" if confidence and not adapts(first) else first["method"]
        place = (first["benchmark"], first["scenario"], first["severity"], model, method)

        def lookup(corruption: str) -> Published | None:
            candidates = self.by_place.get((*place, corruption, column.metric), ())
            return next((p for p in candidates if _fits(p, first, lone, variants)), None)

        if len(corruptions) == 1:
            return lookup(next(iter(corruptions)) or "")
        if len(corruptions) == CORRUPTIONS_OF_PAPER:
            return lookup(AVERAGE)
        return _average_of([lookup(c or "") for c in corruptions])


def adapts(axes: Mapping[str, Any]) -> bool:
    """Whether runs of these axes change the network (a learning rate of 0 only watches it)."""
    watches = axes["method"] == "no-adapt" or is_analysis(axes["method"])
    return not watches and axes["settings"].get("learning_rate") != 0


def _fits(number: Published, axes: Mapping[str, Any], lone: set[str], variants: set[str]) -> bool:
    """Whether the number is of these settings. ``variants``: the ways of pretraining, or the confidence score, that
    the runs stand for; in rows with settings of their own, ``variant`` is the paper's name for them.
    """
    if not number.settings:
        return number.variant in variants and (axes["label"] in lone or bool(number.variant))
    settings = axes["settings"]
    return bool({"", "without-plpd"} & variants) and all(
        k in settings and settings[k] == v for k, v in number.settings.items()
    )


def _average_of(numbers: Sequence[Published | None]) -> Published | None:
    """The mean of single published numbers, for sweeps over some of the corruptions only."""
    present = [n for n in numbers if n is not None]
    if not present or len(present) < len(numbers):
        return None
    mean = math.fsum(n.value for n in present) / len(present)
    first = present[0]
    return Published(**{**first.__dict__, "corruption": AVERAGE, "value": mean, "std": None})
