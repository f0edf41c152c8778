"""Clean ImageNet validation images: ``<root>[/val]/<wnid>/*.JPEG``, 50 for each of 1,000 classes.

A benchmark of its own (anchors before any adaptation), and the clean source of the ImageNet benchmarks (EATA).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deyo.benchmarks import transforms
from deyo.benchmarks.base import BaseBenchmark
from deyo.benchmarks.info import SINGLE_SHIFT_SCENARIOS, BenchmarkInfo, find_root, require_root, resolve_options
from deyo.benchmarks.listing import imagenet_wnids, list_classes
from deyo.benchmarks.sources import FileSource
from deyo.cache import Recipe
from deyo.types import DataError, ImageSet

SIZE = 224
LAYOUT = "val/<wnid>/*.JPEG, 50 images for each of 1,000 classes"


class ImageNet(BaseBenchmark):
    """The 50,000 validation images: shorter side 256, middle 224."""

    DECODES = True
    PER_CLASS = 50

    @staticmethod
    def describe(**options: Any) -> BenchmarkInfo:
        return BenchmarkInfo(
            name="imagenet",
            num_classes=1000,
            image_size=SIZE,
            scenarios=SINGLE_SHIFT_SCENARIOS,
            options=resolve_options("imagenet", options, ImageNet.OPTIONS),
        )

    def recipe(self, corruption: str | None, severity: int | None) -> Recipe:
        return self._recipe("val", self._open_source)

    def source_images(self) -> ImageSet:
        """The validation images themselves."""
        return self.images()

    def _open_source(self) -> FileSource:
        root = require_root(self.name, self.root, LAYOUT)
        root = root / "val" if (root / "val").is_dir() else root
        wnids = imagenet_wnids()
        files, labels = list_classes(self.name, root, wnids, self.PER_CLASS, self.PER_CLASS * len(wnids))
        return FileSource(files, labels, SIZE, transforms.resize_and_crop(256, SIZE), root=root)


class ImageNetTarget(BaseBenchmark):
    """What shifted versions of ImageNet share: their clean source images are ImageNet's."""

    DECODES = True

    def source_images(self) -> ImageSet:
        """Clean validation images, listed at the first call.

        From the root named for ``imagenet``, DEYO_DATA_IMAGENET, DEYO_DATA/imagenet, or ``imagenet`` beside this data.
        """
        try:
            if "source" not in self._opened:
                self._opened["source"] = self._clean().images()
            return self._opened["source"]
        except DataError as error:
            raise DataError(f"{self.name} needs clean source images (EATA's Fisher matrix): {error}") from None

    def _clean(self) -> BaseBenchmark:
        root = find_root("imagenet", self.roots.get("imagenet"))
        beside = [] if self.root is None else [self.root / "val", self.root.parent / "imagenet"]
        if root is None:
            root = next((Path(place) for place in beside if place.is_dir()), None)
        return self._asked_alike(ImageNet(ImageNet.describe(), root=root, cache=self.cache, skip_bad=self.skip_bad))
