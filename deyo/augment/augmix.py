"""AugMix views as MEMO makes them (Hendrycks et al., 2020; MEMO's code; methods.md §1.5), batched.

One view: a random crop and flip of the image (``base``); three chains of 1 to 3 random operations on it; the
chains mixed with Dirichlet(1, 1, 1) weights, and the mixture with ``base`` by a Beta(1, 1) share:
m·base + (1 − m)·Σ w_k·chain_k.

Strengths at level 1, with u ~ U(0.1, 1) drawn anew for each operation: rotate ±⌊3u⌋° (0, 1 or 2), solarize at
256 − ⌊25.6u⌋ (231 to 254), shear ±0.03u, translate ±⌊W/30·u⌋ px (0 to 7 at 224; 0 at 28, nearly always 0 at
32), posterize always to 4 bits, autocontrast and equalize without strength. Geometric operations are bilinear
and fill with red 128: the published ``fillcolor=128`` means (128, 0, 0) to Pillow.

Sizes: 224 px images take RandomResizedCrop (scale 0.08 to 1, ratio 3/4 to 4/3), as MEMO's ImageNet code does;
images up to 64 px take RandomCrop with padding 2 at 28 px (TTAB's) and W/8 elsewhere (4 at 32: MEMO's CIFAR
code). The published code is hard-wired to 224 or 32 px; here every size in it follows W.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from deyo.augment import geometry, tables
from deyo.augment.apply import Operation, apply_grouped, normalise
from deyo.random import hash64, uniform

OPERATIONS = (
    "autocontrast",
    "equalize",
    "rotate",
    "solarize",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
    "posterize",
)
AUTOCONTRAST, EQUALIZE, ROTATE, SOLARIZE, SHEAR_X, SHEAR_Y, TRANSLATE_X, TRANSLATE_Y, POSTERIZE = range(9)
NOTHING = -1
FILL = (128, 0, 0)
SMALL_SIDE = 64
CHAINS = DEPTH = 3
_VIEWS_AT_ONCE = 256
_CROP_TRIES = 10

# Streams of the counter-based generator: each kind of draw has its own.
_OPERATION, _LEVEL, _SIGN, _LENGTH, _WEIGHT, _SHARE, _FLIP, _TOP, _LEFT, _AREA, _RATIO = range(11)


@dataclass(frozen=True, kw_only=True)
class AugMixDraws:
    """All random choices of V views, on the CPU.

    operation int64 [V, 3, 3]: number in ``OPERATIONS`` of each chain's steps, ``NOTHING`` past its end.
    strength float64 [V, 3, 3]: degrees, threshold, shear, pixels or bits, signed. weights float32 [V, 3] and
    share float32 [V]: the mixing w and m. box int64 [V, 4]: top, left, height, width of the resized crop, or
    None; offset int64 [V, 2]: top, left of the padded crop, or None. flip bool [V].
    """

    operation: Tensor
    strength: Tensor
    weights: Tensor
    share: Tensor
    flip: Tensor
    box: Tensor | None = None
    offset: Tensor | None = None

    def part(self, start: int, stop: int) -> AugMixDraws:
        """The draws of views start..stop."""
        cut = {k: v if v is None else v[start:stop] for k, v in vars(self).items()}
        return AugMixDraws(**cut)


def augmix(
    pixels: Tensor,
    *,
    copies: int,
    keys: Tensor | None = None,
    mean: Sequence[float] | Tensor,
    std: Sequence[float] | Tensor,
    dtype: torch.dtype = torch.float32,
    draws: AugMixDraws | None = None,
) -> Tensor:
    """Normalised AugMix views [copies, M, 3, H, W] in ``dtype`` of pixels uint8 [M, 3, H, W].

    ``keys`` int64 [M] (any device) decides the randomness of each image; or give ``draws`` of copies·M views
    (copy-major). Raises ValueError if neither or both are given, or if the images are not square.
    """
    if (keys is None) == (draws is None):
        raise ValueError("augmix needs either keys or draws")
    if pixels.shape[-1] != pixels.shape[-2]:
        raise ValueError(f"augmix needs square images, got {tuple(pixels.shape[-2:])}")
    draws = draw_augmix(keys, copies=copies, side=pixels.shape[-1]) if draws is None else draws
    source = torch.arange(len(pixels), device=pixels.device).repeat(copies)
    views = torch.empty(len(source), *pixels.shape[1:], dtype=dtype, device=pixels.device)
    for start in range(0, len(source), _VIEWS_AT_ONCE):
        stop = min(start + _VIEWS_AT_ONCE, len(source))
        mixed = _mix(pixels[source[start:stop]], draws.part(start, stop))
        views[start:stop] = normalise(mixed, mean, std, dtype)
    return views.view(copies, *pixels.shape)


def draw_augmix(keys: Tensor, *, copies: int, side: int) -> AugMixDraws:
    """The choices that ``keys`` int64 [M] make for ``copies`` views each of images with ``side`` pixels."""
    view = hash64(keys.cpu().unsqueeze(0), torch.arange(copies).unsqueeze(1)).flatten()
    step = torch.arange(CHAINS * DEPTH).view(CHAINS, DEPTH)
    draw = partial(_uniform, view)
    operation = (draw(_OPERATION, step) * len(OPERATIONS)).long()
    length = (draw(_LENGTH, torch.arange(CHAINS)) * DEPTH).long() + 1
    operation[torch.arange(DEPTH) >= length.unsqueeze(-1)] = NOTHING
    strength = _strength(operation, 0.1 + 0.9 * draw(_LEVEL, step), draw(_SIGN, step) > 0.5, side)
    # A rotation by 0° or a shift by 0 px is the image itself.
    still = (strength == 0) & (operation != AUTOCONTRAST) & (operation != EQUALIZE)
    operation[still] = NOTHING
    exponential = -(1 - draw(_WEIGHT, torch.arange(CHAINS))).log()
    small = side <= SMALL_SIDE
    return AugMixDraws(
        operation=operation,
        strength=strength,
        weights=(exponential / exponential.sum(1, keepdim=True)).to(torch.float32),
        share=draw(_SHARE).to(torch.float32),
        flip=draw(_FLIP) < 0.5,
        box=None if small else _draw_box(view, side),
        offset=_draw_offset(view, side) if small else None,
    )


def chain_operations(strength: Tensor, side: int) -> dict[int, Operation]:
    """The nine operations with strengths float64 [M] (CPU) of the images that they will be given."""

    def table(build: Callable[[Tensor], Tensor], *, of_pixels: bool) -> Operation:
        def run(images: Tensor, rows: Tensor) -> Tensor:
            argument = images if of_pixels else _on(strength[rows], images).long()
            return tables.apply_table(images, build(argument))

        return run

    def moved(build: Callable[[Tensor], Tensor]) -> Operation:
        def run(images: Tensor, rows: Tensor) -> Tensor:
            matrix = build(strength[rows])
            return geometry.affine(images, _on(matrix, images), bilinear=True, fill=FILL)

        return run

    return {
        AUTOCONTRAST: table(tables.autocontrast_table, of_pixels=True),
        EQUALIZE: table(tables.equalize_table, of_pixels=True),
        SOLARIZE: table(tables.solarize_table, of_pixels=False),
        POSTERIZE: table(tables.posterize_table, of_pixels=False),
        ROTATE: moved(lambda degrees: geometry.rotation(degrees, side, side)),
        SHEAR_X: moved(partial(geometry.shear, along_x=True)),
        SHEAR_Y: moved(partial(geometry.shear, along_x=False)),
        TRANSLATE_X: moved(partial(geometry.translation, along_x=True)),
        TRANSLATE_Y: moved(partial(geometry.translation, along_x=False)),
    }


def _mix(images: Tensor, draws: AugMixDraws) -> Tensor:
    """Views float32 [V, 3, H, W] in pixel values of images uint8 [V, 3, H, W]."""
    base = _crop(images, draws)
    chains = base.unsqueeze(1).repeat(1, CHAINS, 1, 1, 1).flatten(0, 1)
    for step in range(DEPTH):
        choice = draws.operation[:, :, step].flatten()
        operations = chain_operations(draws.strength[:, :, step].flatten(), images.shape[-1])
        apply_grouped(chains, choice, operations)
    share = _on(draws.share, images).view(-1, 1, 1, 1)
    # One chain after the other: three float images at once would triple the memory.
    weights = (1 - share).view(-1, 1) * _on(draws.weights, images)
    mixed = share * base
    for k, chain in enumerate(chains.view(-1, CHAINS, *base.shape[1:]).unbind(1)):
        mixed += weights[:, k].view(-1, 1, 1, 1) * chain
    return mixed


def _crop(images: Tensor, draws: AugMixDraws) -> Tensor:
    if draws.box is not None:
        images = geometry.resized_crop(images, _on(draws.box, images))
    if draws.offset is not None:
        images = geometry.padded_crop(images, *_on(draws.offset, images).unbind(1))
    return geometry.flip_some(images, draws.flip)


def _strength(operation: Tensor, level: Tensor, negative: Tensor, side: int) -> Tensor:
    """What each operation is applied with, from its level u in [0.1, 1) and sign."""
    sign = torch.where(negative, -1.0, 1.0).to(torch.float64)
    shear, shift = sign * level * 0.3 / 10, sign * (level * (side / 3) / 10).floor()
    by_operation = {
        ROTATE: sign * (level * 30 / 10).floor(),
        SOLARIZE: 256 - (level * 256 / 10).floor(),
        SHEAR_X: shear,
        SHEAR_Y: shear,
        TRANSLATE_X: shift,
        TRANSLATE_Y: shift,
        POSTERIZE: 4 - (level * 4 / 10).floor(),
    }
    strength = torch.zeros_like(level)
    for number, value in by_operation.items():
        strength = torch.where(operation == number, value, strength)
    return strength


def _draw_box(view: Tensor, side: int) -> Tensor:
    """RandomResizedCrop's box: ten tries of area and aspect ratio, the first that fits; else the whole."""
    tries = torch.arange(_CROP_TRIES)
    area = side * side * (0.08 + 0.92 * _uniform(view, _AREA, tries))
    limit = torch.log(torch.tensor(4 / 3, dtype=torch.float64))
    ratio = (limit * (2 * _uniform(view, _RATIO, tries) - 1)).exp()
    width, height = (area * ratio).sqrt().round().long(), (area / ratio).sqrt().round().long()
    fits = (width > 0) & (width <= side) & (height > 0) & (height <= side)
    first = fits.long().argmax(1, keepdim=True)
    chosen = fits.gather(1, first).squeeze(1)
    width, height = (torch.where(chosen, v.gather(1, first).squeeze(1), side) for v in (width, height))
    top = (_uniform(view, _TOP) * (side - height + 1)).long()
    left = (_uniform(view, _LEFT) * (side - width + 1)).long()
    return torch.stack((top, left, height, width), dim=1)


def _draw_offset(view: Tensor, side: int) -> Tensor:
    """RandomCrop's top and left corner, counted from the unpadded image."""
    padding = 2 if side == 28 else side // 8
    places = 2 * padding + 1
    return torch.stack([(_uniform(view, s) * places).long() - padding for s in (_TOP, _LEFT)], dim=1)


def _uniform(view: Tensor, stream: int, lanes: Tensor | None = None) -> Tensor:
    """Uniform float64 [V, *lanes.shape] of one stream of draws."""
    if lanes is None:
        return uniform(view, stream, dtype=torch.float64)
    return uniform(view.view(-1, *[1] * lanes.dim()), stream, lanes, dtype=torch.float64)


def _on(tensor: Tensor, images: Tensor) -> Tensor:
    return tensor.to(images.device, non_blocking=True)
