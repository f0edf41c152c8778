"""Spatter: drops of water (severities 1 to 3) or mud (4 and 5). uint8 [N, H, W, 3] both ways.

The water's steps are OpenCV's (Canny edges, chamfer distances, histogram equalisation), in whole numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from deyo.corruptions import filters
from deyo.corruptions.draws import Draws

_WATER = (175.0, 238.0, 238.0)
_MUD = (63.0, 42.0, 20.0)
_LOW, _HIGH = 50, 150  # Canny's thresholds
_FARTHEST = 20
_TAN_22 = 13573  # tan(22.5°) · 2^15
_CHAMFER = {(0, 1): 65536, (1, 1): 91750, (1, 2): 143976}  # 1, 1.4, 2.1969 in 2^-16


def spatter(images: Tensor, constants: tuple[float, ...], draws: Draws) -> Tensor:
    """``constants`` = (mean, deviation, sigma of the liquid, threshold, strength or softness, 0 water or 1 mud)."""
    mean, deviation, sigma, threshold, strength, mud = constants
    size = images.shape[1]
    liquid = filters.gaussian_blur(draws.normal(0, size, size) * deviation + mean, sigma)
    levels = images.to(torch.float64)
    if mud:
        cover = filters.gaussian_blur((liquid > threshold).to(torch.float64), strength)
        cover = torch.where(cover < 0.8, 0.0, cover).unsqueeze(-1)
        return filters.to_uint8(levels * (1 - cover) + cover * _color(_MUD, images))
    drops = torch.where(liquid < threshold, 0.0, liquid * 255 + 2.0**-20).clamp(max=255).to(torch.int32)
    film = (drops * _relief(drops)).to(torch.float64)
    film = film / film.amax(dim=(1, 2), keepdim=True).clamp(min=1) * strength
    return filters.to_uint8(levels + film.unsqueeze(-1) * _color(_WATER, images))


def _color(levels: tuple[float, float, float], like: Tensor) -> Tensor:
    return torch.tensor(levels, dtype=torch.float64, device=like.device)


def _relief(drops: Tensor) -> Tensor:
    """The light on the drops, int32 levels [N, H, W]."""
    distance = _edge_distance(_canny(drops))
    # A mean over 3x3 of multiples of 2^-16, cut to whole levels.
    soft = _correlate(distance, [[1, 1, 1]] * 3) // (9 << 16)
    equal = _equalise(soft)
    lit = _correlate(equal, [[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]).clamp(0, 255)
    return (2 * _correlate(lit, [[1, 1, 1]] * 3) + 9) // 18


def _correlate(values: Tensor, kernel: list[list[int]]) -> Tensor:
    """3x3 correlation of whole numbers [N, H, W], borders mirrored without the edge pixel."""
    padded = filters.mirror(values, 1)
    height, width = values.shape[1:]
    return sum(
        padded[:, dy : dy + height, dx : dx + width] * weight
        for dy, row in enumerate(kernel)
        for dx, weight in enumerate(row)
        if weight
    )


def _around(values: Tensor, dy: int, dx: int, outside: int) -> Tensor:
    """[N, H, W] seen from each pixel's neighbour at (dy, dx)."""
    height, width = values.shape[1:]
    padded = functional.pad(values, (2, 2, 2, 2), value=outside)
    return padded[:, 2 + dy : 2 + dy + height, 2 + dx : 2 + dx + width]


def _canny(levels: Tensor) -> Tensor:
    """Canny's edges of int32 levels [N, H, W] with a 3x3 Sobel filter and |dx| + |dy|: bool [N, H, W]."""
    padded = torch.nn.functional.pad(levels.unsqueeze(1).float(), (1, 1, 1, 1), mode="replicate")[:, 0].to(torch.int32)
    smooth_rows = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
    dx = smooth_rows[:, :, 2:] - smooth_rows[:, :, :-2]
    smooth_columns = padded[:, :, :-2] + 2 * padded[:, :, 1:-1] + padded[:, :, 2:]
    dy = smooth_columns[:, 2:] - smooth_columns[:, :-2]
    strength = dx.abs() + dy.abs()
    x, y = dx.abs().to(torch.int64), dy.abs().to(torch.int64) << 15
    flat, steep = x * _TAN_22, x * _TAN_22 + (x << 16)

    def peak(before: tuple[int, int], after: tuple[int, int], strict: bool) -> Tensor:
        following = _around(strength, *after, 0)
        return (strength > _around(strength, *before, 0)) & (
            (strength > following) if strict else (strength >= following)
        )

    falling = torch.where((dx ^ dy) < 0, peak((-1, 1), (1, -1), True), peak((-1, -1), (1, 1), True))
    upright = torch.where(y > steep, peak((-1, 0), (1, 0), False), falling)
    candidate = torch.where(y < flat, peak((0, -1), (0, 1), False), upright) & (strength > _LOW)
    edges = candidate & (strength > _HIGH)
    while True:
        near = functional.max_pool2d(edges.unsqueeze(1).float(), 3, stride=1, padding=1)[:, 0] > 0
        grown = candidate & near
        if torch.equal(grown, edges):
            return edges
        edges = grown


def _edge_distance(edges: Tensor) -> Tensor:
    """Chamfer distance to the nearest edge, at most 20 pixels, int32 in 2^-16 pixels [N, H, W]."""
    farthest = _FARTHEST << 16
    distance = torch.where(edges, 0, farthest).to(torch.int32)
    offsets = [
        (dy, dx, _CHAMFER[tuple(sorted((abs(dy), abs(dx))))])
        for dy in range(-2, 3)
        for dx in range(-2, 3)
        if tuple(sorted((abs(dy), abs(dx)))) in _CHAMFER
    ]
    for _ in range(_FARTHEST):  # no step is shorter than a pixel
        best = distance
        for dy, dx, length in offsets:
            best = torch.minimum(best, _around(distance, dy, dx, farthest) + length)
        distance = best
    return distance


def _equalise(levels: Tensor) -> Tensor:
    """OpenCV's histogram equalisation of int32 levels [N, H, W]; an image of one level stays."""
    count = levels[0].numel()
    histogram = torch.zeros(len(levels), 256, dtype=torch.int64, device=levels.device)
    histogram.scatter_add_(1, levels.flatten(1).to(torch.int64), torch.ones_like(levels.flatten(1), dtype=torch.int64))
    first = (histogram > 0).to(torch.int32).argmax(dim=1, keepdim=True)
    lowest = histogram.gather(1, first)
    sums = (histogram.cumsum(dim=1) - lowest).clamp(min=0)
    table = torch.round(sums.to(torch.float32) * (255.0 / (count - lowest).clamp(min=1).to(torch.float32))).to(
        torch.int32
    )
    table = torch.where(lowest == count, first.to(torch.int32), table.clamp(0, 255))
    return table.gather(1, levels.flatten(1).to(torch.int64)).view_as(levels)
