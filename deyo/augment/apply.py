"""Apply a different operation to each image of a batch: images are grouped by operation, never looped over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

Operation = Callable[[Tensor, Tensor], Tensor]
"""(images uint8 [m, 3, H, W], indices of these among all, int64 [m] on the CPU) -> uint8 [m, 3, H, W]."""


def apply_grouped(images: Tensor, choice: Tensor, operations: Mapping[int, Operation]) -> None:
    """Change ``images`` uint8 [M, 3, H, W] in place: image m by ``operations[choice[m]]``, if there is one.

    ``choice`` int64 [M] lies on the CPU, so that grouping needs no wait for the device.
    """
    for number, operation in operations.items():
        rows = (choice == number).nonzero().squeeze(1)
        if len(rows):
            where = rows.to(images.device, non_blocking=True)
            images[where] = operation(images[where], rows)


def normalise(
    pixels: Tensor, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor, dtype: torch.dtype
) -> Tensor:
    """Pixel values 0..255 [..., 3, H, W], any dtype -> ((x / 255) − mean) / std in ``dtype``.

    Computed in float32 as ToTensor and Normalize do, also for float64 networks (as their plain input is).
    """
    shape = (3, 1, 1)
    options = {"dtype": torch.float32, "device": pixels.device}
    mean = torch.as_tensor(mean, **options).reshape(shape)
    std = torch.as_tensor(std, **options).reshape(shape)
    return ((pixels.to(torch.float32) / 255.0 - mean) / std).to(dtype)
