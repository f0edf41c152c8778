"""Blurs: defocus, glass, motion, zoom, Gaussian. All take uint8 [N, H, W, 3] and return the same."""

from __future__ import annotations

import torch
from torch import Tensor

from deyo.corruptions import filters
from deyo.corruptions.draws import Draws


def defocus_blur(images: Tensor, constants: tuple[float, float], draws: Draws) -> Tensor:
    """Correlation with a disk of ``constants`` = (radius, softening)."""
    total = filters.correlate(filters.planes(images), filters.disk_kernel(*constants))
    return filters.images((total >> filters.WEIGHT_BITS).to(torch.uint8))
