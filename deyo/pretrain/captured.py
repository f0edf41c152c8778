"""Training steps as a CUDA graph: small networks are trained as fast as kernels run, not as Python starts them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from deyo.graphed import capturing, warm_up

STEPS_BEFORE = 3
"""Steps that run as they are: in its first one an optimiser makes what the later ones only change."""


class CapturedStep:
    """``step`` of tensors, whose calls replay what the call after ``STEPS_BEFORE`` others captured.

    ``step`` changes tensors in place, always the same ones and in the same way, and returns nothing. Each call is one
    step, and takes tensors of the shapes of the first. The numbers are those of ``step`` itself: the kernels are. What
    cannot be captured goes on as it is.
    """

    def __init__(self, step: Callable[..., None]) -> None:
        self.step = step
        self.calls = 0
        self.inputs: tuple[Tensor, ...] = ()
        self.replay: Callable[[], object] | None = None

    def __call__(self, *inputs: Tensor) -> None:
        with torch.cuda.device_of(inputs[0]):
            if self.calls < STEPS_BEFORE:
                warm_up(lambda: self.step(*inputs), calls=1)
            else:
                self._replay(inputs)
        self.calls += 1

    def _replay(self, inputs: tuple[Tensor, ...]) -> None:
        if self.replay is None:
            self.inputs = tuple(given.clone() for given in inputs)
            try:
                self.replay = record(lambda: self.step(*self.inputs))
            except RuntimeError:  # a network that waits for the device, or no memory for a graph
                self.replay = lambda: self.step(*self.inputs)
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given)
        self.replay()


def record(step: Callable[[], None]) -> Callable[[], object]:
    """What does ``step`` once more each time it is called. Recording does nothing yet."""
    graph = torch.cuda.CUDAGraph()
    with capturing(graph):
        step()
    return graph.replay
