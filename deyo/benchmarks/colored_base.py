"""What ColoredMNIST and its small copy on scikit-learn's digits share: environments, groups, correlations."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np

from deyo.benchmarks import colored
from deyo.benchmarks.base import BaseBenchmark
from deyo.benchmarks.info import GROUP_SCENARIOS, BenchmarkInfo, Option, resolve_options
from deyo.benchmarks.sources import ArraySource
from deyo.cache import Recipe
from deyo.types import ImageSet

OPTIONS = {
    "recipe": Option(
        default="official",
        choices=colored.RECIPES,
        doc="official: 25 % label noise, flips 0.2, 0.1, 0.9, class 0 red; paper: no noise, 0.2, 0.2, 0.9, green",
    ),
    "numpy_seed": Option(
        default=2024, doc="of label noise and colours; with recipe official the authors' set of that seed, bit for bit"
    ),
}


def describe_colored(name: str, **options: Any) -> BenchmarkInfo:
    """Two classes, four groups, 28x28; options: ``OPTIONS``."""
    return BenchmarkInfo(
        name=name,
        num_classes=2,
        image_size=28,
        group_names=colored.GROUP_NAMES,
        scenarios=GROUP_SCENARIOS,
        options=resolve_options(name, options, OPTIONS),
    )


class ColoredBenchmark(BaseBenchmark):
    """Digits coloured by the recipe in ``colored``; subclasses say which digits."""

    OPTIONS: ClassVar = OPTIONS

    @abstractmethod
    def labels_of_digits(self) -> np.ndarray:
        """0 to 9, int64 [N], of all environments in order."""

    @abstractmethod
    def scans(self) -> np.ndarray:
        """The digits themselves, uint8 [N, 28, 28]."""

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
        return colored.correlations(self._coloring())

    def _coloring(self) -> colored.Coloring:
        return colored.color(self.labels_of_digits(), **self.info.options)

    def _environments(self, part: str, numbers: list[int]) -> Recipe:
        def open_source() -> ArraySource:
            gray, coloring = self.scans(), self._coloring()
            here = np.isin(coloring.environment, numbers)
            pixels = colored.paint(gray[here], coloring.red[here])
            return ArraySource(pixels, coloring.target[here], coloring.groups[here])

        return self._recipe(part, open_source)
