"""A function of tensors as a CUDA graph, captured at its first call."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

WARM_UP_CALLS = 2
OTHERS_GO_ON = "thread_local"
"""How graphs are captured: other threads, which bring images, may call CUDA meanwhile."""

Function = Callable[..., tuple[Tensor, ...]]


def warm_up(run: Callable[[], object], stream: torch.cuda.Stream) -> None:
    """Call ``run`` on ``stream`` before it is captured there: compilation, library handles, autotuning."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_CALLS):
            run()
    torch.cuda.current_stream().wait_stream(stream)


class GraphedFunction:
    """``function`` of tensors, without state, whose calls replay what the first one captured.

    Calls with tensors of other shapes than the first call's run ``function`` itself. ``compile`` compiles what is
    captured. What a call returns is the caller's own.
    """

    def __init__(self, function: Function, *, compile: bool) -> None:
        self.function = function
        self.captured: Function = torch.compile(function, dynamic=False) if compile else function
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: tuple[Tensor, ...] = ()
        self.outputs: tuple[Tensor, ...] = ()

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        if self.graph is None:
            self._capture(inputs)
        if any(given.shape != own.shape for given, own in zip(inputs, self.inputs, strict=True)):
            return self.function(*inputs)
        for own, given in zip(self.inputs, inputs):
            own.copy_(given)
        self.graph.replay()
        return tuple(output.clone() for output in self.outputs)

    def _capture(self, inputs: tuple[Tensor, ...]) -> None:
        self.inputs = tuple(given.clone() for given in inputs)
        stream = torch.cuda.Stream()
        warm_up(lambda: self.captured(*self.inputs), stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode=OTHERS_GO_ON):
            self.outputs = self.captured(*self.inputs)
        self.graph = graph
