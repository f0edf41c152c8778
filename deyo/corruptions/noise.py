"""Noise: Gaussian, shot, impulse, speckle. All take uint8 [N, H, W, 3] and return the same."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from deyo.corruptions.draws import Draws
from deyo.corruptions.filters import to_uint8


def gaussian_noise(images: Tensor, scale: float, draws: Draws) -> Tensor:
    """x + scale · normal."""
    noise = draws.normal(0, *images.shape[1:])
    return to_uint8(noise.mul_(255 * scale).add_(images))


def speckle_noise(images: Tensor, scale: float, draws: Draws) -> Tensor:
    """x + x · scale · normal."""
    noise = draws.normal(0, *images.shape[1:])
    return to_uint8(noise.mul_(scale).add_(1).mul_(images))


def impulse_noise(images: Tensor, amount: float, draws: Draws) -> Tensor:
    """Each value, channels apart, is lost with probability ``amount``: to 255 or 0, equally often."""
    chance = draws.uniform(0, *images.shape[1:])
    return torch.where(chance < amount, (chance < amount / 2).to(torch.uint8) * 255, images)


def shot_noise(images: Tensor, photons: float, draws: Draws) -> Tensor:
    """Poisson noise with ``photons`` expected at full brightness, by inversion: one uniform number a value."""
    table, width = _poisson_table(photons)
    flat = torch.from_numpy(table).to(images.device)
    levels = images.to(torch.int64)
    where = draws.uniform(0, *images.shape[1:]).mul_(1 - 2.0**-40).add_(levels)
    counts = torch.searchsorted(flat, where, right=True) - levels * width
    return to_uint8(counts.to(torch.float64) * (255 / photons))


@lru_cache
def _poisson_table(photons: float) -> tuple[np.ndarray, int]:
    """Distribution functions of Poisson(photons · v / 255) for v = 0..255, row v shifted by v, end to end.

    float64 [256 · width], ascending, so that one search finds the count for any level.
    """
    width = int(photons + 12 * np.sqrt(photons) + 20)
    rates = np.arange(256)[:, None] * (photons / 255)
    steps = np.arange(1, width)
    ratios = np.concatenate([np.zeros((256, 1)), np.log(np.maximum(rates, 1e-300)) - np.log(steps)], axis=1)
    masses = np.exp(np.cumsum(ratios, axis=1) - rates)
    sums = np.minimum(np.cumsum(masses, axis=1), 1.0)
    sums[:, -1] = 1.0
    return (sums + np.arange(256)[:, None]).ravel(), width
