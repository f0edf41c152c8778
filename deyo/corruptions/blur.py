"""Blurs: defocus, glass, motion, zoom, Gaussian. All take uint8 [N, H, W, 3] and return the same."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

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
    size = images.shape[1]
    soft = filters.to_uint8(filters.gaussian_blur(filters.planes(images), sigma))
    offsets = [draws.integers(turn, -reach, reach, 2, size, size) for turn in range(rounds)]
    taken = neighbours_taken(size, reach, offsets).unsqueeze(1)
    flat = soft.flatten(2)
    moved = flat.gather(2, taken.expand_as(flat)).view_as(soft)
    return filters.images(filters.to_uint8(filters.gaussian_blur(moved, sigma)))


def neighbours_taken(size: int, reach: int, offsets: list[Tensor]) -> Tensor:
    """Where each pixel's value comes from in the end, int64 [N, H·H].

    ``offsets`` holds dx and dy, int64 [N, 2, H, H], for each round. A round goes from the last row and column to
    the first; pixel (h, w) takes what lies at (h + dy, w + dx) by then. That is sequential, but pixels of one
    step of ``_steps`` do not see each other: stored step after step, each is one gather over the whole batch.
    """
    count, device = len(offsets[0]), offsets[0].device
    order, bounds = _steps(size, reach)
    by_step = torch.from_numpy(order).to(device)
    slot = torch.empty_like(by_step)
    slot[by_step] = torch.arange(size * size, device=device)
    image = torch.arange(count, device=device)
    source = by_step.repeat_interleave(count)
    moving = by_step[: bounds[-1]]
    for offset in offsets:
        partner = moving + (offset[:, 1] * size + offset[:, 0]).flatten(1)[:, moving]
        where = (slot[partner].T * count + image).flatten()
        # NumPy's calls cost less than PyTorch's on arrays this small, and share the tensors' memory.
        values, places = (source.numpy(), where.numpy()) if device.type == "cpu" else (source, where)
        for start, end in zip(bounds * count, bounds[1:] * count):
            values[start:end] = values[places[start:end]]
    return source.view(size * size, count)[slot].T


@lru_cache
def _steps(size: int, reach: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixels int64 [H·H] ordered by step (those that never move last), and the steps' bounds [steps + 1].

    Pixel (h, w) belongs to step (last - h) · (reach + 1) + (last - w): all that it may read or that may read it
    belongs to other steps, in the right order.
    """
    last = size - reach
    h, w = (axis.ravel() for axis in np.mgrid[:size, :size])
    moves = (h > reach) & (h <= last) & (w > reach) & (w <= last)
    step = (last - h) * (reach + 1) + (last - w)
    counts = np.bincount(step[moves])
    order = np.argsort(np.where(moves, step, len(counts)), kind="stable")
    return order, np.concatenate([[0], np.cumsum(counts[counts > 0])])


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
    target = round(crop * factor)
    if target == crop:
        return planes
    top, trim = (size - crop) // 2, (target - size) // 2
    places = np.arange(trim, trim + size) * ((crop - 1) / (target - 1))
    whole = np.minimum(places.astype(np.int64), crop - 2)
    first = torch.from_numpy(whole + top).to(planes.device)
    share = torch.from_numpy(places - whole).to(planes.device, planes.dtype)
    rows = planes.index_select(-2, first)
    rows = rows + (planes.index_select(-2, first + 1) - rows) * share[:, None]
    columns = rows.index_select(-1, first)
    return columns + (rows.index_select(-1, first + 1) - columns) * share
