"""Method variants: every list among a method's settings is an axis, and the label names the choice."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deyo.types import ConfigError
from orchestrator.catalog import Catalog, Question
from orchestrator.specfile import Document, Key
from orchestrator.specmodel import Grid, MethodEntry, SweepSpec


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One method of a grid with one choice for each list among its settings; ``written`` says where each stands."""

    method: str
    label: str
    overrides: Mapping[str, Any]
    key: Key
    written: Mapping[str, Key]


def variants_of(spec: SweepSpec, grid: Grid, entry: MethodEntry, key: Key) -> list[Variant]:
    """The variants of one entry of ``methods``, such as ``deyo [plpd_threshold=0.3]``.

    The label names the entry's own settings (only the lists, where the entry has a label) and every list.
    """
    merged = settings_of(spec, grid, entry)
    axes = [name for name, value in merged.items() if isinstance(value, list)]
    named = axes if entry.label else [*entry.settings, *(a for a in axes if a not in entry.settings)]
    base = entry.label or entry.name
    written = _written(spec, grid, entry, key)
    result = []
    for overrides in product_of(merged):
        text = ", ".join(f"{name}={_short(overrides[name])}" for name in named)
        label = f"{base} [{text}]" if text else base
        result.append(Variant(method=entry.name, label=label, overrides=overrides, key=key, written=written))
    return result


def settings_of(spec: SweepSpec, grid: Grid, entry: MethodEntry) -> dict[str, Any]:
    """The spec's settings for this method, then the grid's, then the entry's own: the nearest wins."""
    return {**spec.settings.get(entry.name, {}), **grid.settings.get(entry.name, {}), **entry.settings}


def resolve(question: Question, variant: Variant, catalog: Catalog, document: Document) -> dict[str, Any]:
    """Every field of the method's settings; an error points to the line of the setting that it names."""
    try:
        return catalog.settings(question)
    except ConfigError as error:
        blamed = [place for name, place in variant.written.items() if re.search(rf"\b{re.escape(name)}\b", str(error))]
        raise document.error(blamed[0] if blamed else variant.key, str(error)) from None


def product_of(options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """``options`` with each list replaced by each of its values."""
    for chosen in itertools.product(*(v if isinstance(v, list) else [v] for v in options.values())):
        yield dict(zip(options, chosen, strict=True))


def choices(options: Mapping[str, Any]) -> int:
    """How many mappings ``product_of`` yields."""
    return math.prod(len(v) for v in options.values() if isinstance(v, list))


def check_axes(options: Mapping[str, Any], key: Key, document: Document) -> None:
    """Options are values or lists of values; an empty list would leave no runs."""
    for name, value in options.items():
        if value == []:
            raise document.error((*key, name), "an empty list; it would leave no runs")
        values = value if isinstance(value, list) else [value]
        if any(v is None or isinstance(v, dict | list) for v in values):
            raise document.error((*key, name), "expected a value, or a list of values to try each")


def _written(spec: SweepSpec, grid: Grid, entry: MethodEntry, key: Key) -> dict[str, Key]:
    levels: list[tuple[Mapping[str, Any], Key]] = [
        (spec.settings.get(entry.name, {}), ("settings", entry.name)),
        (grid.settings.get(entry.name, {}), (*key[:2], "settings", entry.name)),
        (entry.settings, (*key, "settings")),
    ]
    return {name: (*place, name) for settings, place in levels for name in settings}


def _short(value: Any) -> str:
    """A setting's value in a label."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return str(value)
