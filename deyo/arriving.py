"""Images on their way to a GPU: runs start at once on the host's array, and go on with the device's when it is there.

Seven gigabytes (50,000 images of 224×224) take a GPU's memory bus seconds, in which it would wait.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor

CHUNK = 512
"""Images that are copied at a time."""


class Arriving:
    """uint8 pixels [N, H, W, 3]: an array of the host that a thread copies to ``device``.

    Indexing gives rows of the host's array. ``resident`` is the tensor on the device once all of it is there, and
    None before. Raises torch.OutOfMemoryError at once where it does not fit. ``start=False``: call ``copy`` yourself.
    """

    def __init__(self, pixels: np.ndarray, device: torch.device, *, start: bool = True) -> None:
        self.host = pixels
        self.shape = pixels.shape
        self.resident: Tensor | None = None
        self._tensor = torch.empty(pixels.shape, dtype=torch.uint8, device=device)
        if start:
            threading.Thread(target=self.copy, name="images to the GPU", daemon=True).start()

    def __getitem__(self, indices: Any) -> np.ndarray:
        return self.host[indices]

    def copy(self) -> None:
        """Copy everything; ``resident`` is set at the end."""
        if self._tensor.is_cuda:
            with torch.cuda.device(self._tensor.device):
                self._copy_through_pinned_memory()
        else:
            self._tensor.numpy()[:] = self.host
        self.resident = self._tensor

    def _copy_through_pinned_memory(self) -> None:
        stream = torch.cuda.Stream()
        staging = [torch.empty((CHUNK, *self.shape[1:]), dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        free = [torch.cuda.Event(), torch.cuda.Event()]
        for number, start in enumerate(range(0, len(self.host), CHUNK)):
            place, rows = number % 2, self.host[start : start + CHUNK]
            free[place].synchronize()
            np.copyto(staging[place].numpy()[: len(rows)], rows)
            with torch.cuda.stream(stream):
                self._tensor[start : start + len(rows)].copy_(staging[place][: len(rows)], non_blocking=True)
                free[place].record()
        stream.synchronize()
