"""Averages over the corruptions of a benchmark, within each seed first."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from orchestrator.cells import KEYS, METRICS, Cells, Values, codes, values, with_column

PLAIN, WEIGHTED = "average", "weighted-average"
"""The names that averages have in the ``corruption`` column: every corruption, or every image, counts alike."""

PER_IMAGE = ("accuracy", "mean_entropy", "mean_plpd")
"""Metrics that are means over images, so that weighting by images makes sense."""

_FAMILY = tuple(name for name in KEYS if name not in ("corruption", "corruptions"))


def corruption_averages(rows: pa.Table) -> list[pa.Table]:
    """Aggregates over all corruptions of conditions that differ in nothing else (where there are at least two).

    A seed that lacks one of the corruptions has no average: it is missing, not averaged over fewer.
    """
    rows = rows.filter(rows["corruption"].is_valid())
    family = codes(rows, _FAMILY)
    corruption = codes(rows, ["corruption"])
    pairs, where = np.unique(np.stack([family, corruption]), axis=1, return_index=True)
    wanted = np.bincount(pairs[0], minlength=family.max(initial=-1) + 1)
    spanning = wanted[family] > 1
    if not spanning.any():
        return []
    names = np.asarray(rows["corruption"].to_pylist(), object)[np.sort(where)]
    spans = _group_lists(family[np.sort(where)], names, len(wanted))
    rows, family = rows.filter(pa.array(spanning)), family[spanning]
    return _Units(rows, family, wanted, spans).tables()


def _group_lists(group: np.ndarray, names: np.ndarray, count: int) -> list[list[str]]:
    lists: list[list[str]] = [[] for _ in range(count)]
    for number, name in zip(group, names):
        lists[number].append(name)
    return lists


class _Units:
    """One unit a family and seed: the rows that an average spans."""

    def __init__(self, rows: pa.Table, family: np.ndarray, wanted: np.ndarray, spans: list[list[str]]) -> None:
        self._rows = rows
        seeds = codes(rows, ["seed", "pretrain_seed"])
        _, first, self._unit = np.unique(np.stack([family, seeds]), axis=1, return_index=True, return_inverse=True)
        self._unit = self._unit.ravel()
        self._count = len(first)
        self._wanted = wanted[family[first]]
        units = rows.take(pa.array(first))
        collapsed = self._sum(np.asarray(rows["collapsed"].fill_null(False))) > 0
        units = with_column(units, "collapsed", pa.array(collapsed))
        self._units = with_column(
            units, "corruptions", pa.array([spans[f] for f in family[first]], pa.list_(pa.string()))
        )
        self._images = values(rows["images"]).numbers

    def tables(self) -> list[pa.Table]:
        result = []
        for name, metrics in ((PLAIN, METRICS), (WEIGHTED, PER_IMAGE)):
            cells = Cells.of(with_column(self._units, "corruption", pa.repeat(name, self._count)))
            for metric in metrics:
                given = values(self._rows[metric])
                weights = self._images if name == WEIGHTED else np.ones(len(given.numbers))
                result.append(cells.aggregate(metric, self._average(given, weights)))
        return result

    def _average(self, given: Values, weights: np.ndarray) -> Values:
        """NaN where any corruption's value is; absent where any corruption is."""
        with np.errstate(divide="ignore", invalid="ignore"):
            numbers = self._sum(given.numbers * weights) / self._sum(weights)
        whole = self._sum(~given.null) == self._wanted
        return Values(np.where(whole, numbers, np.nan), ~whole)

    def _sum(self, numbers: np.ndarray) -> np.ndarray:
        return np.bincount(self._unit, weights=numbers, minlength=self._count)
