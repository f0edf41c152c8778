"""From rows of ``batches`` to points of MLflow curves, always the same points from the same rows.

MLflow keeps a point apart only by (key, value, timestamp, step). Every point here is a function of the run's
rows alone (its timestamp is the row's ``recorded_at``), so publishing again never doubles one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

CURVES = ("running_accuracy", "entropy", "plpd", "selected_share", "images_per_second")
TIMED = frozenset({"images_per_second"})  # measured, so not the same in two attempts at a run

DENSE_RUN = 1000
DENSE_GROUP = 100

_COLUMNS = ("step", "images", "correct", "mean_entropy", "mean_plpd", "selected_entropy", "selected")


class Point(NamedTuple):
    """One point of a metric; ``timestamp`` in milliseconds since the epoch."""

    key: str
    value: float
    timestamp: int
    step: int


class GapError(Exception):
    """Rows do not follow those seen before: the curve must be folded again from the store."""


def kept(step: int, dense: int) -> bool:
    """Whether ``step`` is shown: each one below ``dense``, then each 10th, from 10·``dense`` each 100th, ...

    The rule looks at the step alone, so that what is published while a run goes on is what would be published
    from its finished rows: 782 batches show 782 points, 50,000 batches of one image 2,300.
    """
    stride = 1
    while step >= dense * stride:
        stride *= 10
    return step % stride == 0


@dataclass
class CurveFold:
    """Folds one run's batches, in order, into the points of ``CURVES``.

    ``running_accuracy`` is over the stream so far; ``entropy``, ``plpd`` and ``selected_share`` are means over
    the images since the point before; ``images_per_second`` is over one block of batches (the rows that left
    the device together, the first aside), at the block's last step. Values that are not finite make no point.
    """

    dense: int = DENSE_RUN
    next_step: int = 0
    images: int = 0
    _correct: int = 0
    _window: dict[str, float] = field(default_factory=dict)
    _last: tuple[int, int] | None = None  # step and timestamp of the newest row
    _shown: bool = True
    _blocks: int = 0
    _block: tuple[float, Any] | None = None  # recorded_at and attempt of the open block
    _block_images: int = 0
    _before: tuple[float, Any] | None = None

    def add(self, batch: pa.RecordBatch | pa.Table) -> list[Point]:
        """The points that these rows make. Raises ``GapError`` if rows between are missing."""
        points: list[Point] = []
        names = set(batch.schema.names)
        wanted = [c for c in (*_COLUMNS, "attempt", "recorded_at") if c in names]
        for row in batch.select(wanted).to_pylist():
            if row["step"] < self.next_step:
                continue  # the rows were sent twice
            if row["step"] > self.next_step:
                raise GapError(f"step {row['step']} came after step {self.next_step - 1}")
            points += self._add_row(row)
        return points

    def finish(self, speed: float | None = None) -> list[Point]:
        """The points that only the end of the run decides: its last step and the speed of its last block.

        ``speed`` (images a second over the whole run) stands in where all rows came in one block.
        """
        points = self._close_block()
        if self._blocks == 1 and self._last is not None and speed is not None and math.isfinite(speed):
            step, timestamp = self._last
            points.append(Point("images_per_second", speed, timestamp, step))
        if self._last is not None and not self._shown:
            points += self._show()
        return points

    def _add_row(self, row: dict[str, Any]) -> list[Point]:
        moment = (row.get("recorded_at") or 0.0, row.get("attempt"))
        points: list[Point] = []
        if self._block is not None and moment != self._block:
            points = self._close_block()
        self._block = moment
        images = row["images"] or 0
        self._block_images += images
        self.images += images
        self._correct += row["correct"] or 0
        self._accumulate(row, images)
        self._last = (row["step"], int(moment[0] * 1000))
        self._shown = False
        self.next_step = row["step"] + 1
        return points + self._show() if kept(row["step"], self.dense) else points

    def _accumulate(self, row: dict[str, Any], images: int) -> None:
        window = self._window
        self._weigh("entropy", row.get("mean_entropy"), images)
        # PLPD is computed for what passed the entropy filter; methods without that filter compute it for all.
        self._weigh("plpd", row.get("mean_plpd"), row.get("selected_entropy") or images)
        if row.get("selected") is not None:
            window["selected"] = window.get("selected", 0) + row["selected"]
        window["images"] = window.get("images", 0) + images

    def _weigh(self, name: str, mean: float | None, weight: int) -> None:
        if mean is None or not math.isfinite(mean):
            return
        self._window[name] = self._window.get(name, 0.0) + mean * weight
        self._window[f"{name} weight"] = self._window.get(f"{name} weight", 0) + weight

    def _show(self) -> list[Point]:
        assert self._last is not None
        step, timestamp = self._last
        window, self._window, self._shown = self._window, {}, True
        values = {"running_accuracy": _ratio(self._correct, self.images)}
        for name in ("entropy", "plpd"):
            values[name] = _ratio(window.get(name), window.get(f"{name} weight"))
        values["selected_share"] = _ratio(window.get("selected"), window.get("images"))
        return [Point(k, v, timestamp, step) for k, v in values.items() if v is not None]

    def _close_block(self) -> list[Point]:
        if self._block is None or self._last is None:
            return []
        block, before = self._block, self._before
        images, self._block_images = self._block_images, 0
        self._before, self._block = block, None
        index, self._blocks = self._blocks, self._blocks + 1
        # No speed across attempts (the time between them was no work), nor for the first block: its start is
        # not in the rows.
        if before is None or before[1] != block[1] or block[0] <= before[0] or not kept(index, self.dense):
            return []
        step, timestamp = self._last
        return [Point("images_per_second", images / (block[0] - before[0]), timestamp, step)]


def fold_all(batches: Iterable[pa.RecordBatch], dense: int, speed: float | None = None) -> list[Point]:
    """All points of a finished run, from its committed rows in order and its speed (see ``finish``)."""
    fold = CurveFold(dense=dense)
    points = [point for batch in batches for point in fold.add(batch)]
    return points + fold.finish(speed)


def _ratio(total: float | None, weight: float | None) -> float | None:
    return total / weight if total is not None and weight else None
