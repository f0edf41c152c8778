"""colored-digits: ColoredMNIST's recipe on scikit-learn's bundled digits, nothing to download."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from deyo.benchmarks.colored_base import ColoredBenchmark, describe_colored
from deyo.benchmarks.digits_c import load_scans
from deyo.benchmarks.info import BenchmarkInfo


class ColoredDigits(ColoredBenchmark):
    """ColoredMNIST's recipe on the digits, at MNIST's 28x28: 599 images in each environment."""

    @staticmethod
    def describe(**options: Any) -> BenchmarkInfo:
        return replace(describe_colored("colored-digits", **options), bundled=True)

    def labels_of_digits(self) -> np.ndarray:
        return load_scans(8)[1]

    def scans(self) -> np.ndarray:
        return load_scans(28)[0]
