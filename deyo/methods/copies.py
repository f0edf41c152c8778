"""AugMix copies of a batch for methods over R runs: as x' of PLPD, and for the entropy filter (Tables 18, 19)."""

from __future__ import annotations

import torch
from torch import Tensor

from deyo.augment import augmix, step_keys
from deyo.losses import entropy, quiet
from deyo.methods.base import LockstepMethod
from deyo.random import hash64

PLPD_STREAM = 1
ENTROPY_STREAM = 2


def augmix_views(method: LockstepMethod, pixels: Tensor, copies: int, stream: int) -> Tensor:
    """Normalised AugMix copies [copies, R, B, 3, H, W] of uint8 pixels [R, B, 3, H, W], drawn for this step."""
    keys = hash64(step_keys(method.seeds, method.steps, pixels.shape[1]), stream)
    network = method.network
    views = augmix(
        pixels.flatten(0, 1),
        copies=copies,
        keys=keys.flatten(),
        mean=network.mean.flatten(),
        std=network.std.flatten(),
        dtype=network.dtype,
    )
    return views.view(copies, *pixels.shape)


def mean_copy_entropy(method: LockstepMethod, pixels: Tensor, copies: int) -> Tensor:
    """Mean over AugMix copies of the entropy [R, B] of each copy's own prediction (methods.md §4)."""
    with torch.no_grad():
        views = augmix_views(method, pixels, copies, ENTROPY_STREAM)
        return torch.stack([entropy(quiet(method.network(view))) for view in views]).mean(0)
