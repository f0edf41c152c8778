"""Runs cut into parts that may stand together: in one panel of a plot, in one section of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from orchestrator.tables import names
from orchestrator.tables.data import Entry, getter

T = TypeVar("T")


def cut(
    items: Iterable[T], axes: Sequence[str], entry: Callable[[T], Entry], named: Sequence[str] = ()
) -> list[tuple[str, list[T]]]:
    """(title, part) for each combination of ``named`` and ``axes``; ``entry`` gives an item's run.

    Titles have the ``named`` axes, and of the others those that vary and do not follow from the ones before.
    """
    items = list(items)
    runs = [entry(item) for item in items]
    chosen = [*named, *varying(runs, axes, named)]
    by = [getter(a) for a in chosen]
    parts: dict[tuple[Any, ...], list[T]] = {}
    for item, run in zip(items, runs):
        parts.setdefault(tuple(g(run) for g in by), []).append(item)
    return [(", ".join(names.title(a, v) for a, v in zip(chosen, key)), part) for key, part in parts.items()]


def varying(runs: Sequence[Entry], axes: Sequence[str], known: Sequence[str] = ()) -> list[str]:
    """Those of ``axes`` that vary among runs and do not follow from ``known`` ones or from those before."""
    chosen: list[str] = []
    for axis in axes:
        get, before = getter(axis), [getter(a) for a in (*known, *chosen)]
        seen: dict[tuple[Any, ...], Any] = {}
        if any(seen.setdefault(tuple(g(e) for g in before), get(e)) != get(e) for e in runs):
            chosen.append(axis)
    return chosen
