"""A sweep cut into parts that one panel of a plot can show: one network, scenario, severity, …"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.tables.data import Entry, SweepData
from orchestrator.tables.parts import cut

AXES = (
    "benchmark",
    "benchmark_options",
    "scenario",
    "scenario_options",
    "model",
    "severity",
    "batch_size",
    "protocol",
    "precision",
    "max_images",
)


def panels(data: SweepData, axes: Sequence[str] = AXES) -> list[tuple[str, SweepData]]:
    """(title, part) for each combination of the axes that vary; axes that follow from others give no title."""
    return [(title, _part(data, entries)) for title, entries in cut(data.entries, axes, lambda e: e)]


def _part(data: SweepData, entries: Sequence[Entry]) -> SweepData:
    members = set(map(id, entries))
    return data.where(lambda e: id(e) in members)


def slug(*words: str) -> str:
    """Words as a file name; one that says the same as another is left out."""
    return "-".join(dict.fromkeys(filter(None, map(_plain, words))))


def _plain(text: str) -> str:
    kept = "".join(c if (c.isalnum() and c.isascii()) or c in ".-" else "-" for c in text.lower())
    return "-".join(part for part in (part.strip(".") for part in kept.split("-")) if part)
