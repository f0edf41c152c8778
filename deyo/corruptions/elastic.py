"""Elastic transform: a random affine map, then a smooth random displacement."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from deyo.corruptions import filters
from deyo.corruptions.draws import Draws


def elastic_transform(images: Tensor, constants: tuple[float, float, float], draws: Draws) -> Tensor:
    """``constants`` = (strength, smoothness, affine reach), as fractions of the image's side.

    uint8 [N, H, H, 3] both ways. Borders: mirrored without the edge pixel in the affine map, with it in the
    displacement, as published.
    """
    size = images.shape[1]
    strength, smoothness, reach = (length * size for length in constants)
    rows, columns = torch.meshgrid(*[torch.arange(size, dtype=torch.float64, device=images.device)] * 2, indexing="ij")
    planes = filters.planes(images).to(torch.float32)
    matrices = _inverse_affine(size, (draws.uniform(0, 3, 2) * 2 - 1) * reach)
    grid = torch.stack([columns, rows, torch.ones_like(rows)]).flatten(1)
    x, y = _apply(matrices, grid).view(-1, 2, size, size).unbind(1)
    warped = _sample(planes, y, x, edge=False)
    dy, dx = (_smooth(draws.uniform(stream, size, size) * 2 - 1, smoothness) * strength for stream in (2, 1))
    return filters.images(filters.to_uint8(_sample(warped, rows + dy, columns + dx, edge=True)))


def _inverse_affine(size: int, moves: Tensor) -> Tensor:
    """Maps from target to source [N, 2, 3] of the affine maps that move three points by ``moves`` [N, 3, 2]."""
    centre, side = size // 2, size // 3
    points = torch.tensor(
        [[centre + side, centre + side], [centre + side, centre - side], [centre - side, centre - side]],
        dtype=torch.float64,
    )
    moved = points + moves.cpu()
    ones = torch.ones(len(moved), 3, 1, dtype=torch.float64)
    return torch.linalg.solve(torch.cat([moved, ones], dim=2), points.expand_as(moved)).transpose(1, 2).to(moves.device)


def _apply(matrices: Tensor, grid: Tensor) -> Tensor:
    """[N, 2, 3] times [3, P], term by term, so that rounding does not hang on the batch."""
    return sum(matrices[:, :, k, None] * grid[k] for k in range(3))


def _smooth(field: Tensor, sigma: float) -> Tensor:
    """[N, H, H] blurred by a Gaussian of ``sigma`` truncated at 3 sigma, borders mirrored with the edge pixel.

    Rounded to 2^-40, so that the order in which a matrix product adds cannot be seen.
    """
    weights = torch.from_numpy(_smoothing_matrix(field.shape[-1], sigma)).to(field.device)
    return torch.round(weights @ field @ weights.T * 2.0**40) * 2.0**-40


@lru_cache
def _smoothing_matrix(size: int, sigma: float) -> np.ndarray:
    """float64 [size, size]: what each pixel takes from each."""
    taps = filters.gaussian_weights(sigma, 3.0) if sigma > 0 else np.ones(1)
    radius = len(taps) // 2
    positions = np.arange(size)[:, None] + np.arange(-radius, radius + 1)
    folded = positions % (2 * size)
    folded = np.where(folded < size, folded, 2 * size - 1 - folded)
    matrix = np.zeros((size, size))
    np.add.at(matrix, (np.arange(size)[:, None], folded), np.broadcast_to(taps, folded.shape))
    return matrix


def _sample(planes: Tensor, y: Tensor, x: Tensor, *, edge: bool) -> Tensor:
    """Bilinear values of [N, C, H, H] at ``y``, ``x`` [N, H, H]; mirrored outside, with the edge pixel or not."""
    size = planes.shape[-1]
    top, left = y.floor(), x.floor()
    down, right = (y - top).to(torch.float32).unsqueeze(1), (x - left).to(torch.float32).unsqueeze(1)
    rows = [_fold(top.to(torch.int64) + k, size, edge) for k in (0, 1)]
    columns = [_fold(left.to(torch.int64) + k, size, edge) for k in (0, 1)]
    flat = planes.flatten(2)

    def at(row: Tensor, column: Tensor) -> Tensor:
        where = (row * size + column).flatten(1).unsqueeze(1)
        return flat.gather(2, where.expand(-1, flat.shape[1], -1)).view_as(planes)

    upper = at(rows[0], columns[0]) * (1 - right) + at(rows[0], columns[1]) * right
    lower = at(rows[1], columns[0]) * (1 - right) + at(rows[1], columns[1]) * right
    return upper * (1 - down) + lower * down


def _fold(positions: Tensor, size: int, edge: bool) -> Tensor:
    """Mirror whole positions into [0, size)."""
    period = 2 * size if edge else 2 * (size - 1)
    folded = positions.remainder(period)
    return torch.where(folded < size, folded, period - (1 if edge else 0) - folded)
