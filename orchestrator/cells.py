"""Conditions and their runs: the vectorised core of ``orchestrator.aggregate``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orchestrator import schema

KEYS = tuple(
    name
    for name in schema.AGGREGATES.names
    if name in schema.RUNS.names and name not in ("collapsed", "schema_version")
)
"""The columns that make a condition; runs of one condition differ in their seeds alone."""

METRICS = (
    "accuracy",
    "average_accuracy",
    "adjusted_accuracy",
    "worst_group_accuracy",
    "aurc",
    "mean_entropy",
    "mean_plpd",
    "images",
    "selected_entropy",
    "selected",
    "forwards",
    "backwards",
    "skipped_steps",
    "resets",
    "nan_steps",
    "skipped_images",
    "seconds",
    "decode_seconds",
    "images_per_second",
    "peak_memory_bytes",
)


@dataclass(frozen=True)
class Values:
    """A metric over rows: float64 ``numbers``, NaN where there is none; ``null`` tells absent from a recorded NaN."""

    numbers: np.ndarray
    null: np.ndarray


def values(column: pa.ChunkedArray | pa.Array) -> Values:
    """A numeric or boolean column as ``Values``."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    null = np.array(array.is_null())
    numbers = np.array(array.cast(pa.float64()).fill_null(np.nan), np.float64)
    return Values(numbers, null)


def with_column(table: pa.Table, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Table:
    """``table`` with the column ``name`` replaced."""
    return table.set_column(table.schema.get_field_index(name), table.schema.field(name), column)


def codes(rows: pa.Table, names: Sequence[str]) -> np.ndarray:
    """int64 [rows]: equal numbers for rows that agree in ``names`` (null equals null), from 0 without gaps."""
    result = np.zeros(len(rows), np.int64)
    for name in names:
        column = rows[name].combine_chunks()
        if pa.types.is_list(column.type):
            column = pc.binary_join(column, "\x1f")
        encoded = column.dictionary_encode(null_encoding="encode")
        result = result * (len(encoded.dictionary) + 1) + np.asarray(encoded.indices)
        result = np.unique(result, return_inverse=True)[1].astype(np.int64)
    return result


@dataclass(frozen=True)
class Cells:
    """Rows sorted by condition, then seed; ``group`` [rows] numbers their conditions, whose ``keys`` are a table."""

    keys: pa.Table
    group: np.ndarray
    order: np.ndarray
    seed: pa.Array
    pretrain_seed: pa.Array
    collapsed: np.ndarray

    @classmethod
    def of(cls, rows: pa.Table) -> Cells:
        """``rows`` has the columns ``KEYS``, ``seed``, ``pretrain_seed`` and ``collapsed``."""
        group = codes(rows, KEYS)
        order = np.lexsort((values(rows["pretrain_seed"]).numbers, values(rows["seed"]).numbers, group))
        first = np.unique(group[order], return_index=True)[1]
        taken = rows.select(["seed", "pretrain_seed", "collapsed"]).take(pa.array(order))
        return cls(
            keys=rows.select(KEYS).take(pa.array(order[first])),
            group=group[order],
            order=order,
            seed=taken["seed"].combine_chunks(),
            pretrain_seed=taken["pretrain_seed"].combine_chunks(),
            collapsed=np.asarray(taken["collapsed"].fill_null(False)),
        )

    def aggregate(self, metric: str, given: Values) -> pa.Table:
        """The ``aggregates`` rows of one metric; ``given`` is in the order of the rows that the cells came from.

        Conditions that recorded nothing have no row, except for the accuracy: a condition without any result is
        to be seen.
        """
        numbers, null = given.numbers[self.order], given.null[self.order]
        valid = ~np.isnan(numbers)
        nan = ~valid & ~null
        n = self._sum(valid)
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = self._sum(np.where(valid, numbers, 0.0)) / n
            deviation = np.where(valid, numbers - mean[self.group], 0.0)
            std = np.sqrt(self._sum(deviation**2) / (n - 1))
        count = len(self.keys)
        columns = {
            **{name: self.keys[name] for name in KEYS},
            "metric": pa.repeat(metric, count),
            "mean": pa.array(mean, mask=n == 0),
            "std": pa.array(std, mask=n < 2),
            "n": pa.array(n.astype(np.int64)),
            "seeds": self._lists(self.seed, valid),
            "pretrain_seeds": self._lists(self.pretrain_seed, valid & np.asarray(self.pretrain_seed.is_valid())),
            "missing_seeds": self._lists(self.seed, ~valid),
            "nan_seeds": self._lists(self.seed, nan),
            "collapsed": pa.array(self._sum(self.collapsed).astype(np.int64)),
            "schema_version": pa.repeat(pa.scalar(schema.VERSION, pa.int64()), count),
        }
        table = pa.table([columns[name] for name in schema.AGGREGATES.names], schema=schema.AGGREGATES)
        shown = (n > 0) | (self._sum(nan) > 0) | (metric == "accuracy")
        return table.filter(pa.array(shown))

    def _sum(self, weights: np.ndarray) -> np.ndarray:
        return np.bincount(self.group, weights=weights, minlength=len(self.keys))

    def _lists(self, items: pa.Array, chosen: np.ndarray) -> pa.ListArray:
        """For each condition the ``items`` of its ``chosen`` rows."""
        borders = np.concatenate([[0], np.cumsum(self._sum(chosen))]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(borders), items.filter(pa.array(chosen)))
