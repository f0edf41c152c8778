"""Geometric operations on uint8 images, equal to Pillow's bit by bit, with parameters per image, batched.

Pillow computes affine transforms with bilinear filter in double precision and truncates, those with the nearest
filter in 16.16 fixed point, and resizes in two passes of 22-bit fixed point; the same is done here, so that
views equal those that the published augmentations (which are written with Pillow) make.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_RESIZE_BITS = 22


def affine(pixels: Tensor, matrix: Tensor, *, bilinear: bool, fill: Sequence[int]) -> Tensor:
    """``Image.transform(size, AFFINE, matrix)``: pixels uint8 [M, 3, H, W], matrix float64 [M, 6] -> uint8.

    Output pixel (x, y) is read at (a·x + b·y + c, d·x + e·y + f), as Pillow defines it; what lies outside is
    ``fill`` (one value a channel).
    """
    sample = _bilinear if bilinear else _nearest
    values, inside = sample(pixels, matrix.to(device=pixels.device, dtype=torch.float64))
    background = torch.tensor(fill, dtype=torch.uint8, device=pixels.device).view(1, -1, 1)
    return torch.where(inside.unsqueeze(1), values, background).view(pixels.shape)


def rotation(degrees: Tensor, height: int, width: int) -> Tensor:
    """Matrices [M, 6] of ``Image.rotate(degrees)`` (anticlockwise, about the centre)."""
    angle = -(degrees.to(torch.float64) % 360.0) * (math.pi / 180.0)
    # Pillow rounds the coefficients to 15 decimals.
    cos, sin = (f(angle).mul(1e15).round().div(1e15) for f in (torch.cos, torch.sin))
    x, y = width / 2.0, height / 2.0
    return torch.stack((cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y), dim=-1)


def shear(amount: Tensor, *, along_x: bool) -> Tensor:
    """Matrices [M, 6] that read x + amount·y (or y + amount·x)."""
    matrix = _identity(amount)
    matrix[..., 1 if along_x else 3] = amount
    return matrix


def translation(offset: Tensor, *, along_x: bool) -> Tensor:
    """Matrices [M, 6] that read ``offset`` pixels further right (or down)."""
    matrix = _identity(offset)
    matrix[..., 2 if along_x else 5] = offset
    return matrix


def flip_some(pixels: Tensor, chosen: Tensor) -> Tensor:
    """Mirror left to right the images of bool [M]."""
    return torch.where(chosen.to(pixels.device).view(-1, 1, 1, 1), pixels.flip(-1), pixels)


def padded_crop(pixels: Tensor, top: Tensor, left: Tensor) -> Tensor:
    """Shift each image by int64 offsets [M]: row ``top`` and column ``left`` come first; outside is 0.

    The crop of ``RandomCrop(side, padding=p)``, with offsets counted from the unpadded image (−p..p).
    """
    height, width = pixels.shape[-2:]
    device = pixels.device
    rows = torch.arange(height, device=device) + top.to(device).unsqueeze(1)
    columns = torch.arange(width, device=device) + left.to(device).unsqueeze(1)
    inside = _within(rows, height).unsqueeze(2) & _within(columns, width).unsqueeze(1)
    index = rows.clamp(0, height - 1).unsqueeze(2) * width + columns.clamp(0, width - 1).unsqueeze(1)
    return torch.where(inside.unsqueeze(1), _gather(pixels, index.flatten(1)).view(pixels.shape), 0)


def resized_crop(pixels: Tensor, box: Tensor) -> Tensor:
    """Crop each image to its box and resize it to full size: int64 box [M, 4] = top, left, height, width.

    Equals Pillow's crop and bilinear resize. Boxes lie inside the image, so that images only grow.
    """
    top, left, height, width = box.to(pixels.device).unbind(1)
    wide = _stretch(pixels, left, width)
    return _stretch(wide.transpose(2, 3), top, height).transpose(2, 3).contiguous()


def _stretch(pixels: Tensor, start: Tensor, length: Tensor) -> Tensor:
    """Resize columns start..start+length of [M, 3, H, W] to all W columns, as Pillow's horizontal pass does."""
    width = pixels.shape[-1]
    out = torch.arange(width, dtype=torch.float64, device=pixels.device) + 0.5
    centre = out * (length.to(torch.float64) / width).unsqueeze(1) - 0.5
    first = centre.floor()
    share = ((centre - first) * 2.0**_RESIZE_BITS + 0.5).to(torch.int32).view(-1, 1, 1, width)
    last = (length - 1).unsqueeze(1)
    taps = (first.long().clamp(min=0).minimum(last), (first.long() + 1).clamp(min=0).minimum(last))
    near, far = (
        pixels.gather(3, (tap + start.unsqueeze(1)).view(-1, 1, 1, width).expand(pixels.shape)).to(torch.int32)
        for tap in taps
    )
    half = 1 << (_RESIZE_BITS - 1)
    total = near * ((1 << _RESIZE_BITS) - share) + far * share + half
    return (total >> _RESIZE_BITS).to(torch.uint8)


