"""JPEG files in ImageNet-C's layout, and the benchmark that reads fewer of them than ImageNet-C has.

``ImageNetCPart`` reads as ``ImageNetC`` does and asks for ``per_class`` images of each class instead of 50. It is
announced like a user's own benchmark, by a package's entry points in a folder on PYTHONPATH (``announce``).
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from deyo.benchmarks.base import BaseBenchmark
from deyo.benchmarks.imagenet import SIZE, ImageNet
from deyo.benchmarks.imagenet_c import ImageNetC
from deyo.benchmarks.info import ALL_SEVERITIES, IMAGE_SCENARIOS, BenchmarkInfo, Option, resolve_options
from deyo.benchmarks.listing import imagenet_wnids
from deyo.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS

NAME = "imagenet-c-part"
QUALITY = 80
DISTINCT = 256
CLEAN_PER_CLASS = 1


class ImageNetCPart(ImageNetC):
    """ImageNet-C with ``per_class`` images of each class; the clean images beside it have one of each."""

    OPTIONS: ClassVar = {"per_class": Option(default=1, doc="images of each class")}

    @staticmethod
    def describe(**options: Any) -> BenchmarkInfo:
        return BenchmarkInfo(
            name=NAME,
            num_classes=1000,
            image_size=SIZE,
            corruptions=CORRUPTIONS + EXTRA_CORRUPTIONS,
            severities=ALL_SEVERITIES,
            scenarios=IMAGE_SCENARIOS,
            options=resolve_options(NAME, options, ImageNetCPart.OPTIONS),
        )

    def __init__(self, info: BenchmarkInfo, **places: Any) -> None:
        super().__init__(info, **places)
        self.PER_CLASS = int(info.options["per_class"])

    def _clean(self) -> BaseBenchmark:
        clean = ImageNet(ImageNet.describe(), root=Path(str(self.root)) / "clean", cache=self.cache)
        clean.PER_CLASS = CLEAN_PER_CLASS
        return self._asked_alike(clean)


def make_tree(root: Path, corruptions: Sequence[str], per_class: int, *, severity: int = 5, seed: int = 0) -> int:
    """Write the files of ``corruptions`` and the clean ones under ``root``; returns their number.

    No two files are equal: ``DISTINCT`` pictures come again and again, each time with another comment, so that
    reading and decoding cost what they cost for as many different pictures.
    """
    pictures = jpegs(DISTINCT, seed)
    folders = [root / name / str(severity) / wnid for name in corruptions for wnid in imagenet_wnids()]
    folders += [root / "clean" / "val" / wnid for wnid in imagenet_wnids()]

    def write(numbered: tuple[int, Path]) -> int:
        number, folder = numbered
        folder.mkdir(parents=True)
        count = CLEAN_PER_CLASS if "clean" in folder.parts[-3:] else per_class
        for k in range(count):
            place = number * max(per_class, CLEAN_PER_CLASS) + k
            (folder / f"image_{k:05d}.JPEG").write_bytes(commented(pictures[place % DISTINCT], str(place)))
        return count

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return sum(pool.map(write, enumerate(folders)))


def jpegs(count: int, seed: int) -> list[bytes]:
    """``count`` pictures of 224×224 as JPEG: smooth colours with fine grain, 15 to 17 kB as ImageNet-C's are."""
    dice = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        coarse = Image.fromarray(dice.integers(0, 256, (14, 14, 3), dtype=np.uint8)).resize((SIZE, SIZE), Image.BICUBIC)
        grain = dice.normal(0, 9, (SIZE, SIZE, 1))
        pixels = (np.asarray(coarse, dtype=np.float32) + grain).clip(0, 255).astype(np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=QUALITY)
        made.append(buffer.getvalue())
    return made


def commented(jpeg: bytes, text: str) -> bytes:
    """``jpeg`` with a comment segment after its first marker."""
    comment = text.encode()
    return jpeg[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + jpeg[2:]


def announce(folder: Path) -> None:
    """Make the benchmark a name for every process that has ``folder`` on its PYTHONPATH."""
    info = folder / "imagenet_c_part-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: imagenet-c-part\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[deyo.benchmarks]\n{NAME} = {__name__}:ImageNetCPart\n")
