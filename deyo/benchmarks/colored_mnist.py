"""ColoredMNIST, made from MNIST's training file by the recipe in ``colored`` (methods.md §2.3, §3.7).

Layout: MNIST's idx files, packed (.gz) or not, in the root or where torchvision puts them (``MNIST/raw``).
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np

from deyo.benchmarks.colored_base import ColoredBenchmark, describe_colored
from deyo.benchmarks.info import BenchmarkInfo, require_root
from deyo.types import DataError

LAYOUT = "train-images-idx3-ubyte and train-labels-idx1-ubyte (or .gz), in it or in MNIST/raw"


class ColoredMNIST(ColoredBenchmark):
    """20,000 images in each environment, 28x28; the test set is the last third of MNIST's training file."""

    IMAGES = 60_000

    @staticmethod
    def describe(**options: Any) -> BenchmarkInfo:
        return describe_colored("colored-mnist", **options)

    def labels_of_digits(self) -> np.ndarray:
        digits = _read_idx(_find(self._root(), "train-labels-idx1-ubyte"), 1, self.IMAGES)
        if digits.max(initial=0) > 9:
            raise DataError(f"{self.name}: labels go up to {digits.max()}, expected digits 0 to 9")
        return digits.astype(np.int64)

    def scans(self) -> np.ndarray:
        return _read_idx(_find(self._root(), "train-images-idx3-ubyte"), 3, self.IMAGES)

    def _root(self) -> Path:
        return require_root(self.name, self.root, LAYOUT)


def _find(root: Path, name: str) -> Path:
    places = [root / folder / file for folder in ("", "MNIST/raw", "raw") for file in (name, f"{name}.gz")]
    for place in places:
        if place.is_file():
            return place
    raise DataError(f"colored-mnist: no {name} (or .gz) in {root} or {root / 'MNIST/raw'}")


def _read_idx(file: Path, axes: int, count: int) -> np.ndarray:
    """An idx file of unsigned bytes, uint8 with ``axes`` axes and ``count`` items; ``DataError`` if it is not one."""
    try:
        data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError) as error:
        raise DataError(f"colored-mnist: {file} cannot be unpacked ({error})") from None
    if data[:4] != bytes([0, 0, 8, axes]):
        raise DataError(f"colored-mnist: {file} starts with {data[:4].hex()}, expected 000008{axes:02x} (idx, bytes)")
    shape = np.frombuffer(data, ">i4", count=axes, offset=4)
    values = np.frombuffer(data, np.uint8, offset=4 + 4 * axes)
    if shape[0] != count or values.size != shape.prod():
        raise DataError(
            f"colored-mnist: {file} announces {shape[0]:,} items and holds {values.size:,} bytes; expected {count:,} "
            f"items, {count * int(shape[1:].prod()):,} bytes"
        )
    return values.reshape(shape)
