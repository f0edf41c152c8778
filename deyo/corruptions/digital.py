"""Digital corruptions: contrast, brightness, saturate, pixelate, JPEG, elastic. uint8 [N, H, W, 3] both ways."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from deyo.corruptions import filters
from deyo.corruptions.draws import Draws
from deyo.corruptions.filters import to_uint8
from deyo.corruptions.jpeg import jpeg_round_trip

_BOX_BITS = 22  # Pillow's fixed point


def contrast(images: Tensor, factor: float, draws: Draws) -> Tensor:
    """Distances from each channel's mean over the image, times ``factor``."""
    sums = images.sum(dim=(1, 2), keepdim=True, dtype=torch.int64)
    means = sums.to(torch.float64) / (images.shape[1] * images.shape[2])
    return to_uint8((images - means) * factor + means)


def brightness(images: Tensor, added: float, draws: Draws) -> Tensor:
    """HSV's value plus ``added``; hue and saturation stay, so the colour is scaled (and black becomes grey)."""
    value = images.amax(dim=-1, keepdim=True).to(torch.float64)
    brighter = (value + 255 * added).clamp(max=255)
    return to_uint8(torch.where(value > 0, images * (brighter / value), brighter))


def saturate(images: Tensor, constants: tuple[float, float], draws: Draws) -> Tensor:
    """HSV's saturation times, then plus, ``constants``; greys have hue 0, so what is added turns them red."""
    factor, added = constants
    value = images.amax(dim=-1, keepdim=True).to(torch.float64)
    below = value - images
    spread = below.amax(dim=-1, keepdim=True)
    saturation = torch.where(value > 0, spread / value.clamp(min=1), 0.0)
    wanted = (saturation * factor + added).clamp(0, 1)
    red = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64, device=images.device)
    direction = torch.where(spread > 0, below / spread.clamp(min=1), red)
    return to_uint8(value - value * wanted * direction)


def jpeg_compression(images: Tensor, quality: int, draws: Draws) -> Tensor:
    """Through JPEG of ``quality``."""
    return jpeg_round_trip(images, quality)


def pixelate(images: Tensor, factor: float, draws: Draws) -> Tensor:
    """Shrunk to ``factor`` of the side and enlarged again, both by Pillow's box filter, to the bit."""
    size = images.shape[1]
    small = int(size * factor)
    planes = filters.planes(images)
    return filters.images(_box_resize(_box_resize(planes, small), size))


def _box_resize(planes: Tensor, size: int) -> Tensor:
    """uint8 [N, C, H, H] -> [N, C, size, size]: columns first, rounded to levels, then rows."""
    starts, weights = _box_weights(planes.shape[-1], size)
    for axis in (-1, -2):
        total = 1 << (_BOX_BITS - 1)
        for k in range(weights.shape[1]):
            taps = torch.from_numpy(np.minimum(starts + k, planes.shape[axis] - 1)).to(planes.device)
            weight = torch.from_numpy(weights[:, k]).to(planes.device)
            part = planes.index_select(planes.dim() + axis, taps).to(torch.int32)
            total = total + part * (weight if axis == -1 else weight[:, None])
        planes = (total >> _BOX_BITS).clamp(0, 255).to(torch.uint8)
    return planes


@lru_cache
def _box_weights(source: int, target: int) -> tuple[np.ndarray, np.ndarray]:
    """First source pixel int64 [target] and weights · 2^22 int32 [target, taps] of each target pixel."""
    scale = source / target
    reach = 0.5 * max(scale, 1.0)
    centres = (np.arange(target) + 0.5) * scale
    starts = np.maximum((centres - reach + 0.5).astype(np.int64), 0)
    ends = np.minimum((centres + reach + 0.5).astype(np.int64), source)
    taps = int((ends - starts).max())
    positions = starts[:, None] + np.arange(taps)
    distances = (positions - centres[:, None] + 0.5) / max(scale, 1.0)
    inside = (positions < ends[:, None]) & (distances > -0.5) & (distances <= 0.5)
    weights = inside / inside.sum(axis=1, keepdims=True)
    return starts, (weights * 2**_BOX_BITS + 0.5).astype(np.int32)
