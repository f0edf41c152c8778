"""Operations that map each pixel value on its own: 256-entry tables per image (and channel), equal to Pillow's.

A builder returns uint8 tables [M, 1 or 3, 256]; ``apply_table`` looks all pixels up. Blending follows Pillow's
``Image.blend``: float32, truncated.
"""

from __future__ import annotations

import torch
from torch import Tensor


def apply_table(pixels: Tensor, table: Tensor) -> Tensor:
    """pixels uint8 [M, 3, H, W], table uint8 [M, 1 or 3, 256] -> uint8 [M, 3, H, W]."""
    flat = pixels.flatten(2)
    return table.expand(-1, flat.shape[1], -1).gather(2, flat.long()).view(pixels.shape)


def autocontrast_table(pixels: Tensor) -> Tensor:
    """``ImageOps.autocontrast``: each channel stretched to 0..255; a constant channel stays."""
    flat = pixels.flatten(2)
    low, high = (f(dim=2, keepdim=True).to(torch.float64) for f in (flat.amin, flat.amax))
    # A number divided by a tensor is computed as its reciprocal times the number, which rounds differently.
    scale = torch.full_like(low, 255.0) / (high - low).clamp(min=1)
    value = _values(pixels.device, torch.float64)
    stretched = (value * scale + -low * scale).clamp(0, 255).to(torch.uint8)
    return torch.where(high > low, stretched, value.to(torch.uint8))


def equalize_table(pixels: Tensor) -> Tensor:
    """``ImageOps.equalize``: each channel's histogram made flat, in Pillow's integer arithmetic."""
    flat = pixels.flatten(2).long()
    histogram = torch.zeros(*flat.shape[:2], 256, dtype=torch.int64, device=pixels.device)
    histogram.scatter_add_(2, flat, torch.ones_like(flat))
    brightest = histogram.gather(2, flat.amax(dim=2, keepdim=True))
    step = (flat.shape[2] - brightest) // 255
    before = histogram.cumsum(2) - histogram
    divisor = step.clamp(min=1)
    flattened = ((step // 2 + before) // divisor).clamp(max=255).to(torch.uint8)
    return torch.where(step > 0, flattened, _values(pixels.device, torch.uint8))


def invert_table(count: int, device: torch.device) -> Tensor:
    """``ImageOps.invert``."""
    return (255 - _values(device, torch.uint8)).expand(count, 1, 256)


def solarize_table(threshold: Tensor) -> Tensor:
    """``ImageOps.solarize``: values at ``threshold`` [M] or above are inverted."""
    value = _values(threshold.device, torch.int64)
    return torch.where(value < threshold.view(-1, 1, 1), value, 255 - value).to(torch.uint8)


def posterize_table(bits: Tensor) -> Tensor:
    """``ImageOps.posterize``: keep the highest ``bits`` int64 [M] bits of each value."""
    dropped = (8 - bits).view(-1, 1, 1)
    return ((_values(bits.device, torch.int64) >> dropped) << dropped).to(torch.uint8)


def solarize_add_table(addition: Tensor, *, threshold: int = 128) -> Tensor:
    """RandAugment's SolarizeAdd: add ``addition`` [M], clip, then solarize at ``threshold``."""
    value = _values(addition.device, torch.float64) + addition.to(torch.float64).view(-1, 1, 1)
    value = value.clamp(0, 255).to(torch.int64)
    return torch.where(value < threshold, value, 255 - value).to(torch.uint8)


def brightness_table(factor: Tensor) -> Tensor:
    """``ImageEnhance.Brightness``: blend with black; ``factor`` [M], 1 is the image itself."""
    return blend(torch.zeros((), dtype=torch.uint8, device=factor.device), _values(factor.device), factor)


def contrast_table(pixels: Tensor, factor: Tensor) -> Tensor:
    """``ImageEnhance.Contrast``: blend with the mean grey of the image."""
    mean = (grey(pixels).to(torch.float64).mean((2, 3), keepdim=True) + 0.5).to(torch.uint8)
    return blend(mean.view(-1, 1, 1), _values(pixels.device), factor)


def blend(degenerate: Tensor, image: Tensor, factor: Tensor) -> Tensor:
    """``Image.blend(degenerate, image, factor)`` of uint8 tensors; factor [M] along the first axis."""
    start, end = degenerate.to(torch.float32), image.to(torch.float32)
    weight = factor.to(torch.float32).view(-1, *[1] * (max(start.dim(), end.dim()) - 1))
    return (start + weight * (end - start)).clamp(0, 255).to(torch.uint8)


def grey(pixels: Tensor) -> Tensor:
    """``convert("L")``: ITU-R 601 luma in 16-bit fixed point, uint8 [M, 1, H, W]."""
    red, green, blue = pixels.to(torch.int32).unbind(1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16).to(torch.uint8).unsqueeze(1)


def _values(device: torch.device, dtype: torch.dtype = torch.uint8) -> Tensor:
    return torch.arange(256, device=device).to(dtype).view(1, 1, 256)
