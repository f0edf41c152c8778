"""GELU of bfloat16 values in a few instructions each, for the compiler.

PyTorch's is x Φ(x) with an error function good to float32's last digits, some forty instructions a value: with maps of
two bytes a GPU computes longer than it reads and writes. With Q = 1 − Φ, the tail of the normal distribution, it is
max(x, 0) − |x| Q(|x|), where nothing cancels, and log Q is nearly a polynomial.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

LOG_TAIL = (
    -6.93144348e-01,
    -7.97975708e-01,
    -3.17824813e-01,
    -3.73443057e-02,
    5.85993418e-03,
    -6.33019677e-04,
    4.08375324e-05,
    -1.16091538e-06,
)
"""log Q(a) by powers of a ≥ 0 from the 0th on (minimax fit): before rounding, Q to 3e-6 of itself up to a = 4 and 2e-4
up to 6, where bfloat16 has 4e-3; beyond, where Q is below 1e-9, it goes on falling."""


class TailGELU(nn.GELU):
    """An exact nn.GELU, the same to bfloat16's rounding, for the compiler and bfloat16; otherwise nn.GELU itself."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling() or x.dtype != torch.bfloat16:
            return super().forward(x)
        return _GELU.apply(x)


class _GELU(torch.autograd.Function):
    """max(x, 0) − |x| Q(|x|); its derivative is Φ(x) + x φ(x), with the normal distribution's density φ."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        wide = x.float()
        size = wide.abs()
        return (wide.clamp(min=0) - size * _tail(size)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        wide, gradient = x.float(), gradient.float()
        tail = _tail(wide.abs())
        below = torch.where(wide < 0, tail, 1 - tail)
        density = torch.exp(-0.5 * wide.square() - 0.5 * math.log(2 * math.pi))
        return (gradient * (below + wide * density)).to(x.dtype)


def _tail(size: Tensor) -> Tensor:
    """Q(size) of sizes that are not negative."""
    *rest, power = LOG_TAIL
    for coefficient in reversed(rest):
        power = power * size + coefficient
    return power.exp()


def take_tails(module: nn.Module) -> None:
    """Make the exact GELUs of ``module`` ``TailGELU``s, in place."""
    for child in module.modules():
        if type(child) is nn.GELU and child.approximate == "none":
            child.__class__ = TailGELU
