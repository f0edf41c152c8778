"""digits-c: scikit-learn's bundled digits, 1,797 real scans of 8x8, with corruptions made here."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from PIL import Image

from deyo.benchmarks.base import GENERATED_OPTIONS, BaseBenchmark, generated_options
from deyo.benchmarks.info import ALL_SEVERITIES, IMAGE_SCENARIOS, BenchmarkInfo
from deyo.benchmarks.sources import ArraySource
from deyo.cache import Recipe
from deyo.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from deyo.types import ImageSet

TRAIN_SCANS = 797  # the first ones; the other 1,000, by other writers, are the test set


def load_scans(size: int) -> tuple[np.ndarray, np.ndarray]:
    """The 1,797 scans enlarged to ``size`` pixels (bicubic), uint8 [N, size, size], and their digits [N]."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    levels = np.round(bunch.images * (255 / 16)).astype(np.uint8)
    enlarged = [Image.fromarray(scan).resize((size, size), Image.Resampling.BICUBIC) for scan in levels]
    return np.stack([np.asarray(image) for image in enlarged]), bunch.target.astype(np.int64)


class DigitsC(BaseBenchmark):
    """Digits at 32x32 in three equal channels; corrupted test scans, clean training scans.

    The corruptions have ImageNet-C's constants, which at 32 pixels hurt a lot, and are ``generated``.
    """

    OPTIONS: ClassVar = GENERATED_OPTIONS

    @staticmethod
    def describe(**options: Any) -> BenchmarkInfo:
        return BenchmarkInfo(
            name="digits-c",
            num_classes=10,
            image_size=32,
            corruptions=CORRUPTIONS + EXTRA_CORRUPTIONS,
            severities=ALL_SEVERITIES,
            scenarios=IMAGE_SCENARIOS,
            generated=True,
            bundled=True,
            options=generated_options("digits-c", options, DigitsC.OPTIONS),
        )

    def recipe(self, corruption: str | None, severity: int | None) -> Recipe:
        return self._generated(str(corruption), int(severity or 0))

    def images_clean(self) -> ImageSet:
        return self._clean("clean-test", slice(TRAIN_SCANS, None))

    def train_images(self) -> ImageSet:
        """The 797 clean training scans."""
        return self._clean("train", slice(None, TRAIN_SCANS))

    def source_images(self) -> ImageSet:
        """The clean training scans."""
        return self.train_images()

    def _clean(self, part: str, scans: slice) -> ImageSet:
        return self._open(self._recipe(part, lambda: _scans(scans), options={}))


def _scans(part: slice) -> ArraySource:
    gray, digits = load_scans(32)
    return ArraySource(np.repeat(gray[part, :, :, None], 3, axis=3), digits[part])
