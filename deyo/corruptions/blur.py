"""Blurs: defocus, glass, motion, zoom, Gaussian. All take uint8 [N, H, W, 3] and return the same."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from deyo.corruptions import filters
from deyo.corruptions.draws import Draws


def gaussian_blur(images: Tensor, sigma: float, draws: Draws) -> Tensor:
    """A Gaussian of ``sigma`` pixels."""
    return filters.images(filters.to_uint8(filters.gaussian_blur(filters.planes(images), sigma)))


def defocus_blur(images: Tensor, constants: tuple[float, float], draws: Draws) -> Tensor:
    """Correlation with a disk of ``constants`` = (radius, softening)."""
    total = filters.correlate(filters.planes(images), filters.disk_kernel(*constants))
    return filters.images((total >> filters.WEIGHT_BITS).clamp_(max=255).to(torch.uint8))


def glass_blur(images: Tensor, constants: tuple[float, int, int], draws: Draws) -> Tensor:
    """Blur, let pixels take a near neighbour's value over and over, blur again.

    ``constants`` = (sigma, reach, rounds). The published loop means to swap pixels, but its swap works on views,
    so that the pixel takes its neighbour's value and the neighbour stays; this is what made ImageNet-C.
    """
    sigma, reach, rounds = constants
    soft = filters.to_uint8(filters.gaussian_blur(filters.planes(images), sigma))
    count, size = images.shape[0], images.shape[1]
    source = torch.arange(size * size, device=images.device).repeat(count, 1)
    for turn in range(rounds):
        _take_from_neighbours(source, size, reach, draws.integers(turn, -reach, reach, 2, size, size))
    flat = soft.flatten(2)
    moved = flat.gather(2, source.unsqueeze(1).expand_as(flat)).view_as(soft)
    return filters.images(filters.to_uint8(filters.gaussian_blur(moved, sigma)))


def _take_from_neighbours(source: Tensor, size: int, reach: int, offsets: Tensor) -> None:
    """One pass from the last row and column to the first: pixel (h, w) takes what lies at (h + dy, w + dx) now.

    ``source`` int64 [N, H·W] is changed in place; ``offsets`` int64 [N, 2, H, W] holds dx and dy. The pass is
    sequential, but pixels on one anti-diagonal of slope ``reach`` + 1 do not see each other and are done at once.
    """
    slope = reach + 1
    last = size - reach
    rows = torch.arange(last, reach, -1, device=source.device)
    partner = (offsets[:, 1] * size + offsets[:, 0]).flatten(1)
    steps = (len(rows) - 1) * slope + len(rows)
    order = torch.arange(len(rows), device=source.device)
    for step in range(steps):
        first = max(0, -(-(step - len(rows) + 1) // slope))
        final = min(len(rows) - 1, step // slope)
        k = order[first : final + 1]
        here = rows[k] * size + (last - (step - slope * k))
        source[:, here] = source.gather(1, partner[:, here] + here)


def motion_blur(images: Tensor, constants: tuple[float, float], draws: Draws) -> Tensor:
    """ImageMagick's motion blur with ``constants`` = (radius, sigma), angle uniform in ±45 degrees."""
    angles = draws.uniform(0) * 90 - 45
    return filters.images(motion(filters.planes(images), *constants, angles))


def motion(planes: Tensor, radius: float, sigma: float, angles: Tensor) -> Tensor:
    """uint8 planes [N, C, H, W] smeared one way along ``angles`` [N] (degrees); borders repeated, rounded."""
    weights = filters.motion_weights(radius, sigma)
    height, width = planes.shape[-2:]
    radians = torch.deg2rad(angles)
    step_x, step_y = torch.cos(radians), torch.sin(radians)
    columns = torch.arange(width, device=planes.device)
    rows = torch.arange(height, device=planes.device)
    flat = planes.flatten(2)
    total = torch.zeros(planes.shape, dtype=torch.int32, device=planes.device)
    for k, weight in enumerate(filters.whole_weights(weights, 0)):
        dx = torch.ceil(k * step_x - 0.5).to(torch.int64)
        dy = torch.ceil(k * step_y - 0.5).to(torch.int64)
        x = (columns + dx[:, None]).clamp(0, width - 1)
        y = (rows + dy[:, None]).clamp(0, height - 1)
        where = (y[:, :, None] * width + x[:, None, :]).flatten(1).unsqueeze(1).expand_as(flat)
        total.add_(flat.gather(2, where).view_as(planes), alpha=int(weight))
    return ((total + (1 << (filters.WEIGHT_BITS - 1))) >> filters.WEIGHT_BITS).to(torch.uint8)


def zoom_blur(images: Tensor, factors: tuple[float, ...], draws: Draws) -> Tensor:
    """The mean of the image and its enlargements by ``factors``, each about the centre."""
    planes = filters.planes(images).to(torch.float32)
    total = planes.clone()
    for factor in factors:
        total += clipped_zoom(planes, factor)
    return filters.images(filters.to_uint8(total / (len(factors) + 1)))


def clipped_zoom(planes: Tensor, factor: float) -> Tensor:
    """The centre of [N, C, H, H] enlarged by ``factor`` (linear, corner to corner as SciPy's zoom), cut to H."""
    size = planes.shape[-1]
    crop = math.ceil(size / factor)
    top = (size - crop) // 2
    target = round(crop * factor)
    inner = planes[..., top : top + crop, top : top + crop]
    if target != crop:
        inner = functional.interpolate(inner, size=(target, target), mode="bilinear", align_corners=True)
    trim = (target - size) // 2
    return inner[..., trim : trim + size, trim : trim + size]
