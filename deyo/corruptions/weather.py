"""Weather: snow, frost, fog. All take uint8 [N, H, W, 3] and return the same."""

from __future__ import annotations

import torch
from torch import Tensor

from deyo.corruptions import filters
from deyo.corruptions.blur import clipped_zoom, motion
from deyo.corruptions.draws import Draws
from deyo.corruptions.photographs import frost_photographs


def fog(images: Tensor, constants: tuple[float, float], draws: Draws) -> Tensor:
    """A plasma fractal added, ``constants`` = (strength, decay), and the image's brightness kept."""
    strength, decay = constants
    size = images.shape[1]
    side = 1 << (size - 1).bit_length()
    heights = plasma_fractal(side, decay, draws)[:, :size, :size, None]
    brightest = images.amax(dim=(1, 2, 3), keepdim=True).to(torch.float64) / 255
    fogged = images / 255 + strength * heights
    return filters.to_uint8(fogged * brightest / (brightest + strength) * 255)


def plasma_fractal(side: int, decay: float, draws: Draws) -> Tensor:
    """Heights in [0, 1] by the diamond-square algorithm on a torus: float64 [N, side, side], side = 2^k."""
    heights = torch.zeros(len(draws.keys), side, side, dtype=torch.float64, device=draws.keys.device)
    wibble, step, stream = 100.0, side, 0

    def jittered(sums: Tensor) -> Tensor:
        nonlocal stream
        stream += 1
        jitter = draws.uniform(stream, *sums.shape[1:]) * (2 * wibble) - wibble
        return sums / 4 + wibble * jitter

    while step >= 2:
        half = step // 2
        corners = heights[:, ::step, ::step]
        sums = corners + corners.roll(-1, 1)
        heights[:, half::step, half::step] = jittered(sums + sums.roll(-1, 2))
        centres = heights[:, half::step, half::step]
        corners = heights[:, ::step, ::step]
        above = centres + centres.roll(1, 1) + corners + corners.roll(-1, 2)
        heights[:, ::step, half::step] = jittered(above)
        beside = centres + centres.roll(1, 2) + corners + corners.roll(-1, 1)
        heights[:, half::step, ::step] = jittered(beside)
        step, wibble = half, wibble / decay
    heights -= heights.amin(dim=(1, 2), keepdim=True)
    return heights / heights.amax(dim=(1, 2), keepdim=True)


def snow(images: Tensor, constants: tuple[float, ...], draws: Draws) -> Tensor:
    """Zoomed flakes smeared by wind, twice (turned by 180 degrees), over a whitened image.

    ``constants`` = (mean, deviation, zoom, threshold, blur radius, blur sigma, share of the image kept).
    """
    mean, deviation, zoom, threshold, radius, sigma, kept = constants
    size = images.shape[1]
    flakes = clipped_zoom((draws.normal(0, size, size) * deviation + mean).unsqueeze(1), zoom)
    flakes = torch.where(flakes < threshold, 0.0, flakes)
    layer = (flakes.clamp(0, 1) * 255 + 2.0**-20).to(torch.uint8)
    angles = draws.uniform(1) * 90 - 135
    layer = motion(layer, radius, sigma, angles).to(torch.float32).squeeze(1).unsqueeze(-1)
    levels = images.to(torch.float32)
    gray = levels[..., :1] * 0.299 + levels[..., 1:2] * 0.587 + levels[..., 2:] * 0.114
    whitened = kept * levels + (1 - kept) * torch.maximum(levels, gray * 1.5 + 127.5)
    return filters.to_uint8(whitened + layer + layer.flip(1, 2))


def frost(images: Tensor, constants: tuple[float, float, float], draws: Draws) -> Tensor:
    """A random cut of one of five photographs of frost: ``constants`` = (image's share, frost's share, scale).

    Raises ``DataError`` if the photographs are not installed.
    """
    share, frost_share, scale = constants
    size = images.shape[1]
    photographs = frost_photographs(scale, size)
    chosen = draws.integers(0, 0, len(photographs)).tolist()
    places = draws.uniform(1, 2).tolist()
    layers = []
    for number, (row, column) in zip(chosen, places):
        photograph = photographs[number]
        top, left = int(row * (photograph.shape[0] - size)), int(column * (photograph.shape[1] - size))
        layers.append(photograph[top : top + size, left : left + size])
    layer = torch.stack(layers).to(images.device)
    return filters.to_uint8(share * images.to(torch.float32) + frost_share * layer)
