"""Each image's random numbers, by hash: of (seed, corruption, severity, image index) and a stream number."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from deyo import random


@dataclass(frozen=True)
class Draws:
    """Random numbers for N images. ``keys``: int64 [N], one hash per image.

    A ``stream`` number tells independent draws of one corruption apart.
    """

    keys: Tensor

    @classmethod
    def of(cls, seed: int, corruption_id: int, severity: int, indices: Tensor) -> Draws:
        """Keys for the images with int64 ``indices`` [N]."""
        return cls(random.hash64(seed, corruption_id, severity, indices))

    def uniform(self, stream: int, *shape: int) -> Tensor:
        """Uniform in [0, 1): float64 [N, *shape]."""
        keys, counters = self._counters(stream, shape)
        return random.uniform(keys, counters, dtype=torch.float64).view(-1, *shape)

    def normal(self, stream: int, *shape: int) -> Tensor:
        """Standard normal: float64 [N, *shape], by Box and Muller's transform, two from each pair of numbers."""
        count = math.prod(shape)
        first, second = self.uniform(stream, 2, -(-count // 2)).unbind(1)
        radius = first.neg_().log1p_().mul_(-2).sqrt_()
        angle = second.mul_(2 * math.pi)
        pairs = torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1)
        return pairs[:, :count].reshape(-1, *shape)

    def integers(self, stream: int, low: int, high: int, *shape: int) -> Tensor:
        """Uniform integers in [low, high): int64 [N, *shape]."""
        return (self.uniform(stream, *shape) * (high - low)).floor().to(torch.int64) + low

    def _counters(self, stream: int, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        counters = torch.arange(math.prod(shape), device=self.keys.device)
        return random.hash64(self.keys, stream).unsqueeze(-1), counters
