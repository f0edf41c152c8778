"""Object-destructive transforms of DeYO (paper, Sec. 3.1 and Fig. 3; methods.md §2.1).

They act on normalised images and take their random indices as an argument; ``draw`` makes those indices from
seeds and a step count. Nothing here has state or touches a global generator.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from deyo.random import permutations

TRANSFORMS = ("patch", "pixel", "occlusion")


def draw(kind: str, seeds: Tensor, step: Tensor | int, *, batch: int, size: int, patches: int) -> Tensor | None:
    """Random indices for one step of R runs.

    seeds: int64 [R]; size: image side in pixels; patches: P of the P×P grid. Returns int64 [R, batch, P²] tile
    orders (independent for each image) for "patch", [R, 1, size²] pixel orders (one for the batch, as the
    authors' code has it) for "pixel", None for "occlusion".
    """
    if kind == "patch":
        images = torch.arange(batch, device=seeds.device)
        return permutations(seeds.unsqueeze(1), step, images, length=patches * patches)
    if kind == "pixel":
        return permutations(seeds.unsqueeze(1), step, length=size * size)
    return None


def by_rank(indices: Tensor, selected: Tensor) -> Tensor:
    """Give row k of indices [R, B or 1, L] to the k-th selected sample of each run: -> [R, B, L].

    selected: bool [R, B]. This is the order in which the authors' code, which transforms the selected subset
    only, uses its permutations; rows of unselected samples are arbitrary.
    """
    if indices.shape[1] == 1:
        return indices.expand(-1, selected.shape[1], -1)
    rank = (selected.long().cumsum(1) - 1).clamp(min=0)
    return indices.gather(1, rank.unsqueeze(-1).expand(-1, -1, indices.shape[2]))


def destroy(x: Tensor, kind: str, indices: Tensor | None, *, patches: int = 4) -> Tensor:
    """Destroy the objects' shape in x [M, 3, H, W] (square).

    indices: int64 [M, P²] for "patch", [M, H·W] (or [1, H·W]) for "pixel", unused for "occlusion".
    Raises ValueError for another kind.
    """
    if kind == "patch":
        return shuffle_patches(x, indices, patches)
    if kind == "pixel":
        return shuffle_pixels(x, indices)
    if kind == "occlusion":
        return occlude_centre(x)
    raise ValueError(f"transform {kind!r} is none of {TRANSFORMS}")


def shuffle_patches(x: Tensor, order: Tensor, patches: int) -> Tensor:
    """Tile t of the result is tile ``order[:, t]`` of x; tiles in row-major order of a P×P grid.

    Where P does not divide the side, x is resized to ⌊W/P⌋·P (bilinear, no antialias, as torchvision 0.11 did
    for tensors) and back.
    """
    side = x.shape[-1]
    tile = side // patches
    fitted = tile * patches
    if fitted != side:
        x = _resize(x, fitted)
    x = _gather_pixels(x, _pixels_of_tiles(order, patches, tile))
    return _resize(x, side) if fitted != side else x


def shuffle_pixels(x: Tensor, order: Tensor) -> Tensor:
    """Pixel i (row-major) of the result is pixel ``order[:, i]`` of x; channels move together."""
    return _gather_pixels(x, order)


def _pixels_of_tiles(order: Tensor, patches: int, tile: int) -> Tensor:
    """For every pixel of the result the pixel (row-major) of x that it shows: [M, P²] -> int64 [M, (P·tile)²]."""
    along = torch.arange(patches * tile, device=order.device)
    block, within = along // tile, along % tile
    source = order[:, block.unsqueeze(1) * patches + block]
    rows = source // patches * tile + within.unsqueeze(1)
    columns = source % patches * tile + within
    return (rows * (patches * tile) + columns).flatten(1)


def _gather_pixels(x: Tensor, pixels: Tensor) -> Tensor:
    """x [M, C, H, W] with pixel ``pixels[:, i]`` at place i; the memory format stays."""
    if x.is_contiguous(memory_format=torch.channels_last):
        flat = x.permute(0, 2, 3, 1).flatten(1, 2)
        moved = flat.gather(1, pixels.unsqueeze(-1).expand_as(flat))
        return moved.view(len(x), *x.shape[2:], -1).permute(0, 3, 1, 2)
    flat = x.flatten(2)
    return flat.gather(2, pixels.unsqueeze(1).expand_as(flat)).view(x.shape)


def occlude_centre(x: Tensor) -> Tensor:
    """Fill the centre window, half the side wide, with each channel's mean (112 of 224 px at 56, as published)."""
    side = x.shape[-1]
    start, stop = side // 4, side // 4 + side // 2
    along = torch.arange(side, device=x.device)
    inside = (along >= start) & (along < stop)
    window = inside.unsqueeze(1) & inside.unsqueeze(0)
    return torch.where(window, x.mean((2, 3), keepdim=True), x)


def _resize(x: Tensor, side: int) -> Tensor:
    return F.interpolate(x, size=(side, side), mode="bilinear", align_corners=False, antialias=False)
