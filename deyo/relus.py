"""ReLUs whose backward looks at their input instead of their result.

A norm layer's backward reads its input anyway, from which a compiler makes the ReLU's input anew in passing; reading
the result as well costs a pass over the map, twice.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class InputReLU(nn.ReLU):
    """An nn.ReLU with the same values and gradients, for the compiler; uncompiled it is nn.ReLU itself."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling() and torch.is_grad_enabled():
            return torch.where(x <= 0, 0, x)  # NaN stays NaN
        return super().forward(x)


def look_at_inputs(module: nn.Module) -> None:
    """Make the ReLUs of ``module`` ``InputReLU``s, in place."""
    for child in module.modules():
        if type(child) is nn.ReLU:
            child.__class__ = InputReLU
