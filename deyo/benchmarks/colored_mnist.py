"""ColoredMNIST, made from MNIST's training file by the recipe in ``colored`` (methods.md §2.3, §3.7).

Layout: MNIST's idx files, packed (.gz) or not, in the root or where torchvision puts them (``MNIST/raw``).
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np

from deyo.benchmarks import colored
from deyo.benchmarks.base import BaseBenchmark
from deyo.benchmarks.info import GROUP_SCENARIOS, BenchmarkInfo, require_root, resolve_options
from deyo.benchmarks.sources import ArraySource
from deyo.cache import Recipe
from deyo.types import DataError, ImageSet

LAYOUT = "train-images-idx3-ubyte and train-labels-idx1-ubyte (or .gz), in it or in MNIST/raw"


class ColoredMNIST(BaseBenchmark):
    """20,000 images in each environment, 28x28; the test set is the last third of MNIST's training file.

    Options: ``recipe`` ("official", bit for bit the authors' set for the same ``numpy_seed``; or "paper").
    """

    IMAGES = 60_000

    @staticmethod
    def describe(**options: Any) -> BenchmarkInfo:
        return BenchmarkInfo(
            name="colored-mnist",
            num_classes=2,
            image_size=28,
            group_names=colored.GROUP_NAMES,
            scenarios=GROUP_SCENARIOS,
            options=resolve_options(
                "colored-mnist",
                options,
                {"recipe": "official", "numpy_seed": 2024},
                {"recipe": colored.RECIPES},
            ),
        )

    @property
    def train_group_sizes(self) -> tuple[int, ...]:
        """Training images of each group, the weights of the adjusted average."""
        return tuple(np.bincount(self.train_images().groups, minlength=4).tolist())

    def recipe(self, corruption: str | None, severity: int | None) -> Recipe:
        return self._environments("test", [2])

    def train_images(self) -> ImageSet:
        """Both training environments, one after the other."""
        return self._open(self._environments("train", [0, 1]))

    def source_images(self) -> ImageSet:
        """The training images (EATA's Fisher matrix on biased sets)."""
        return self.train_images()

    def correlations(self) -> dict[str, dict[str, float]]:
        """The realised correlations of colour and label in each environment (``colored.correlations``)."""
        return colored.correlations(self._coloring(self._labels()))

    def _coloring(self, digits: np.ndarray) -> colored.Coloring:
        return colored.color(digits, **self.info.options)

    def _labels(self) -> np.ndarray:
        digits = _read_idx(_find(self._root(), "train-labels-idx1-ubyte"), 1, self.IMAGES)
        if digits.max(initial=0) > 9:
            raise DataError(f"{self.name}: labels go up to {digits.max()}, expected digits 0 to 9")
        return digits.astype(np.int64)

    def _root(self) -> Path:
        return require_root(self.name, self.root, LAYOUT)

    def _environments(self, part: str, numbers: list[int]) -> Recipe:
        def open_source() -> ArraySource:
            gray = _read_idx(_find(self._root(), "train-images-idx3-ubyte"), 3, self.IMAGES)
            coloring = self._coloring(self._labels())
            here = np.isin(coloring.environment, numbers)
            pixels = colored.paint(gray[here], coloring.red[here])
            return ArraySource(pixels, coloring.target[here], coloring.groups[here])

        return self._recipe(part, open_source)


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
