"""CIFAR-10-C as released: ``<root>/<corruption>.npy`` uint8 [50000, 32, 32, 3] and ``labels.npy`` [50000].

Severity s is rows (s - 1) · 10,000 to s · 10,000.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from deyo.benchmarks.base import BaseBenchmark
from deyo.benchmarks.info import (
    ALL_SEVERITIES,
    IMAGE_SCENARIOS,
    BenchmarkInfo,
    find_root,
    require_root,
    resolve_options,
)
from deyo.benchmarks.sources import ArraySource
from deyo.cache import Recipe
from deyo.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from deyo.types import DataError, ImageSet

LAYOUT = "<corruption>.npy (50,000 images of 32x32) and labels.npy"


class CIFAR10C(BaseBenchmark):
    """10,000 test images for each corruption and severity."""

    ROWS = 10_000

    @staticmethod
    def describe(**options: Any) -> BenchmarkInfo:
        return BenchmarkInfo(
            name="cifar10-c",
            num_classes=10,
            image_size=32,
            corruptions=CORRUPTIONS + EXTRA_CORRUPTIONS,
            severities=ALL_SEVERITIES,
            scenarios=IMAGE_SCENARIOS,
            options=resolve_options("cifar10-c", options, CIFAR10C.OPTIONS),
        )

    def recipe(self, corruption: str | None, severity: int | None) -> Recipe:
        return self._recipe(f"{corruption}/{severity}", lambda: self._open_source(str(corruption), int(severity or 0)))

    def source_images(self) -> ImageSet:
        """CIFAR-10's clean test images, from torchvision's folder in DEYO_DATA_CIFAR10 or beside this data."""
        return self._open(self._recipe("clean", self._open_clean))

    def _open_source(self, corruption: str, severity: int) -> ArraySource:
        root = require_root(self.name, self.root, LAYOUT)
        pixels = _load(root / f"{corruption}.npy", (5 * self.ROWS, 32, 32, 3))
        labels = _load(root / "labels.npy", (5 * self.ROWS,))
        if labels.min() < 0 or labels.max() > 9:
            raise DataError(f"{self.name}: labels.npy holds {labels.min()} to {labels.max()}, expected 0 to 9")
        repeated = labels.reshape(5, self.ROWS)
        if (repeated != repeated[0]).any():
            raise DataError(f"{self.name}: labels.npy is not the same {self.ROWS:,} labels five times over")
        rows = slice((severity - 1) * self.ROWS, severity * self.ROWS)
        mine = np.asarray(pixels[rows])
        for other in self.severities:
            if other != severity and np.array_equal(pixels[(other - 1) * self.ROWS : other * self.ROWS], mine):
                raise DataError(f"{self.name} {corruption}: severities {severity} and {other} are the same images")
        return ArraySource(mine, repeated[0])

    def _open_clean(self) -> ArraySource:
        from torchvision.datasets import CIFAR10

        beside = [] if self.root is None else [self.root, self.root.parent]
        for place in [find_root("cifar10", None), *beside]:
            if place is not None and (place / "cifar-10-batches-py").is_dir():
                clean = CIFAR10(str(place), train=False, download=False)  # checks the files' md5
                return ArraySource(clean.data, np.array(clean.targets))
        raise DataError(
            f"{self.name} needs clean CIFAR-10 images for this: set DEYO_DATA_CIFAR10=/a/folder that holds "
            "cifar-10-batches-py"
        )


def _load(file: Path, shape: tuple[int, ...]) -> np.ndarray:
    if not file.is_file():
        raise DataError(f"cifar10-c: no {file}. Expected: {LAYOUT}")
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError) as error:
        raise DataError(f"cifar10-c: {file} cannot be read ({error})") from None
    if array.shape != shape or (len(shape) > 1 and array.dtype != np.uint8):
        raise DataError(f"cifar10-c: {file} is {array.dtype} {array.shape}, expected uint8 {shape}")
    return array
