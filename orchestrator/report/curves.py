"""Running accuracy and selected share along the stream, reduced to a few points a run while rows are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from orchestrator.results import Results

POINTS = 100
WINDOWS = 40
COLUMNS = ("run_id", "step", "images", "correct", "selected")


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One run along its stream. ``position`` [P] in images seen; ``accuracy`` [P] over all images so far; ``window``
    [W] are the ends of windows, ``selected`` [W] the share of each window's images that passed every filter.
    """

    position: np.ndarray
    accuracy: np.ndarray
    window: np.ndarray
    selected: np.ndarray


def read_curves(results: Results, run_ids: Sequence[str]) -> dict[str, Curve]:
    """The curve of each run that has rows in ``batches``. Holds one run's rows in memory at a time."""
    if not run_ids:
        return {}
    found = {}
    for run_id, rows in _runs(results.scan("batches", list(run_ids), columns=COLUMNS)):
        found[run_id] = reduce(rows)
    return found


def _runs(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, np.ndarray]]:
    """(run_id, int64 [steps, 4]) for each stretch of rows of one run."""
    current, parts = "", []
    for batch in batches:
        ids = batch.column("run_id").to_numpy(zero_copy_only=False)
        if not len(ids):
            continue
        values = np.stack([np.asarray(batch.column(c).fill_null(0)) for c in COLUMNS[1:]], axis=1)
        borders = np.flatnonzero(ids[1:] != ids[:-1]) + 1
        for start, stop in zip([0, *borders], [*borders, len(ids)]):
            if ids[start] != current:
                if parts:
                    yield current, np.concatenate(parts)
                current, parts = ids[start], []
            parts.append(values[start:stop])
    if parts:
        yield current, np.concatenate(parts)


def reduce(rows: np.ndarray) -> Curve:
    """The curve of rows int64 [steps, 4]: step, images, correct, selected."""
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    seen, correct, selected = rows[:, 1:].cumsum(0).T
    at = _ends(len(rows), POINTS)
    cut = _ends(len(rows), WINDOWS)
    images = np.diff(seen[cut], prepend=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return Curve(
            position=seen[at],
            accuracy=correct[at] / seen[at],
            window=seen[cut],
            selected=np.diff(selected[cut], prepend=0) / images,
        )


def _ends(steps: int, points: int) -> np.ndarray:
    """Indices of at most ``points`` steps, evenly spread, the last among them."""
    count = min(steps, points)
    return np.unique(np.ceil(np.arange(1, count + 1) * steps / count).astype(np.int64) - 1)


def on_grid(x: Sequence[np.ndarray], y: Sequence[np.ndarray], points: int = POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Curves on one grid up to the end of the shortest: positions [P], values [curves, P]."""
    start, stop = max(a[0] for a in x), min(a[-1] for a in x)
    grid = np.linspace(start, max(stop, start), points)
    return grid, np.stack([np.interp(grid, a, b) for a, b in zip(x, y)])
