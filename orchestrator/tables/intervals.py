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


def mean_difference(pairs: Pairs) -> float | None:
    """The mean over conditions of the means over seeds: each condition counts the same."""
    means = _means(pairs, 1)
    return math.fsum(means) / len(means) if means else None


def interval(pairs: Pairs, kind: str = "t") -> Interval | None:
    """The 95 % interval of ``mean_difference``; None for a single pair.

    Pairs of one corruption share its difficulty and pairs of one seed share its network and order, so neither
    are independent. With one condition the seeds are the sample. With several, "t" takes the means by condition
    as one sample and the means by seed as another, and gives the wider interval; "bootstrap" (percentiles,
    ``RESAMPLES`` draws, fixed seed) draws conditions and seeds independently, with replacement.
    """
    seeds = {s for s, _ in pairs}
    conditions = {c for _, c in pairs}
    if len(pairs) < 2 or (len(seeds) < 2 and len(conditions) < 2):
        return None
    if kind == "bootstrap":
        return _bootstrap(pairs)
    centre = mean_difference(pairs)
    if centre is None:
        return None
    half = max(_half_width(_means(pairs, axis)) for axis in (0, 1))
    return centre - half, centre + half


def excludes_zero(found: Interval | None) -> bool:
    """Whether the interval says that the difference is not zero."""
    return found is not None and not found[0] <= 0.0 <= found[1]


def _means(pairs: Pairs, axis: int) -> list[float]:
    groups: dict[Hashable, list[float]] = {}
    for key, value in pairs.items():
        groups.setdefault(key[axis], []).append(value)
    return [math.fsum(v) / len(v) for v in groups.values()]


def _half_width(sample: Sequence[float]) -> float:
    """Half the t interval of a sample's mean; 0 where the sample has one member and says nothing."""
    n = len(sample)
    if n < 2:
        return 0.0
    from scipy.special import stdtrit

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
