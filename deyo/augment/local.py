"""Operations that mix channels or neighbouring pixels: colour, sharpness, cutout; equal to Pillow's."""

from __future__ import annotations

import torch
from torch import Tensor

from deyo.augment.tables import blend, grey

CUTOUT_COLOUR = (125, 123, 114)


def colour(pixels: Tensor, factor: Tensor) -> Tensor:
    """``ImageEnhance.Color``: blend with the grey image; uint8 [M, 3, H, W], factor [M]."""
    return blend(grey(pixels), pixels, factor)


def sharpness(pixels: Tensor, factor: Tensor) -> Tensor:
    """``ImageEnhance.Sharpness``: blend with the smoothed image."""
    return blend(smooth(pixels), pixels, factor)


def smooth(pixels: Tensor) -> Tensor:
    """``ImageFilter.SMOOTH``: 3×3 mean with weight 5 in the centre, rounded; the border stays."""
    wide = pixels.to(torch.int32)
    rows = wide[..., :-2, :] + wide[..., 1:-1, :] + wide[..., 2:, :]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * wide[..., 1:-1, 1:-1]
    result = pixels.clone()
    result[..., 1:-1, 1:-1] = ((2 * total + 13) // 26).to(torch.uint8)
    return result


def cutout(pixels: Tensor, size: Tensor, centre_x: Tensor, centre_y: Tensor) -> Tensor:
    """RandAugment's CutoutAbs: a grey-brown square of about ``size`` pixels around a point; all float64 [M].

    The published code clips the corner, not the size, at the left and upper border, and draws the right and
    lower end inclusive.
    """
    height, width = pixels.shape[-2:]
    inside = _span(centre_y, size, height).unsqueeze(2) & _span(centre_x, size, width).unsqueeze(1)
    colours = torch.tensor(CUTOUT_COLOUR, dtype=torch.uint8, device=pixels.device).view(1, 3, 1, 1)
    return torch.where(inside.unsqueeze(1), colours, pixels)


def _span(centre: Tensor, size: Tensor, length: int) -> Tensor:
    start = (centre - size / 2).clamp(min=0).floor()
    end = (start + size).clamp(max=length).floor()
    index = torch.arange(length, device=centre.device)
    return (index >= start.unsqueeze(1)) & (index <= end.unsqueeze(1))
