"""One SGD for R runs: a fused step on the flat parameters that leaves runs with nothing selected untouched."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class RunSGD:
    """SGD with momentum as torch.optim.SGD computes it (no dampening, no Nesterov, no weight decay), by run.

    ``theta`` [R, P] is updated in place. ``learning_rate`` and ``momentum`` have one entry a run.
    A momentum buffer of zeros is the same as torch's first step (buffer = gradient).
    """

    def __init__(self, theta: Tensor, learning_rate: Sequence[float], momentum: Sequence[float]) -> None:
        self.theta = theta
        options = {"dtype": theta.dtype, "device": theta.device}
        self.learning_rate = torch.tensor(learning_rate, **options).unsqueeze(1)
        self.momentum = torch.tensor(momentum, **options).unsqueeze(1)
        self.buffer = torch.zeros_like(theta)

    @torch.no_grad()
    def step(self, gradient: Tensor, active: Tensor) -> None:
        """Update the runs of ``active`` bool [R] by ``gradient`` [R, P]; the others stay bit by bit as they are."""
        chosen = active.unsqueeze(1)
        buffer = self.momentum * self.buffer + gradient
        self.buffer.copy_(torch.where(chosen, buffer, self.buffer))
        self.theta.copy_(torch.where(chosen, self.theta - self.learning_rate * buffer, self.theta))

    def clear(self) -> None:
        """Forget the momentum of every run."""
        self.buffer.zero_()
