"""Image files to pixels, with Pillow and without PyTorch: what a process that decodes has to load.

A ``FilePart`` can be pickled, and be read in this process or in a child (``deyo.decode_child``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from deyo.benchmarks.transforms import Transform


@dataclass(frozen=True, kw_only=True)
class FilePart:
    """Some image files, each to be cut to ``shape`` (H, W, 3) by ``transform``.

    ``exact``: refuse files that are not square images of this many pixels.
    """

    files: Sequence[Path]
    shape: tuple[int, int, int]
    transform: Transform
    exact: int | None = None

    def read(self) -> tuple[np.ndarray, dict[int, str]]:
        """uint8 [n, H, W, 3] and {position in ``files``: why it cannot be read}."""
        images = np.zeros((len(self.files), *self.shape), dtype=np.uint8)
        bad: dict[int, str] = {}
        for position, file in enumerate(self.files):
            try:
                images[position] = self._decode(file)
            except (OSError, SyntaxError, ValueError) as error:
                bad[position] = f"{file} ({error})"
        return images, bad

    def _decode(self, file: Path) -> np.ndarray:
        with Image.open(file) as opened:
            if self.exact is not None and opened.size != (self.exact, self.exact):
                raise ValueError(f"expected {self.exact}x{self.exact} pixels, found {'x'.join(map(str, opened.size))}")
            return np.asarray(self.transform(opened.convert("RGB")))
