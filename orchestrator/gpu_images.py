"""Image sets that stay on a worker's GPU between tasks, within a part of its memory."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from deyo.arriving import Arriving
from deyo.types import ImageSet

ARRIVING_BYTES = 2**27
"""Image sets from this size on are copied to the GPU while runs already go."""

_NOWHERE = np.empty((0, 0, 0, 3), dtype=np.uint8)


@dataclass
class GpuImages:
    """The least recently used image sets of up to ``budget`` bytes (uint8 pixels) on ``device``.

    Sets that streams still read take memory whether they are kept here or not: they count until nobody holds them. A
    set for which there is no room is handed out where it is, on the host: the same to all who read it at a time.
    """

    device: torch.device
    budget: float
    _kept: OrderedDict[Hashable, ImageSet] = field(default_factory=OrderedDict)
    _there: list[tuple[weakref.ref[Any], int]] = field(default_factory=list)
    _elsewhere: weakref.WeakValueDictionary[Hashable, ImageSet] = field(default_factory=weakref.WeakValueDictionary)

    @property
    def used(self) -> int:
        """Bytes of all sets that are there or on their way."""
        self._there = [(held, size) for held, size in self._there if held() is not None]
        return sum(size for _, size in self._there)

    def get(self, key: Hashable, make: Callable[[], ImageSet]) -> ImageSet:
        """The set of ``key``; ``make`` gives it on the host if it is not kept."""
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        if (read := self._elsewhere.get(key)) is not None:
            return read
        images = self._placed(make())
        (self._kept if _on_device(images) else self._elsewhere)[key] = images
        return images

    def clear(self) -> None:
        """Let go of all; what streams still read goes with them."""
        self._kept.clear()

    def _placed(self, images: ImageSet) -> ImageSet:
        """``images`` with its pixels on the device, if there is room."""
        size = int(np.prod(images.pixels.shape))
        if size > self.budget / 2 or not self._make_room(size):
            return images
        try:
            pixels = self._uploaded(images.pixels)
        except torch.OutOfMemoryError:
            return images
        self._there.append((weakref.ref(pixels), size))
        return replace(images, pixels=pixels)

    def _uploaded(self, pixels: Any) -> torch.Tensor | Arriving:
        if np.prod(pixels.shape) >= ARRIVING_BYTES and isinstance(pixels, np.ndarray):
            return Arriving(pixels, self.device)
        there = torch.empty(pixels.shape, dtype=torch.uint8, device=self.device)
        for start in range(0, pixels.shape[0], 1024):
            indices = np.arange(start, min(start + 1024, pixels.shape[0]))
            there[start : start + len(indices)] = torch.from_numpy(np.ascontiguousarray(pixels[indices]))
        return there

    def _make_room(self, size: int) -> bool:
        """Let the oldest sets go that nobody reads until ``size`` bytes are free; whether they are."""
        busy: list[tuple[Hashable, ImageSet]] = []
        while self.used + size > self.budget and self._kept:
            key, images = self._kept.popitem(last=False)
            description, held = replace(images, pixels=_NOWHERE), weakref.ref(images.pixels)
            del images
            if (pixels := held()) is not None:
                busy.append((key, replace(description, pixels=pixels)))
                del pixels
        for key, images in reversed(busy):
            self._kept[key] = images
            self._kept.move_to_end(key, last=False)
        return self.used + size <= self.budget


def _on_device(images: ImageSet) -> bool:
    return isinstance(images.pixels, torch.Tensor | Arriving)
