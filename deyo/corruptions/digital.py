"""Digital corruptions: contrast, brightness, saturate, pixelate, JPEG, elastic. uint8 [N, H, W, 3] both ways."""

from __future__ import annotations

import torch
from torch import Tensor

from deyo.corruptions.draws import Draws
from deyo.corruptions.filters import to_uint8


def contrast(images: Tensor, factor: float, draws: Draws) -> Tensor:
    """Distances from each channel's mean over the image, times ``factor``."""
    sums = images.sum(dim=(1, 2), keepdim=True, dtype=torch.int64)
    means = sums.to(torch.float64) / (images.shape[1] * images.shape[2])
    return to_uint8((images - means) * factor + means)
