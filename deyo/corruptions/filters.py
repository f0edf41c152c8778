"""Linear filters on uint8 planes, in whole numbers, so that results hang neither on batch nor on device."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

WEIGHT_BITS = 22  # 255 · 2^22 < 2^31: sums of products fit int32
_SLACK = 2.0**-10


def to_uint8(values: Tensor) -> Tensor:
    """Grey levels [0, 255] cut to uint8 as the published generator does (truncation).

    A thousandth of a level is added first: whole levels then stay, whatever the rounding of the arithmetic.
    """
    return (values + _SLACK).clamp_(0, 255).to(torch.uint8)


def planes(images: Tensor) -> Tensor:
    """uint8 [N, H, W, 3] -> contiguous [N, 3, H, W]."""
    return images.permute(0, 3, 1, 2).contiguous()


def images(planes: Tensor) -> Tensor:
    """[N, 3, H, W] -> contiguous [N, H, W, 3]."""
    return planes.permute(0, 2, 3, 1).contiguous()


@lru_cache
def disk_kernel(radius: float, alias_blur: float) -> np.ndarray:
    """A disk of ``radius`` pixels, softened by a Gaussian: float64 [K, K] (defocus blur).

    The softening filter is 3x3 up to radius 8 and 5x5 above, its border mirrored without the edge, as OpenCV's:
    where the disk touches the border (radius 8 and 10) the sum comes out up to 1 % above 1, as published.
    """
    reach, taps = (8, 3) if radius <= 8 else (int(radius), 5)
    offsets = np.arange(-reach, reach + 1)
    disk = (offsets[:, None] ** 2 + offsets[None, :] ** 2 <= radius**2).astype(np.float64)
    disk /= disk.sum()
    half = taps // 2
    weights = np.exp(-(np.arange(-half, half + 1) ** 2) / (2 * alias_blur**2))
    weights /= weights.sum()
    for axis in (0, 1):
        padded = np.pad(disk, [(half, half) if a == axis else (0, 0) for a in (0, 1)], mode="reflect")
        shifted = [np.take(padded, np.arange(k, k + len(offsets)), axis=axis) for k in range(taps)]
        disk = sum(w * s for w, s in zip(weights, shifted))
    used = np.flatnonzero(disk.sum(axis=0) > 1e-9)
    return disk[used[0] : used[-1] + 1, used[0] : used[-1] + 1]


def gaussian_weights(sigma: float, truncate: float) -> np.ndarray:
    """Gaussian taps, float64 [2r + 1], sum 1, r = ⌊truncate · sigma + ½⌋ (SciPy's)."""
    radius = int(truncate * sigma + 0.5)
    if radius == 0:
        return np.ones(1)
    weights = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    return weights / weights.sum()


def correlate(planes: Tensor, kernel: np.ndarray) -> Tensor:
    """uint8 planes [..., H, W] filtered by a kernel symmetric both ways; returns int32 levels · 2^22.

    The border is mirrored without the edge pixel (OpenCV's default), several times over if the kernel is wider
    than the image. Rows and columns at equal distance are added first, halving the work twice.
    """
    half = kernel.shape[0] // 2
    padded = mirror(planes, half).to(torch.int32)
    weights = whole_weights(kernel, kernel.size // 2)
    height, width = planes.shape[-2:]
    total = torch.zeros(planes.shape, dtype=torch.int32, device=planes.device)
    for dy in range(half + 1):
        rows = padded[..., half - dy : half - dy + height, :]
        if dy:
            rows = rows + padded[..., half + dy : half + dy + height, :]
        for dx in range(half + 1):
            weight = int(weights[half + dy, half + dx])
            if weight:
                total.add_(rows[..., half - dx : half - dx + width], alpha=weight)
                if dx:
                    total.add_(rows[..., half + dx : half + dx + width], alpha=weight)
    return total


def mirror(planes: Tensor, margin: int) -> Tensor:
    """Pad the last two axes by ``margin``, mirrored without the edge pixel, over and over if need be."""
    for axis in (-2, -1):
        size = planes.shape[axis]
        steps = torch.arange(-margin, size + margin, device=planes.device)
        period = max(2 * (size - 1), 1)
        steps = steps.remainder(period)
        planes = planes.index_select(planes.dim() + axis, torch.where(steps < size, steps, period - steps))
    return planes


def repeat_edges(planes: Tensor, margin: int, axis: int) -> Tensor:
    """Pad one axis (-1 or -2) by ``margin``, repeating the border."""
    size = planes.shape[axis]
    places = torch.arange(-margin, size + margin, device=planes.device).clamp(0, size - 1)
    return planes.index_select(planes.dim() + axis, places)


def gaussian_blur(planes: Tensor, sigma: float) -> Tensor:
    """Levels [..., H, W] (uint8, or any float64) blurred as scikit-image does: float64.

    Truncated at 4 sigma, borders repeated. Weights are whole multiples of 2^-20, so that sums of levels are exact.
    """
    weights = np.round(gaussian_weights(sigma, 4.0) * 2**20)
    half = len(weights) // 2
    weights[half] += 2**20 - weights.sum()
    result = planes.to(torch.float64)
    for axis in (-2, -1):
        size = result.shape[axis]
        padded = repeat_edges(result, half, axis)
        result = padded.narrow(axis, half, size) * weights[half]
        for k in range(1, half + 1):
            pair = padded.narrow(axis, half - k, size) + padded.narrow(axis, half + k, size)
            result.add_(pair, alpha=float(weights[half + k]))
    return result * 2.0**-40


def motion_weights(radius: float, sigma: float) -> np.ndarray:
    """Weights of ImageMagick's motion blur: one side of a Gaussian, float64 [2 · ceil(radius) + 1], sum 1."""
    weights = np.exp(-(np.arange(2 * math.ceil(radius) + 1) ** 2) / (2 * sigma**2))
    return weights / weights.sum()


def whole_weights(weights: np.ndarray, centre: int) -> np.ndarray:
    """``weights`` as whole multiples of 2^-22, int64; the one at flat index ``centre`` keeps the sum."""
    whole = np.round(weights * 2**WEIGHT_BITS).astype(np.int64)
    whole.flat[centre] += round(float(weights.sum()) * 2**WEIGHT_BITS) - whole.sum()
    return whole
