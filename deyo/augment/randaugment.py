"""RandAugment as SENTRY uses it (Cubuk et al., 2020; ildoonet/pytorch-randaugment; methods.md §1.6), batched.

N operations in turn, drawn with replacement from 16, all at magnitude M of 30: value = min + (M / 30)·(max − min)
with the ranges of ``RANGES``. Note what a "weak" M means under this rule: at M = 2, posterize keeps a single bit
(⌊0.27⌋, but at least 1), solarize inverts everything at 17 or above, and brightness, colour and contrast keep
22 %. Rotation, shear and translation get a random sign, use the nearest pixel and fill with black; translation
(up to 100 px) and cutout (up to 40 px) are absolute, whatever the image's size, as published.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from deyo.augment import geometry, local, tables
from deyo.augment.apply import Operation, apply_grouped, normalise
from deyo.random import hash64, uniform

RANGES: dict[str, tuple[float, float]] = {
    "autocontrast": (0, 1),
    "equalize": (0, 1),
    "invert": (0, 1),
    "rotate": (0, 30),
    "posterize": (0, 4),
    "solarize": (0, 256),
    "solarize_add": (0, 110),
    "colour": (0.1, 1.9),
    "contrast": (0.1, 1.9),
    "brightness": (0.1, 1.9),
    "sharpness": (0.1, 1.9),
    "shear_x": (0, 0.3),
    "shear_y": (0, 0.3),
    "cutout": (0, 40),
    "translate_x": (0, 100),
    "translate_y": (0, 100),
}
NAMES = tuple(RANGES)
SIGNED = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
MAX_MAGNITUDE = 30.0
FILL = (0, 0, 0)
_VIEWS_AT_ONCE = 512
_OPERATION, _SIGN, _CENTRE_X, _CENTRE_Y = range(4)


@dataclass(frozen=True, kw_only=True)
class RandAugmentDraws:
    """All random choices of V views, on the CPU.

    operation int64 [V, N]: number in ``NAMES``. value float64 [V, N]: signed strength. centre_x, centre_y
    float64 [V, N] in [0, 1): cutout's centre as a fraction of the side.
    """

    operation: Tensor
    value: Tensor
    centre_x: Tensor
    centre_y: Tensor

    def part(self, start: int, stop: int) -> RandAugmentDraws:
        """The draws of views start..stop."""
        return RandAugmentDraws(**{k: v[start:stop] for k, v in vars(self).items()})


def randaugment(
    pixels: Tensor,
    *,
    copies: int,
    keys: Tensor | None = None,
    mean: Sequence[float] | Tensor,
    std: Sequence[float] | Tensor,
    magnitude: float | Tensor = 2.0,
    operations: int = 3,
    dtype: torch.dtype = torch.float32,
    draws: RandAugmentDraws | None = None,
) -> Tensor:
    """Normalised RandAugment views [copies, M, 3, H, W] in ``dtype`` of pixels uint8 [M, 3, H, W].

    ``keys`` int64 [M] decides the randomness of each image; or give ``draws`` of copies·M views (copy-major).
    ``magnitude`` is M in [0, 30], one for all or [M]. Raises ValueError if neither or both of keys and draws
    are given, or for a magnitude out of range.
    """
    if (keys is None) == (draws is None):
        raise ValueError("randaugment needs either keys or draws")
    if draws is None:
        draws = draw_randaugment(keys, copies=copies, magnitude=magnitude, operations=operations)
    source = torch.arange(len(pixels), device=pixels.device).repeat(copies)
    views = torch.empty(len(source), *pixels.shape[1:], dtype=dtype, device=pixels.device)
    for start in range(0, len(source), _VIEWS_AT_ONCE):
        stop = min(start + _VIEWS_AT_ONCE, len(source))
        images, part = pixels[source[start:stop]], draws.part(start, stop)
        for step in range(part.operation.shape[1]):
            apply_grouped(images, part.operation[:, step], _operations(part, step, images.shape[-2:]))
        views[start:stop] = normalise(images, mean, std, dtype)
    return views.view(copies, *pixels.shape)


def draw_randaugment(
    keys: Tensor, *, copies: int, magnitude: float | Tensor = 2.0, operations: int = 3
) -> RandAugmentDraws:
    """The choices that ``keys`` int64 [M] make for ``copies`` views each."""
    level = torch.as_tensor(magnitude, dtype=torch.float64).cpu() / MAX_MAGNITUDE
    if bool(((level < 0) | (level > 1)).any()):
        raise ValueError(f"RandAugment's magnitude lies in 0..{MAX_MAGNITUDE:g}, got {magnitude}")
    view = hash64(keys.cpu().unsqueeze(0), torch.arange(copies).unsqueeze(1)).flatten().unsqueeze(1)
    steps = torch.arange(operations)
    draw = partial(uniform, view, dtype=torch.float64)
    operation = (draw(steps, _OPERATION) * len(NAMES)).long()
    low, high = torch.tensor(list(RANGES.values()), dtype=torch.float64).unbind(1)
    level = level.expand(len(keys)).repeat(copies).unsqueeze(1)
    value = low[operation] + level * (high - low)[operation]
    signed = torch.tensor([name in SIGNED for name in NAMES])[operation]
    negative = signed & (draw(steps, _SIGN) > 0.5)
    return RandAugmentDraws(
        operation=operation,
        value=torch.where(negative, -value, value),
        centre_x=draw(steps, _CENTRE_X),
        centre_y=draw(steps, _CENTRE_Y),
    )


def _operations(draws: RandAugmentDraws, step: int, size: Sequence[int]) -> dict[int, Operation]:
    """The sixteen operations with the strengths of ``step``."""
    value = draws.value[:, step]
    height, width = size

    def given(build: Callable[[Tensor], Tensor]) -> Operation:
        """A table from the strengths alone."""
        return lambda images, rows: tables.apply_table(images, build(_on(value[rows], images)))

    def seen(build: Callable[[Tensor], Tensor]) -> Operation:
        """A table from the pixels alone."""
        return lambda images, rows: tables.apply_table(images, build(images))

    def moved(build: Callable[[Tensor], Tensor]) -> Operation:
        def run(images: Tensor, rows: Tensor) -> Tensor:
            return geometry.affine(images, _on(build(value[rows]), images), bilinear=False, fill=FILL)

        return run

    def cut(images: Tensor, rows: Tensor) -> Tensor:
        centres = (_on(c[rows, step], images) for c in (draws.centre_x * width, draws.centre_y * height))
        return local.cutout(images, _on(value[rows], images), *centres)

    def contrast(images: Tensor, rows: Tensor) -> Tensor:
        return tables.apply_table(images, tables.contrast_table(images, _on(value[rows], images)))

    by_name: dict[str, Operation] = {
        "autocontrast": seen(tables.autocontrast_table),
        "equalize": seen(tables.equalize_table),
        "invert": seen(lambda images: tables.invert_table(len(images), images.device)),
        "rotate": moved(lambda degrees: geometry.rotation(degrees, height, width)),
        "posterize": given(lambda bits: tables.posterize_table(bits.long().clamp(min=1))),
        "solarize": given(tables.solarize_table),
        "solarize_add": given(tables.solarize_add_table),
        "colour": lambda images, rows: local.colour(images, _on(value[rows], images)),
        "contrast": contrast,
        "brightness": given(tables.brightness_table),
        "sharpness": lambda images, rows: local.sharpness(images, _on(value[rows], images)),
        "shear_x": moved(partial(geometry.shear, along_x=True)),
        "shear_y": moved(partial(geometry.shear, along_x=False)),
        "cutout": cut,
        "translate_x": moved(partial(geometry.translation, along_x=True)),
        "translate_y": moved(partial(geometry.translation, along_x=False)),
    }
    return {number: by_name[name] for number, name in enumerate(NAMES)}


def _on(tensor: Tensor, images: Tensor) -> Tensor:
    return tensor.to(images.device, non_blocking=True)
