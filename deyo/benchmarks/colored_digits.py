"""colored-digits: ColoredMNIST's recipe on scikit-learn's bundled digits, nothing to download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from deyo.benchmarks import colored
from deyo.benchmarks.base import BaseBenchmark
from deyo.benchmarks.digits_c import load_scans
from deyo.benchmarks.info import GROUP_SCENARIOS, BenchmarkInfo, resolve_options
from deyo.benchmarks.sources import ArraySource
from deyo.cache import Recipe
from deyo.types import ImageSet


class ColoredDigits(BaseBenchmark):
    """ColoredMNIST's recipe on the digits, at MNIST's 28x28: 599 images in each environment."""

    @staticmethod
    def describe(**options: Any) -> BenchmarkInfo:
        defaults = {"recipe": "official", "numpy_seed": 2024}
        return BenchmarkInfo(
            name="colored-digits",
            num_classes=2,
            image_size=28,
            group_names=colored.GROUP_NAMES,
            scenarios=GROUP_SCENARIOS,
            options=resolve_options("colored-digits", options, defaults, {"recipe": colored.RECIPES}),
        )

    def __init__(self, info: BenchmarkInfo, *, root: Path | None, cache: Path, skip_bad: bool = False) -> None:
        super().__init__(info, root=None, cache=cache, skip_bad=skip_bad)

    @property
    def train_group_sizes(self) -> tuple[int, ...]:
        """Training images of each group, the weights of the adjusted average."""
        return tuple(np.bincount(self.train_images().groups, minlength=4).tolist())

    def recipe(self, corruption: str | None, severity: int | None) -> Recipe:
        return self._environments("test", [2])

    def train_images(self) -> ImageSet:
        """Both training environments, one after the other (1,198 images)."""
        return self._open(self._environments("train", [0, 1]))

    def source_images(self) -> ImageSet:
        """The training images."""
        return self.train_images()

    def correlations(self) -> dict[str, dict[str, float]]:
        """See ``colored.correlations``."""
        return colored.correlations(self._coloring(load_scans(8)[1]))

    def _coloring(self, digits: np.ndarray) -> colored.Coloring:
        return colored.color(digits, **self.info.options)

    def _environments(self, part: str, numbers: list[int]) -> Recipe:
        def open_source() -> ArraySource:
            gray, digits = load_scans(28)
            coloring = self._coloring(digits)
            here = np.isin(coloring.environment, numbers)
            pixels = colored.paint(gray[here], coloring.red[here])
            return ArraySource(pixels, coloring.target[here], coloring.groups[here])

        return self._recipe(part, open_source)
