"""ImageNet-R: ``<root>/<wnid>/*.jpg``, 30,000 renditions of 200 ImageNet classes (methods.md §3.4)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from deyo.benchmarks import transforms
from deyo.benchmarks.imagenet import SIZE, ImageNetTarget
from deyo.benchmarks.info import SINGLE_SHIFT_SCENARIOS, BenchmarkInfo, Option, require_root, resolve_options
from deyo.benchmarks.listing import imagenet_r_wnids, imagenet_wnids, list_classes
from deyo.benchmarks.sources import FileSource
from deyo.cache import Recipe

LAYOUT = "<wnid>/*.jpg, 30,000 images in 200 class folders"


def imagenet_r_columns() -> np.ndarray:
    """The columns of ImageNet-R's classes among 1,000 logits, int64 [200], in the order of its labels."""
    index = {wnid: number for number, wnid in enumerate(imagenet_wnids())}
    return np.array([index[wnid] for wnid in imagenet_r_wnids()], dtype=np.int64)


class ImageNetR(ImageNetTarget):
    """Labels 0 to 199 in sorted order; the logits are cut to these classes before entropy and PLPD."""

    TOTAL = 30_000
    OPTIONS: ClassVar = {
        "entropy_classes": Option(
            default=1000,
            choices=(200, 1000),
            doc="the C of thresholds such as 0.4·ln C: SAR's author kept 1,000, FOA took 200",
        )
    }

    @staticmethod
    def describe(**options: Any) -> BenchmarkInfo:
        resolved = resolve_options("imagenet-r", options, ImageNetR.OPTIONS)
        return BenchmarkInfo(
            name="imagenet-r",
            num_classes=resolved["entropy_classes"],
            image_size=SIZE,
            scenarios=SINGLE_SHIFT_SCENARIOS,
            options=resolved,
        )

    @property
    def class_columns(self) -> np.ndarray:
        return imagenet_r_columns()

    @property
    def entropy_classes(self) -> int:
        """The C of thresholds, as the option says (``MethodContext.entropy_classes``)."""
        return self.info.options["entropy_classes"]

    def recipe(self, corruption: str | None, severity: int | None) -> Recipe:
        return self._recipe("test", self._open_source, options={})  # the option changes no pixel

    def _open_source(self) -> FileSource:
        root = require_root(self.name, self.root, LAYOUT)
        files, labels = list_classes(self.name, root, imagenet_r_wnids(), None, self.TOTAL)
        return FileSource(files, labels, SIZE, transforms.resize_and_crop(256, SIZE), root=root)
