"""95 % intervals of mean paired differences, by Student's t or by bootstrap."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from deyo.types import ConfigError

KINDS = ("t", "bootstrap")
LEVEL = 0.95
RESAMPLES = 4000

Pairs = Mapping[tuple[Hashable, Hashable], float]
"""Differences by (seed, condition)."""

Interval = tuple[float, float]


def check_kind(kind: str) -> str:
    """``kind`` if it is known; else raises ``ConfigError``."""
    if kind not in KINDS:
        raise ConfigError(f"--interval {kind}: one of {', '.join(KINDS)}")
    return kind


def used(pairs: Pairs) -> Pairs:
    """The pairs that count: those of seeds that have every condition (a seed that lacks one would be compared on an
    easier or a harder set); all of them where no seed is complete.
    """
    conditions = {c for _, c in pairs}
    by_seed: dict[Hashable, int] = {}
    for seed, _ in pairs:
        by_seed[seed] = by_seed.get(seed, 0) + 1
    complete = {seed for seed, n in by_seed.items() if n == len(conditions)}
    return {k: v for k, v in pairs.items() if k[0] in complete} if complete else pairs


def mean_difference(pairs: Pairs) -> float | None:
    """The mean over conditions of the means over seeds, of the pairs that count."""
    means = _means(used(pairs), 1)
    return math.fsum(means) / len(means) if means else None


def interval(pairs: Pairs, kind: str = "t") -> Interval | None:
    """The 95 % interval of ``mean_difference``; None for a single pair.

    "t": Student's over seeds, each seed averaged over its conditions first, so the corruptions are taken as given,
    as in the paper's tables; with one seed (or none that is complete) over the conditions. "bootstrap": percentiles
    of ``RESAMPLES`` draws (fixed seed) of seeds and of conditions, independently and with replacement: the
    corruptions are taken as a sample too.
    """
    pairs = used(pairs)
    seeds, conditions = {s for s, _ in pairs}, {c for _, c in pairs}
    if len(seeds) < 2 and len(conditions) < 2:
        return None
    if kind == "bootstrap":
        return _bootstrap(pairs)
    balanced = len(pairs) == len(seeds) * len(conditions)
    sample = _means(pairs, 0 if len(seeds) > 1 and balanced else 1)
    if len(sample) < 2:
        sample = list(pairs.values())
    centre, half = mean_difference(pairs), _half_width(sample)
    return None if centre is None else (centre - half, centre + half)


def excludes_zero(found: Interval | None) -> bool:
    """Whether the interval says that the difference is not zero."""
    return found is not None and not found[0] <= 0.0 <= found[1]


def _means(pairs: Pairs, axis: int) -> list[float]:
    groups: dict[Hashable, list[float]] = {}
    for key, value in pairs.items():
        groups.setdefault(key[axis], []).append(value)
    return [math.fsum(v) / len(v) for v in groups.values()]


def _half_width(sample: Sequence[float]) -> float:
    """Half the t interval of the mean of a sample of at least two."""
    from scipy.special import stdtrit

    n = len(sample)
    spread = float(np.std(np.asarray(sample), ddof=1))
    return float(stdtrit(n - 1, 0.5 + LEVEL / 2)) * spread / math.sqrt(n)


def _bootstrap(pairs: Pairs) -> Interval:
    seeds = list(dict.fromkeys(s for s, _ in pairs))
    conditions = list(dict.fromkeys(c for _, c in pairs))
    table = np.full((len(seeds), len(conditions)), np.nan)
    for (seed, cond), value in pairs.items():
        table[seeds.index(seed), conditions.index(cond)] = value
    random = np.random.default_rng(0)
    rows = random.integers(len(seeds), size=(RESAMPLES, len(seeds)))
    cols = random.integers(len(conditions), size=(RESAMPLES, len(conditions)))
    drawn = table[rows[:, :, None], cols[:, None, :]]
    counted = ~np.isnan(drawn)
    sums, counts = np.where(counted, drawn, 0.0).sum(1), counted.sum(1)
    with np.errstate(invalid="ignore"):
        by_condition = sums / counts
    means = np.nanmean(by_condition[~np.isnan(by_condition).all(1)], axis=1)
    low, high = np.quantile(means, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    return float(low), float(high)
