"""A function of tensors as a CUDA graph, captured at its first call."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from deyo.compiling import compiled

WARM_UP_CALLS = 2
OTHERS_GO_ON = "thread_local"
"""How graphs are captured: other threads, which bring images, may call CUDA meanwhile."""

Function = Callable[..., tuple[Tensor, ...]]


@functools.cache
def _stream_of(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def capture_stream() -> torch.cuda.Stream:
    """The stream of the current device on which graphs are captured: each new one would get workspaces of cuBLAS."""
    return _stream_of(torch.cuda.current_device())


@contextlib.contextmanager
def capturing(graph: torch.cuda.CUDAGraph, *, pool: Any = None) -> Iterator[None]:
    """Capture what the block does; the thread's stream is the one before again, also where that fails."""
    before = torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=capture_stream(), capture_error_mode=OTHERS_GO_ON):
            yield
    finally:
        torch.cuda.set_stream(before)


def warm_up(run: Callable[[], object], *, calls: int = WARM_UP_CALLS) -> None:
    """Call ``run`` where it is captured afterwards: compilation, library handles, autotuning."""
    stream = capture_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(calls):
            run()
    torch.cuda.current_stream().wait_stream(stream)


class GraphedFunction:
    """``function`` of tensors, without state, whose calls replay what the first one captured.

    Calls with tensors of other shapes than the first call's run ``function`` itself. ``compile`` compiles what is
    captured. What a call returns is the caller's own.
    """

    def __init__(self, function: Function, *, compile: bool) -> None:
        self.function = function
        self.captured: Function = compiled(function) if compile else function
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: tuple[Tensor, ...] = ()
        self.outputs: tuple[Tensor, ...] = ()

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        with torch.cuda.device(inputs[0].device):
            return self._replay(inputs)

    def _replay(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
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
        warm_up(lambda: self.captured(*self.inputs))
        graph = torch.cuda.CUDAGraph()
        with capturing(graph):
            self.outputs = self.captured(*self.inputs)
        self.graph = graph
