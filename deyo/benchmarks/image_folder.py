"""image-folder: any labelled images of the user's, with corruptions made here.

Layouts: torchvision's ``ImageFolder`` (one folder for each class, in sorted order), or a ``labels.csv`` with the
columns file and class_index (or label); files are relative to it, or to ``images`` beside it.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from deyo.benchmarks import transforms
from deyo.benchmarks.base import GENERATED_OPTIONS, BaseBenchmark, generated_options
from deyo.benchmarks.info import (
    ALL_SEVERITIES,
    IMAGE_SCENARIOS,
    SINGLE_SHIFT_SCENARIOS,
    BenchmarkInfo,
    Option,
    require_root,
)
from deyo.benchmarks.listing import class_folders, imagenet_wnids, list_images
from deyo.benchmarks.sources import FileSource
from deyo.cache import Recipe, Source
from deyo.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from deyo.types import ConfigError, DataError, ImageSet

LAYOUT = "<class>/*.jpg, or labels.csv (columns file, class_index) and its images"


class ImageFolder(BaseBenchmark):
    """The user's images: shorter side to ``resize``, middle ``image_size``, then a corruption and JPEG.

    JPEG matters: on 1,000 ImageNet images at contrast 5, EfficientNet-lite0 has 11.8 % and with BatchNorm statistics
    59.5 % without it, 6.6 % and 31 % through it. Which images they are is part of what a run is.
    """

    DECODES = True
    OPTIONS: ClassVar = GENERATED_OPTIONS | {
        "image_size": Option(default=224, allowed="at most resize; 32 or more with generate", doc="side in pixels"),
        "resize": Option(default=256, doc="pixels of the shorter side, before the middle image_size is taken"),
        "classes": Option(
            default="folders",
            choices=("folders", "imagenet"),
            doc="folders: class folders numbered in sorted order; imagenet: wnids, numbered as among the 1,000",
        ),
        "num_classes": Option(
            default=None,
            allowed="whole, at least 2, or null",
            doc="where the network has more classes than the images show",
        ),
        "generate": Option(
            default=True, doc="make corruptions; false: the images as they are, with no axis of corruptions"
        ),
    }

    @staticmethod
    def describe(**options: Any) -> BenchmarkInfo:
        resolved = generated_options("image-folder", options, ImageFolder.OPTIONS)
        number = resolved["num_classes"]
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 2):
            raise ConfigError(f"image-folder: num_classes is {number!r}, expected a number of 2 or more")
        if resolved["image_size"] > resolved["resize"]:
            raise ConfigError(
                f"image-folder: image_size {resolved['image_size']} is larger than resize {resolved['resize']}"
            )
        if resolved["generate"] and resolved["image_size"] < 32:
            raise ConfigError(f"image-folder: corruptions need image_size 32 or more, found {resolved['image_size']}")
        return BenchmarkInfo(
            name="image-folder",
            num_classes=number or (1000 if resolved["classes"] == "imagenet" else None),
            image_size=resolved["image_size"],
            corruptions=CORRUPTIONS + EXTRA_CORRUPTIONS if resolved["generate"] else (),
            severities=ALL_SEVERITIES if resolved["generate"] else (),
            scenarios=IMAGE_SCENARIOS if resolved["generate"] else SINGLE_SHIFT_SCENARIOS,
            generated=resolved["generate"],
            options=resolved,
        )

    def recipe(self, corruption: str | None, severity: int | None) -> Recipe:
        if corruption is None or severity is None:
            return self._clean_recipe()
        return self._generated(corruption, severity)

    def data_id(self) -> str:
        """Names the images: 16 hex digits over the files' names, labels, number and a sample of their contents.

        Raises ``DataError`` if they cannot be listed.
        """
        return self._open_source().fingerprint[:16]

    @cached_property
    def shown_classes(self) -> int | None:
        """Class folders, where they alone number the classes: a network with more or fewer means other ones."""
        by_folder = self.info.num_classes is None and self.root is not None and self.root.is_dir()
        if not by_folder or (self.root / "labels.csv").is_file():
            return None
        return self._counted_classes()

    def images_clean(self) -> ImageSet:
        return self._open(self._clean_recipe())

    def source_images(self) -> ImageSet:
        """The images without a corruption."""
        return self.images_clean()

    def _counted_classes(self) -> int:
        root = require_root(self.name, self.root, LAYOUT)
        if (root / "labels.csv").is_file():
            return int(_read_labels(root)[1].max()) + 1
        return len(class_folders(root))

    def _clean_recipe(self) -> Recipe:
        options = {name: self.info.options[name] for name in ("image_size", "resize", "classes")}
        return self._recipe("clean", self._open_source, options=options)

    def _recipe(self, part: str, open_source: Callable[[], Source], **config: Any) -> Recipe:
        """Another folder's images are another benchmark: no array stands for a folder that is not there."""
        return replace(super()._recipe(part, open_source, **config), outlives=False)

    def _open_source(self) -> FileSource:
        root = require_root(self.name, self.root, LAYOUT)
        files, labels = _read_labels(root) if (root / "labels.csv").is_file() else self._read_folders(root)
        known = self.info.num_classes
        if known is not None and labels.max() >= known:
            raise DataError(f"{self.name}: {root} has class {labels.max()}, expected 0 to {known - 1} (num_classes)")
        size = self.info.options["image_size"]
        transform = transforms.resize_and_crop(self.info.options["resize"], size)
        return FileSource(files, labels, size, transform, root=root)

    def _read_folders(self, root: Path) -> tuple[list[Path], np.ndarray]:
        names = class_folders(root)
        numbers = dict(zip(names, range(len(names))))
        if self.info.options["classes"] == "imagenet":
            index = {wnid: number for number, wnid in enumerate(imagenet_wnids())}
            foreign = [name for name in names if name not in index]
            if foreign:
                raise DataError(f"{self.name}: {root} has folders that are no ImageNet class: {foreign[:5]}")
            numbers = {name: index[name] for name in names}
        listed = {name: list_images(root / name) for name in names}
        empty = [name for name, files in listed.items() if not files]
        if empty or not names:
            raise DataError(
                f"{self.name}: {root} "
                + (f"has class folders without images: {empty[:5]}" if names else "is empty")
                + f". Expected: {LAYOUT}"
            )
        files = [file for name in names for file in listed[name]]
        return files, np.array([numbers[name] for name in names for _ in listed[name]])


def _read_labels(root: Path) -> tuple[list[Path], np.ndarray]:
    """Files and labels of ``labels.csv``, in its order. Raises ``DataError`` with the line that is wrong."""
    table = root / "labels.csv"
    with table.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    column = next((name for name in ("class_index", "label") if rows and name in rows[0]), None)
    if column is None or "file" not in rows[0]:
        found = list(rows[0]) if rows else "no rows"
        raise DataError(f"image-folder: {table} has {found}, expected the columns file and class_index")
    folder = root / "images" if (root / "images").is_dir() and not (root / rows[0]["file"]).is_file() else root
    files, labels = [], []
    for number, row in enumerate(rows, start=2):
        if not (row[column] or "").isdecimal():
            raise DataError(f"image-folder: {table}, line {number}: {column} is {row[column]!r}, expected 0, 1, ...")
        if not (folder / row["file"]).is_file():
            raise DataError(f"image-folder: {table}, line {number}: no file {folder / row['file']}")
        files.append(folder / row["file"])
        labels.append(int(row[column]))
    return files, np.array(labels)
