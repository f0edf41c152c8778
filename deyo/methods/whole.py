"""R copies of a network of which every parameter is adapted, behind the interface of ``RunsNetwork``.

Nothing is shared but the code: R runs cost R forwards and R times the memory. Only SENTRY's ``all`` variant
needs it.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn
from torch.func import functional_call

from deyo.model import RunsNetwork
from deyo.types import MethodContext


class WholeNetworks(nn.Module):
    """``theta`` [R, P] holds all parameters of each run; see ``RunsNetwork`` for the rest.

    BatchNorm uses the statistics of each run's own batch.
    """

    def __init__(self, context: MethodContext) -> None:
        super().__init__()
        one = dataclasses.replace(context, seeds=context.seeds[:1])
        self.inner = RunsNetwork(one, None, frozen=False)
        self.dtype = self.inner.dtype
        self.activations = self.inner.activations
        self.mean, self.std = self.inner.mean, self.inner.std
        named = dict(self.inner.module.named_parameters())
        self.adapted_tensor_names = list(named)
        self.like = list(named.values())
        source = torch.cat([p.detach().flatten().to(self.dtype) for p in self.like])
        self.register_buffer("source_theta", source.unsqueeze(0))
        self.theta = nn.Parameter(source.repeat(context.runs, 1))
        self.parameters_adapted = [self.theta]

    def normalize(self, pixels: Tensor) -> Tensor:
        """See ``RunsNetwork.normalize``."""
        return self.inner.normalize(pixels)

    def forward(self, x: Tensor, *, statistics: str = "batch") -> Tensor:
        """Logits [R, B, C] of normalised x [R, B, 3, H, W]."""
        return torch.stack([self._run(weights, part, statistics) for weights, part in zip(self.theta, x)])

    def single_valued(self, count: Tensor) -> Tensor:
        """See ``RunsNetwork.single_valued``."""
        return self.inner.single_valued(count)

    def reset(self) -> None:
        """Source values back into ``theta``."""
        with torch.no_grad():
            self.theta.copy_(self.source_theta.expand_as(self.theta))

    def _run(self, weights: Tensor, x: Tensor, statistics: str) -> Tensor:
        pieces = weights.split([p.numel() for p in self.like])
        # Under bf16 theta stays in float32, and each forward reads it in the layers' own dtype.
        named = {
            f"module.{name}": piece.view(own.shape).to(own.dtype)
            for name, piece, own in zip(self.adapted_tensor_names, pieces, self.like)
        }
        return functional_call(self.inner, named, (x.unsqueeze(0),), {"statistics": statistics}).squeeze(0)
