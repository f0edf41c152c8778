"""Images on their way to a GPU: runs start at once on the host's array, and go on with the device's when it is there.

Seven gigabytes (50,000 images of 224×224) take a GPU's memory bus seconds, in which it would wait.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor

CHUNK = 512
"""Images that are copied at a time."""

_ending = threading.Event()
_uploads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


class Arriving:
    """uint8 pixels [N, H, W, 3]: an array of the host that a thread copies to ``device``.

    Indexing gives rows of the host's array. ``resident`` is the tensor on the device once all of it is there, and
    None before. Raises torch.OutOfMemoryError at once where it does not fit. ``start=False``: call ``copy`` yourself.
    The thread stops, and the device's memory is free again, a moment after nobody holds the object any more.
    """

    def __init__(self, pixels: np.ndarray, device: torch.device, *, start: bool = True) -> None:
        self.host = pixels
        self.shape = pixels.shape
        self.resident: Tensor | None = None
        self._tensor = torch.empty(pixels.shape, dtype=torch.uint8, device=device)
        self._empty: torch.cuda.Event | None = None
        if self._tensor.is_cuda:  # what had this memory before may still be read by kernels on their way
            with torch.cuda.device(self._tensor.device):
                self._empty = torch.cuda.current_stream().record_event()
        if start:
            thread = threading.Thread(target=_upload, args=(weakref.ref(self),), name="images to the GPU", daemon=True)
            _uploads.add(thread)
            thread.start()

    def __getitem__(self, indices: Any) -> np.ndarray:
        return self.host[indices]

    def copy(self) -> None:
        """Copy everything; ``resident`` is set at the end."""
        _upload(weakref.ref(self))


def _upload(arriving: weakref.ref[Arriving]) -> None:
    """Copy the images of ``arriving`` to its device; given up as soon as nobody else holds it."""
    owner = arriving()
    if owner is None:
        return
    host, tensor, empty = owner.host, owner._tensor, owner._empty
    del owner
    if tensor.is_cuda:
        with torch.cuda.device(tensor.device):
            done = _copy_through_pinned_memory(host, tensor, empty, arriving)
    else:
        done = all(_copied(host, tensor, start, arriving) for start in range(0, len(host), CHUNK))
    owner = arriving()
    if done and owner is not None:
        owner.resident = tensor


def _copied(host: np.ndarray, tensor: Tensor, start: int, arriving: weakref.ref[Arriving]) -> bool:
    tensor[start : start + CHUNK] = torch.from_numpy(np.ascontiguousarray(host[start : start + CHUNK]))
    return _wanted(arriving)


def _wanted(arriving: weakref.ref[Arriving]) -> bool:
    return arriving() is not None and not _ending.is_set()


def _copy_through_pinned_memory(
    host: np.ndarray, tensor: Tensor, empty: torch.cuda.Event | None, arriving: weakref.ref[Arriving]
) -> bool:
    """Whether all of ``host`` is in ``tensor`` now. Nothing of it is on its way afterwards."""
    stream = torch.cuda.Stream(priority=-1)  # streams of another priority are never those of a graph's capture
    if empty is not None:
        stream.wait_event(empty)
    staging = [torch.empty((CHUNK, *host.shape[1:]), dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    free = [torch.cuda.Event(), torch.cuda.Event()]
    try:
        for number, start in enumerate(range(0, len(host), CHUNK)):
            if not _wanted(arriving):
                return False
            place, rows = number % 2, host[start : start + CHUNK]
            free[place].synchronize()
            np.copyto(staging[place].numpy()[: len(rows)], rows)
            with torch.cuda.stream(stream):
                tensor[start : start + len(rows)].copy_(staging[place][: len(rows)], non_blocking=True)
                free[place].record()
        return True
    finally:
        stream.synchronize()


@atexit.register
def _end_uploads() -> None:
    """A thread inside CUDA while the interpreter goes would abort the process."""
    _ending.set()
    for thread in list(_uploads):
        thread.join(timeout=10)
