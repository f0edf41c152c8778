"""ImageNet-C as released: ``<root>/<corruption>/<severity>/<wnid>/*.JPEG`` (methods.md §3.1).

The tar files' own folders (noise, blur, weather, digital, extra) may stand between root and corruption.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deyo.benchmarks import transforms
from deyo.benchmarks.imagenet import SIZE, ImageNetTarget
from deyo.benchmarks.info import ALL_SEVERITIES, IMAGE_SCENARIOS, BenchmarkInfo, require_root, resolve_options
from deyo.benchmarks.listing import check_distinct, check_sizes, imagenet_wnids, list_classes
from deyo.benchmarks.sources import FileSource
from deyo.cache import Recipe
from deyo.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from deyo.types import DataError

LAYOUT = "<corruption>/<severity 1-5>/<wnid>/*.JPEG, 50 images of 224x224 for each of 1,000 classes"
_TARS = ("noise", "blur", "weather", "digital", "extra")


class ImageNetC(ImageNetTarget):
    """50,000 images for each corruption and severity, centre-cropped to 224 and never resized."""

    PER_CLASS = 50

    @staticmethod
    def describe(**options: Any) -> BenchmarkInfo:
        return BenchmarkInfo(
            name="imagenet-c",
            num_classes=1000,
            image_size=SIZE,
            corruptions=CORRUPTIONS + EXTRA_CORRUPTIONS,
            severities=ALL_SEVERITIES,
            scenarios=IMAGE_SCENARIOS,
            options=resolve_options("imagenet-c", options, ImageNetC.OPTIONS),
        )

    def recipe(self, corruption: str | None, severity: int | None) -> Recipe:
        return self._recipe(f"{corruption}/{severity}", lambda: self._open_source(str(corruption), int(severity or 0)))

    def _open_source(self, corruption: str, severity: int) -> FileSource:
        root = require_root(self.name, self.root, LAYOUT)
        name = f"{self.name} {corruption} {severity}"
        folder = _folder(root, corruption, severity)
        if not folder.is_dir():
            raise DataError(f"{name}: no folder {folder}. Expected under {root}: {LAYOUT}")
        folders = {f"{c} {s}": _folder(root, c, s) for c in self.corruptions for s in self.severities}
        check_distinct(self.name, folders, f"{corruption} {severity}")
        wnids = imagenet_wnids()
        files, labels = list_classes(name, folder, wnids, self.PER_CLASS, self.PER_CLASS * len(wnids))
        check_sizes(name, files, SIZE)
        return FileSource(files, labels, SIZE, transforms.center_crop(SIZE), root=folder, exact_size=SIZE)


def _folder(root: Path, corruption: str, severity: int) -> Path:
    """``root/corruption/severity``, or the same within a tar file's folder."""
    for place in (root, *(root / tar for tar in _TARS)):
        if (place / corruption).is_dir():
            return place / corruption / str(severity)
    return root / corruption / str(severity)
