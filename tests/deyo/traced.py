"""Networks as a compiler is given them, run without one."""

from __future__ import annotations

import torch
from torch import nn


def compiled(module: nn.Module) -> nn.Module:
    torch.compiler.reset()
    return torch.compile(module, backend="aot_eager", dynamic=False, fullgraph=True)
