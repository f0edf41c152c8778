"""Waterbirds in WILDS' and group_DRO's layout: ``metadata.csv`` and the images it names (methods.md §3.7)."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from deyo.benchmarks import transforms
from deyo.benchmarks.base import BaseBenchmark
from deyo.benchmarks.info import GROUP_SCENARIOS, BenchmarkInfo, Option, require_root, resolve_options
from deyo.benchmarks.sources import FileSource
from deyo.cache import Recipe
from deyo.types import DataError, ImageSet

SIZE = 224
LAYOUT = "metadata.csv (img_filename, y, split, place) and its images, as in waterbird_complete95_forest2water2"
GROUP_NAMES = ("landbird-land", "landbird-water", "waterbird-land", "waterbird-water")
SPLITS = ("train", "val", "test")
_FOLDERS = ("waterbird_complete95_forest2water2", "waterbirds_v1.0")
_COLUMNS = ("img_filename", "y", "split", "place")


class Waterbirds(BaseBenchmark):
    """Birds on land and water backgrounds; group = 2 · y + place."""

    DECODES = True
    OPTIONS: ClassVar = {
        "preprocessing": Option(
            default="official",
            choices=("official", "group_dro"),
            doc="official: squashed to 224x224, bicubic; group_dro: to 256x256, bilinear, then the middle 224 (D17)",
        )
    }
    COUNTS: ClassVar[dict[str, tuple[int, int, int, int]]] = {
        "train": (3498, 184, 56, 1057),
        "val": (467, 466, 133, 133),
        "test": (2255, 2255, 642, 642),
    }

    @property
    def train_group_sizes(self) -> tuple[int, ...]:
        """Training images of each group, the weights of WILDS' adjusted average."""
        return self.COUNTS["train"]

    @staticmethod
    def describe(**options: Any) -> BenchmarkInfo:
        return BenchmarkInfo(
            name="waterbirds",
            num_classes=2,
            image_size=SIZE,
            group_names=GROUP_NAMES,
            scenarios=GROUP_SCENARIOS,
            options=resolve_options("waterbirds", options, Waterbirds.OPTIONS),
        )

    def recipe(self, corruption: str | None, severity: int | None) -> Recipe:
        return self._split("test")

    def train_images(self) -> ImageSet:
        """The 4,795 training images."""
        return self._open(self._split("train"))

    def validation_images(self) -> ImageSet:
        """The 1,199 validation images."""
        return self._open(self._split("val"))

    def source_images(self) -> ImageSet:
        """The training images (EATA's Fisher matrix on biased sets)."""
        return self.train_images()

    def _split(self, split: str) -> Recipe:
        return self._recipe(split, lambda: self._open_source(split))

    def _open_source(self, split: str) -> FileSource:
        root = require_root(self.name, self.root, LAYOUT)
        root = next((root / name for name in _FOLDERS if (root / name).is_dir()), root)
        rows = _read_metadata(root / "metadata.csv")
        here = rows["split"] == SPLITS.index(split)
        groups = (2 * rows["y"] + rows["place"])[here]
        found = tuple(np.bincount(groups, minlength=4).tolist())
        if found != self.COUNTS[split]:
            raise DataError(
                f"{self.name} {split}: {root / 'metadata.csv'} has {found} images in the groups {GROUP_NAMES}, "
                f"expected {self.COUNTS[split]}"
            )
        files = [root / name for name in rows["img_filename"][here]]
        absent = [file for file in files if not file.is_file()]
        if absent:
            raise DataError(f"{self.name} {split}: {len(absent)} images named in metadata.csv are missing: {absent[0]}")
        official = self.info.options["preprocessing"] == "official"
        transform = transforms.squash(SIZE) if official else transforms.squash_and_crop(256, SIZE)
        return FileSource(files, rows["y"][here], SIZE, transform, root=root, groups=groups)


def _read_metadata(file: Path) -> dict[str, np.ndarray]:
    """The columns of ``metadata.csv``: names as text, the rest int64. Raises ``DataError`` for anything else."""
    if not file.is_file():
        raise DataError(f"waterbirds: no {file}. Expected: {LAYOUT}")
    with file.open(newline="") as lines:
        reader = csv.DictReader(lines)
        missing = [name for name in _COLUMNS if name not in (reader.fieldnames or [])]
        if missing:
            raise DataError(f"waterbirds: {file} has columns {reader.fieldnames}, missing {missing}")
        rows = list(reader)
    columns = {"img_filename": np.array([row["img_filename"] for row in rows])}
    limits = {"y": 1, "split": 2, "place": 1}
    for name, largest in limits.items():
        values = []
        for number, row in enumerate(rows, start=2):
            if row[name] not in map(str, range(largest + 1)):
                raise DataError(f"waterbirds: {file}, line {number}: {name} is {row[name]!r}, expected 0 to {largest}")
            values.append(int(row[name]))
        columns[name] = np.array(values, dtype=np.int64)
    return columns
