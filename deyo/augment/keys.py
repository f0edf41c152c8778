"""Keys for the augmentations: one int64 an image, from what should decide its views."""

from __future__ import annotations

import torch
from torch import Tensor

from deyo.random import hash64


def step_keys(seeds: Tensor, step: Tensor | int, batch: int) -> Tensor:
    """Keys by place in the stream: seeds int64 [R], ``step`` counts batches -> int64 [R, batch]."""
    images = torch.arange(batch, device=seeds.device)
    return hash64(seeds.unsqueeze(-1), step, images)


def content_keys(seeds: Tensor, pixels: Tensor) -> Tensor:
    """Keys by content: seeds int64 [R], pixels uint8 [R, B, 3, H, W] -> int64 [R, B].

    The same picture gets the same views at any place in any stream, so an episodic method's answer to an image
    does not depend on the scenario's order.
    """
    flat = pixels.flatten(2).to(torch.int64)
    places = hash64(torch.arange(flat.shape[-1], device=pixels.device))
    return hash64(seeds.unsqueeze(-1), (flat * places).sum(-1))
