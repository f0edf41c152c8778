"""Corruptions that are generated here: named in captions, and never in one table with released ones."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache

from deyo.types import ConfigError
from orchestrator.tables.data import Entry, SweepData, hashable

BENCHMARKS = ("digits-c", "cifar10-jpeg", "image-folder")
"""This project's benchmarks whose corruptions are generated: listed, since to ask them would load torch."""


def is_generated(entry: Entry) -> bool:
    """Whether the run's images were corrupted here, and are not the released ones."""
    return is_corrupted(entry) and _generates(entry.axes["benchmark"], hashable(entry.axes["benchmark_options"]))


def is_corrupted(entry: Entry) -> bool:
    """Whether the run's images have a corruption."""
    return entry.axes["corruption"] is not None or bool(entry.axes["corruptions"])


@lru_cache(maxsize=1024)
def _generates(benchmark: str, options: str) -> bool:
    """Whether the benchmark of these options (JSON) generates its corruptions; False if it is not installed here."""
    from deyo.benchmarks.registry import BUILT_IN, benchmark_info

    if benchmark in BUILT_IN:
        return benchmark in BENCHMARKS
    try:
        return benchmark_info(benchmark, **json.loads(options)).generated
    except ConfigError:
        return False


def generated_note(entries: Iterable[Entry]) -> str:
    """The caption's line that names the benchmarks with generated corruptions; "" where there are none."""
    found = dict.fromkeys(e.axes["benchmark"] for e in entries if is_generated(e))
    return f"Corruptions generated here: {', '.join(found)}." if found else ""


def apart(data: SweepData) -> list[SweepData]:
    """The sweep as it is, or, where released and generated corruptions meet in it, without the generated ones, and
    these alone.
    """
    generated = {id(e) for e in data.entries if is_generated(e)}
    if not generated or not any(is_corrupted(e) and id(e) not in generated for e in data.entries):
        return [data]
    return [data.where(lambda e: id(e) not in generated), data.where(lambda e: id(e) in generated)]
