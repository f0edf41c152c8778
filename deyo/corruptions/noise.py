"""Noise: Gaussian, shot, impulse, speckle. All take uint8 [N, H, W, 3] and return the same."""

from __future__ import annotations

from torch import Tensor

from deyo.corruptions.draws import Draws
from deyo.corruptions.filters import to_uint8


def gaussian_noise(images: Tensor, scale: float, draws: Draws) -> Tensor:
    """x + scale · normal."""
    noise = draws.normal(0, *images.shape[1:])
    return to_uint8(noise.mul_(255 * scale).add_(images))
