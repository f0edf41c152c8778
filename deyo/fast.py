"""Steps as CUDA graphs of a compiled network: what makes the engine fast on a GPU.

``accelerate(method)`` makes a method's full-size batches run through graphs captured at the first of them; other
sizes (a short last batch) and methods that cannot be captured run plainly. The numbers are the same up to the
rounding that another order of the same operations brings.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from deyo.methods.base import LockstepMethod, run_stages
from deyo.types import Method, StepReport

WARM_UP_STEPS = 2
INDUCTOR: dict[str, bool] = {}


def accelerate(method: Method, *, compile: bool = True) -> Method:
    """Run ``method``'s steps through CUDA graphs from now on, if it is on a GPU and can be captured.

    ``compile`` also compiles the network (once for each shape and mode; Inductor caches it on disk). After this,
    the tensors of ``method.report`` and ``method.logits`` are overwritten by the next step: copy what you keep.
    """
    if isinstance(method, LockstepMethod) and method.device.type == "cuda" and method.capturable:
        method.runner = GraphRunner(compile=compile)
        if hasattr(method, "gathers"):
            method.gathers = False
    return method


@dataclasses.dataclass
class Segment:
    """One stage of a step as a graph; ``go_on`` is the bool tensor that lets the next stage run."""

    graph: torch.cuda.CUDAGraph
    go_on: Tensor | None
    report: StepReport
    logits: Tensor


class GraphRunner:
    """A method's runner that replays its stages as CUDA graphs. The shape of the first batch is the one captured."""

    def __init__(self, *, compile: bool) -> None:
        self.compile = compile
        self.pixels: Tensor | None = None
        self.segments: list[Segment] = []
        self.plain_module: nn.Module | None = None

    def __call__(self, method: LockstepMethod, pixels: Tensor) -> None:
        if self.pixels is None:
            self._capture(method, pixels)
        if pixels.shape != self.pixels.shape:
            self._run_plainly(method, pixels)
            return
        self.pixels.copy_(pixels)
        for segment in self.segments:
            segment.graph.replay()
            method.report, method.logits = segment.report, segment.logits
            if segment.go_on is not None and not bool(segment.go_on):
                break

    def _run_plainly(self, method: LockstepMethod, pixels: Tensor) -> None:
        """An odd shape is not worth a compilation."""
        compiled, method.network.forward_module = method.network.forward_module, method.network.module
        try:
            run_stages(method, pixels)
        finally:
            method.network.forward_module = compiled

    def _capture(self, method: LockstepMethod, pixels: Tensor) -> None:
        if self.compile:
            method.network.forward_module = torch.compile(method.network.module, dynamic=False, options=INDUCTOR)
        self.pixels = pixels.clone()
        stream = torch.cuda.Stream()
        self._warm_up(method, stream)
        pool = torch.cuda.graph_pool_handle()
        stages: Iterator[Tensor | None] = itertools.chain(method.stages(self.pixels), [None])
        go_on: Tensor | None = None
        while not self.segments or go_on is not None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                go_on = next(stages)
            self.segments.append(Segment(graph, go_on, copy.copy(method.report), method.logits))

    def _warm_up(self, method: LockstepMethod, stream: torch.cuda.Stream) -> None:
        """Run whole steps on ``stream`` (compilation, library handles, autotuning), leaving the state as it was."""
        before = method.state_dict()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_STEPS):
                for _ in method.stages(self.pixels):
                    pass
        torch.cuda.current_stream().wait_stream(stream)
        method.load_state_dict(before)