def _bilinear(pixels: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    height, width = pixels.shape[-2:]
    x, y = _positions(matrix, height, width)
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    x, y = x - 0.5, y - 0.5
    left, top = x.floor(), y.floor()
    x_share, y_share = (x - left).unsqueeze(1), (y - top).unsqueeze(1)
    left, top = left.long(), top.long()

    def row(y_index: Tensor) -> Tensor:
        base = y_index.clamp(0, height - 1) * width
        near = _gather(pixels, base + left.clamp(0, width - 1)).to(torch.float64)
        far = _gather(pixels, base + (left + 1).clamp(0, width - 1)).to(torch.float64)
        return near + (far - near) * x_share

    upper, lower = row(top), row(top + 1)
    return (upper + (lower - upper) * y_share).to(torch.uint8), inside


def _nearest(pixels: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    height, width = pixels.shape[-2:]
    centred = matrix.clone()
    centred[:, 2] += (matrix[:, 0] + matrix[:, 1]) * 0.5
    centred[:, 5] += (matrix[:, 3] + matrix[:, 4]) * 0.5
    fixed = (centred * 65536.0 + 0.5).floor().long()
    a, b, c, d, e, f = (v.view(-1, 1, 1) for v in fixed.unbind(1))
    rows = torch.arange(height, device=pixels.device).view(1, -1, 1)
    columns = torch.arange(width, device=pixels.device).view(1, 1, -1)
    x = ((a * columns + b * rows + c) >> 16).flatten(1)
    y = ((d * columns + e * rows + f) >> 16).flatten(1)
    inside = _within(x, width) & _within(y, height)
    return _gather(pixels, y.clamp(0, height - 1) * width + x.clamp(0, width - 1)), inside


def _positions(matrix: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Where every output pixel is read: x, y float64 [M, H·W]."""
    a, b, c, d, e, f = (v.view(-1, 1, 1) for v in matrix.unbind(1))
    options = {"dtype": torch.float64, "device": matrix.device}
    rows = (torch.arange(height, **options) + 0.5).view(1, -1, 1)
    columns = (torch.arange(width, **options) + 0.5).view(1, 1, -1)
    return (a * columns + b * rows + c).flatten(1), (d * columns + e * rows + f).flatten(1)


def _gather(pixels: Tensor, index: Tensor) -> Tensor:
    """pixels [M, 3, H, W] at flat positions [M, L] -> [M, 3, L]."""
    flat = pixels.flatten(2)
    return flat.gather(2, index.unsqueeze(1).expand(-1, flat.shape[1], -1))


def _within(index: Tensor, size: int) -> Tensor:
    return (index >= 0) & (index < size)


def _identity(amount: Tensor) -> Tensor:
    one = torch.tensor([1.0, 0, 0, 0, 1.0, 0], dtype=torch.float64, device=amount.device)
    return one.repeat(*amount.shape, 1)
