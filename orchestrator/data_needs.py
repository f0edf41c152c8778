"""What data the runs of a sweep read: what ``prepare`` builds and the preflight looks at."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.analyses import SYNTHETIC
from orchestrator.grouping import pretrain_key
from orchestrator.types import RunConfig

if TYPE_CHECKING:
    from deyo.types import Benchmark, ImageSet

Condition = tuple[str | None, int | None]
"""Corruption and severity."""


@dataclass
class DataNeeds:
    """A benchmark with its options, and what is read of it: ``conditions`` (in order, each once), and further sets.

    ``source``: a method measures something on clean source images; ``train``: the sweep pretrains a network.
    """

    benchmark: str
    options: dict[str, Any]
    conditions: dict[Condition, None] = field(default_factory=dict)
    source: bool = False
    train: bool = False

    def further(self, opened: Benchmark) -> dict[str, Callable[[], ImageSet]]:
        """What opens the sets that are no condition's, by what they are."""
        asked = {
            "clean source images": opened.source_images if self.source else None,
            "training images": opened.train_images if self.train else None,
        }
        return {name: ask for name, ask in asked.items() if ask is not None}


def data_needs(configs: Iterable[RunConfig], kept: Collection[str] = ()) -> list[DataNeeds]:
    """What ``configs`` read, one entry a benchmark and its options. ``kept``: checkpoints that are there already,
    by ``pretrain_key``."""
    found: dict[tuple[str, str], DataNeeds] = {}
    for config in configs:
        if config.benchmark == SYNTHETIC:
            continue
        options = dict(config.benchmark_options)
        key = (config.benchmark, json.dumps(options, sort_keys=True))
        needs = found.setdefault(key, DataNeeds(config.benchmark, options))
        for corruption in config.corruptions or (config.corruption,):
            needs.conditions.setdefault((corruption, config.severity))
        needs.source |= bool(config.settings.get("fisher_strength"))  # EATA's Fisher matrix
        needs.train |= config.pretrain_seed is not None and pretrain_key(config) not in kept
    return list(found.values())
