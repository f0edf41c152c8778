"""CIFAR-10 (JPEG copies): a Parquet file of JPEG bytes with labels, with corruptions made here.

JPEG costs about 10 points of accuracy, so that results are never to be compared with CIFAR-10-C's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from deyo.benchmarks.base import GENERATED_OPTIONS, BaseBenchmark, generated_options
from deyo.benchmarks.info import ALL_SEVERITIES, IMAGE_SCENARIOS, BenchmarkInfo, require_root
from deyo.benchmarks.sources import EncodedSource
from deyo.cache import Recipe
from deyo.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from deyo.types import DataError, ImageSet

LAYOUT = "test.parquet with the columns image (JPEG bytes) and label (0 to 9), 10,000 rows"


class CIFAR10Jpeg(BaseBenchmark):
    """10,000 test images; the corruptions have CIFAR-10-C's constants unless option ``constants`` says otherwise."""

    ROWS = 10_000
    OPTIONS: ClassVar = GENERATED_OPTIONS | {"constants": replace(GENERATED_OPTIONS["constants"], default="cifar")}

    @staticmethod
    def describe(**options: Any) -> BenchmarkInfo:
        return BenchmarkInfo(
            name="cifar10-jpeg",
            num_classes=10,
            image_size=32,
            corruptions=CORRUPTIONS + EXTRA_CORRUPTIONS,
            severities=ALL_SEVERITIES,
            scenarios=IMAGE_SCENARIOS,
            generated=True,
            options=generated_options("cifar10-jpeg", options, CIFAR10Jpeg.OPTIONS),
        )

    def recipe(self, corruption: str | None, severity: int | None) -> Recipe:
        return self._generated(str(corruption), int(severity or 0))

    def images_clean(self) -> ImageSet:
        return self._open(self._recipe("clean", self._open_source, options={}))

    def source_images(self) -> ImageSet:
        """The clean test images: the JPEG copies have no training set."""
        return self.images_clean()

    def _open_source(self) -> EncodedSource:
        import pyarrow as pa
        import pyarrow.parquet as pq

        file = require_root(self.name, self.root, LAYOUT) / "test.parquet"
        try:
            table = pq.read_table(file, columns=["image", "label"])
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{self.name}: {file} cannot be read ({error}). Expected: {LAYOUT}") from None
        labels = np.asarray(table["label"].to_numpy())
        if len(table) != self.ROWS or labels.min() < 0 or labels.max() > 9:
            raise DataError(
                f"{self.name}: {file} has {len(table):,} rows with labels {labels.min()} to {labels.max()}, expected "
                f"{self.ROWS:,} with 0 to 9"
            )
        return EncodedSource(str(file), table["image"].to_pylist(), labels, 32)
