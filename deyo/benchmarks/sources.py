"""Where images come from: files, arrays, and corruptions of other images. All are ``deyo.cache.Source``."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from deyo.benchmarks.decoding import FilePart
from deyo.benchmarks.transforms import Transform, is_own
from deyo.cache import digest
from deyo.corruptions import corrupt, jpeg_round_trip
from deyo.corruptions.photographs import PHOTOGRAPHIC, frost_folder
from deyo.types import ImageSet

_SAMPLED_FILES = 16


class ArraySource:
    """Images that are an array already: uint8 [N, H, W, 3] (or a memory map of them)."""

    skipped = 0

    def __init__(
        self, pixels: np.ndarray, labels: np.ndarray, groups: np.ndarray | None = None, *, identity: Any = None
    ) -> None:
        """``identity`` (JSON) stands for the pixels in the fingerprint; by default they are hashed."""
        self.pixels, self.labels, self.groups = pixels, labels.astype(np.int64), groups
        self.shape = pixels.shape
        self.fingerprint = digest(
            pixels if identity is None else identity, self.labels, [] if groups is None else groups
        )

    def read(self, indices: np.ndarray) -> tuple[np.ndarray, dict[int, str]]:
        return np.asarray(self.pixels[indices]), {}


class CorruptedSource:
    """``base`` with one corruption, stored through JPEG of ``quality`` as ImageNet-C was: "generated" images.

    Image k's randomness hangs on (seed, corruption, severity, k) alone. ``quality`` 0 leaves JPEG out.
    """

    def __init__(
        self,
        base: ImageSet,
        corruption: str,
        severity: int,
        *,
        seed: int,
        constants: str,
        quality: int,
        device: str = "cpu",
    ) -> None:
        self.base, self.labels, self.groups = base, base.labels, base.groups
        self.shape = tuple(base.pixels.shape)
        self.skipped = base.skipped
        self._how = (corruption, severity, seed, constants, quality)
        self._device = device
        self.fingerprint = digest(base.fingerprint)

    def check_material(self) -> None:
        """Raises ``DataError`` where something that the corruption is made with is not installed."""
        if self._how[0] == PHOTOGRAPHIC:
            frost_folder()

    def read(self, indices: np.ndarray) -> tuple[np.ndarray, dict[int, str]]:
        corruption, severity, seed, constants, quality = self._how
        clean = torch.from_numpy(np.ascontiguousarray(self.base.pixels[indices])).to(self._device)
        images = corrupt(clean, corruption, severity, seed=seed, indices=torch.from_numpy(indices), constants=constants)
        if quality:
            images = jpeg_round_trip(images, quality)
        return images.cpu().numpy(), {}


class FileSource:
    """Image files, decoded by Pillow and cut to one size by ``transform``.

    The fingerprint holds the number of files, every name with its label in order (so the classes' order too),
    and the contents of a sample of files.
    """

    skipped = 0

    def __init__(
        self,
        files: Sequence[Path],
        labels: np.ndarray,
        size: int,
        transform: Transform,
        *,
        root: Path,
        groups: np.ndarray | None = None,
        exact_size: int | None = None,
    ) -> None:
        """``exact_size``: refuse files that are not square images of this many pixels."""
        self.files, self.labels, self.groups = files, labels.astype(np.int64), groups
        self.shape = (len(files), size, size, 3)
        self._transform, self._exact = transform, exact_size
        self.portable = type(self) is FileSource and is_own(transform)
        sample = [file.read_bytes() for file in sample_of(files)]
        self.fingerprint = digest(_names(files, root), self.labels, [] if groups is None else groups, *sample)

    def part(self, indices: np.ndarray) -> FilePart:
        """The files at int64 ``indices`` [n]; any process can read them if the source is ``portable``."""
        files = [self.files[int(index)] for index in indices]
        return FilePart(files=files, shape=self.shape[1:], transform=self._transform, exact=self._exact)

    def read(self, indices: np.ndarray) -> tuple[np.ndarray, dict[int, str]]:
        return self.part(indices).read()


class EncodedSource:
    """Images as encoded bytes (a Parquet column), square of ``size`` pixels."""

    skipped = 0

    def __init__(self, name: str, encoded: Sequence[bytes], labels: np.ndarray, size: int) -> None:
        self.name, self.encoded, self.labels, self.groups = name, encoded, labels.astype(np.int64), None
        self.shape = (len(encoded), size, size, 3)
        self.fingerprint = digest(self.labels, *encoded)

    def read(self, indices: np.ndarray) -> tuple[np.ndarray, dict[int, str]]:
        images = np.zeros((len(indices), *self.shape[1:]), dtype=np.uint8)
        bad: dict[int, str] = {}
        for position, index in enumerate(indices):
            try:
                with Image.open(io.BytesIO(self.encoded[int(index)])) as opened:
                    image = np.asarray(opened.convert("RGB"))
                if image.shape != self.shape[1:]:
                    raise ValueError(
                        f"expected {self.shape[1]}x{self.shape[2]} pixels, found {image.shape[1]}x{image.shape[0]}"
                    )
                images[position] = image
            except (OSError, SyntaxError, ValueError) as error:
                bad[position] = f"{self.name}, row {index} ({error})"
        return images, bad


def _names(files: Sequence[Path], root: Path) -> list[str]:
    """Paths from ``root``, with slashes: ``relative_to``, but at 50,000 files in a tenth of its time."""
    start = f"{root.as_posix()}/"
    texts = ((file, file.as_posix()) for file in files)
    return [text[len(start) :] if text.startswith(start) else file.relative_to(root).as_posix() for file, text in texts]


def sample_of(files: Sequence[Path]) -> list[Path]:
    """Up to 16 of ``files``, evenly spaced."""
    chosen = np.unique(np.linspace(0, len(files) - 1, _SAMPLED_FILES).round().astype(int)) if files else []
    return [files[i] for i in chosen]
