"""VisDA-2021's validation images of ImageNet-C and ImageNet-R: ``[val_data/]imagenet_c_and_r/<wnid>/*``.

17,304 images: 9,080 corrupted ones of ImageNet's validation set and 8,224 renditions. ObjectNet and ImageNet-O,
whose classes are partly unknown, are left out, as SAR's author did (methods.md §3.4).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from deyo.benchmarks import transforms
from deyo.benchmarks.imagenet import SIZE, ImageNetTarget
from deyo.benchmarks.imagenet_r import imagenet_r_columns
from deyo.benchmarks.info import SINGLE_SHIFT_SCENARIOS, BenchmarkInfo, Option, require_root, resolve_options
from deyo.benchmarks.listing import check_counts, class_folders, imagenet_wnids, list_images
from deyo.benchmarks.sources import FileSource
from deyo.cache import Recipe
from deyo.types import DataError

LAYOUT = "imagenet_c_and_r/<wnid>/*.JPEG and *.jpg, 17,304 images (the unpacked val_data.zip)"


class VisDA2021(ImageNetTarget):
    """Labels 0 to 999, or 0 to 199 in sorted order (``OPTIONS``)."""

    CORRUPTED = 9_080
    RENDITIONS = 8_224
    OPTIONS: ClassVar = {
        "classes": Option(
            default=1000,
            choices=(200, 1000),
            doc="1000: all images, all logits; 200: the images of ImageNet-R's classes, logits cut to these",
        )
    }

    @staticmethod
    def describe(**options: Any) -> BenchmarkInfo:
        resolved = resolve_options("visda-2021", options, VisDA2021.OPTIONS)
        return BenchmarkInfo(
            name="visda-2021",
            num_classes=resolved["classes"],
            image_size=SIZE,
            scenarios=SINGLE_SHIFT_SCENARIOS,
            options=resolved,
        )

    @property
    def class_columns(self) -> np.ndarray | None:
        return imagenet_r_columns() if self.info.options["classes"] == 200 else None

    def recipe(self, corruption: str | None, severity: int | None) -> Recipe:
        return self._recipe(f"test-{self.info.options['classes']}", self._open_source)

    def _open_source(self) -> FileSource:
        root = require_root(self.name, self.root, LAYOUT)
        root = root / "val_data" if (root / "val_data").is_dir() else root
        root = root / "imagenet_c_and_r" if (root / "imagenet_c_and_r").is_dir() else root
        files, labels = self._list(root)
        if self.class_columns is not None:
            position = np.full(1000, -1)
            position[self.class_columns] = np.arange(len(self.class_columns))
            kept = np.flatnonzero(position[labels] >= 0)
            files, labels = [files[k] for k in kept], position[labels[kept]]
        return FileSource(files, labels, SIZE, transforms.resize_and_crop(256, SIZE), root=root)

    def _list(self, root: Path) -> tuple[list[Path], np.ndarray]:
        index = {wnid: number for number, wnid in enumerate(imagenet_wnids())}
        found = class_folders(root)
        foreign = [name for name in found if name not in index]
        if foreign:
            raise DataError(f"{self.name}: {root} has folders that are no ImageNet class: {foreign[:5]}")
        listed = [(file, index[name]) for name in found for file in list_images(root / name)]
        corrupted = sum(file.name.startswith("ILSVRC2012_val_") for file, _ in listed)
        counts = {"corrupted images": corrupted, "renditions": len(listed) - corrupted}
        if counts != {"corrupted images": self.CORRUPTED, "renditions": self.RENDITIONS}:
            found_text = ", ".join(f"{number:,} {name}" for name, number in counts.items())
            raise DataError(
                f"{self.name}: {root} holds {found_text}; expected {self.CORRUPTED:,} corrupted images (named "
                f"ILSVRC2012_val_*) and {self.RENDITIONS:,} renditions"
            )
        check_counts(self.name, root, counts, None, self.CORRUPTED + self.RENDITIONS)
        return [file for file, _ in listed], np.array([label for _, label in listed])
