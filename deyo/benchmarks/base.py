"""What the benchmarks share: checked conditions, prepared arrays, clean images, corruptions made here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from deyo.benchmarks.info import BenchmarkInfo, Option, nearest, resolve_options
from deyo.benchmarks.sources import CorruptedSource
from deyo.cache import Progress, Recipe, Source, open_images
from deyo.corruptions import VERSION as CORRUPTIONS_VERSION
from deyo.corruptions.constants import FAMILIES
from deyo.types import ConfigError, DataError, ImageSet

DEVICES = ("cpu", "cuda")  # kinds that corruptions are made on
GENERATED_OPTIONS = {
    "constants": Option(
        default="imagenet",
        choices=tuple(FAMILIES),
        doc="of the corruptions: ImageNet-C's, Tiny-ImageNet-C's or CIFAR-10-C's",
    ),
    "corruption_seed": Option(default=0, doc="of the corruptions' random draws"),
    "jpeg_quality": Option(
        default=85,
        allowed="1 to 95, or 0",
        doc="JPEG after the corruption, 85 as in ImageNet-C; 0: none, which spares what the strongest contrast leaves",
    ),
}
"""Options of benchmarks whose corruptions are made here."""


class BaseBenchmark(ABC):
    """A benchmark over recipes; subclasses say how each part is opened, and which ``OPTIONS`` it has.

    ``workers``, ``device`` and ``progress`` are for ``deyo.cache.prepare``; with ``build`` False, sets are opened but
    not prepared, and with ``ahead``, for later (``deyo.cache.open_images``). Opened sets are kept: asking twice is
    free, also for a shallow copy.
    """

    OPTIONS: ClassVar[Mapping[str, Option]] = {}
    class_columns: np.ndarray | None = None
    entropy_classes: int | None = None  # the C of thresholds such as 0.4 · ln C, where it is not the number of logits
    roots: Mapping[str, Path] = {}  # of other benchmarks whose images may be needed, as far as they were named
    DECODES: ClassVar[bool] = False  # whether image files are decoded, which takes long enough to be done ahead
    data_version = 1  # grows in a subclass whose reading of the same files changes; arrays are then made anew

    def __init__(self, info: BenchmarkInfo, *, root: Path | None, cache: Path, skip_bad: bool = False) -> None:
        self.info, self.root, self.cache, self.skip_bad = info, root, cache, skip_bad
        self.name = info.name
        self.corruptions, self.severities, self.group_names = info.corruptions, info.severities, info.group_names
        self.workers: int | None = None
        self.device = "cpu"
        self.progress: Progress | None = None
        self.build = True
        self.ahead = False
        self._opened: dict[str, ImageSet] = {}

    @property
    def num_classes(self) -> int:
        """Classes that predictions are over (``len(class_columns)`` where logits are cut)."""
        if self.class_columns is not None:
            return len(self.class_columns)
        return self.info.num_classes or self._counted_classes()

    @property
    def image_size(self) -> int:
        return self.info.image_size

    def images(self, corruption: str | None = None, severity: int | None = None) -> ImageSet:
        """The test images of one condition (``Benchmark.images``)."""
        self.check(corruption, severity)
        return self._open(self.recipe(corruption, severity))

    def source_images(self) -> ImageSet:
        """Clean source images. Raises ``DataError`` if the benchmark has none."""
        raise DataError(f"{self.name} has no clean source images")

    def train_images(self) -> ImageSet:
        """Images to pretrain on. Raises ``DataError`` if the benchmark offers none."""
        raise DataError(f"{self.name} has no training images; choose a network that comes pretrained")

    @abstractmethod
    def recipe(self, corruption: str | None, severity: int | None) -> Recipe:
        """How the array of a checked condition is made."""

    def check(self, corruption: str | None, severity: int | None) -> None:
        """Raises ``ConfigError`` unless the benchmark has this condition."""
        if not self.corruptions:
            if corruption is not None or severity is not None:
                raise ConfigError(f"{self.name} has no corruptions; found {corruption!r}, severity {severity}")
            return
        if corruption not in self.corruptions:
            raise ConfigError(
                f"{self.name} has no corruption {corruption!r}; it has: {', '.join(self.corruptions)}."
                + nearest(str(corruption), self.corruptions)
            )
        if severity not in self.severities:
            raise ConfigError(f"{self.name}: severity is {severity!r}, expected one of {self.severities}")

    def images_clean(self) -> ImageSet:
        """The test images without a corruption, where they are known."""
        return self.source_images()

    def _asked_alike(self, other: BaseBenchmark) -> BaseBenchmark:
        """``other``, whose images this benchmark needs, to be opened in the same way as its own."""
        other.workers, other.progress, other.build, other.ahead = self.workers, self.progress, self.build, self.ahead
        return other

    def _counted_classes(self) -> int:
        raise DataError(f"{self.name}: the number of classes is not known")

    def _open(self, recipe: Recipe) -> ImageSet:
        if recipe.name not in self._opened:
            self._opened[recipe.name] = open_images(
                recipe,
                self.cache,
                skip_bad=self.skip_bad,
                workers=self.workers,
                progress=self.progress,
                build=self.build,
                ahead=self.ahead,
            )
        return self._opened[recipe.name]

    def _recipe(self, part: str, open_source: Callable[[], Source], **config: Any) -> Recipe:
        """``config``: what decides the pixels besides the files; the options by default."""
        return Recipe(
            name=f"{self.name}/{part}",
            config={"options": dict(self.info.options), "data_version": self.data_version, **config},
            open=open_source,
            root=self.root,
        )

    def _generated(self, corruption: str, severity: int) -> Recipe:
        """The clean test images with a corruption made here, as the options of ``GENERATED_OPTIONS`` say.

        A GPU rounds one or two pixels in a million to another level than a CPU does, so the kind of device is in the
        config. An array that is there already is taken, wherever it was made.
        """
        options = self.info.options
        constants, seed, quality = (options[name] for name in GENERATED_OPTIONS)

        def open_source() -> Source:
            return CorruptedSource(
                self.images_clean(),
                corruption,
                severity,
                seed=seed,
                constants=constants,
                quality=quality,
                device=self.device,
            )

        made = self._recipe(f"generated/{corruption}/{severity}", open_source, generated=CORRUPTIONS_VERSION)
        here = torch.device(self.device).type
        elsewhere = tuple(_made_on(kind, made.config) for kind in DEVICES if kind != here)
        return replace(made, config=_made_on(here, made.config), alike=elsewhere)


def _made_on(kind: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """``config`` of an array made on this kind of device; the CPU goes without saying."""
    return config if kind == "cpu" else {**config, "device": kind}


def generated_options(benchmark: str, given: Mapping[str, Any], options: Mapping[str, Option]) -> dict[str, Any]:
    """``resolve_options`` of a benchmark whose corruptions are made here (``GENERATED_OPTIONS`` among its own)."""
    found = resolve_options(benchmark, given, options)
    if not 0 <= found["jpeg_quality"] <= 95:
        raise ConfigError(f"{benchmark}: jpeg_quality is {found['jpeg_quality']}, expected 1 to 95, or 0 for no JPEG")
    return found
