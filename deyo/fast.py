"""Steps as CUDA graphs of a compiled network: what makes the engine fast on a GPU.

``accelerate(method)`` makes a method's full-size batches run through graphs captured at the first of them; other
sizes (a short last batch) and methods that cannot be captured run plainly. The numbers are the same up to the
rounding that another order of the same operations brings.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from deyo.compiling import compiled
from deyo.graphed import GraphedFunction, capturing, warm_up
from deyo.methods.base import LockstepMethod, run_stages
from deyo.methods.memo import MEMO
from deyo.types import Method, StepReport

INDUCTOR: dict[str, bool] = {}
METHODS_BETWEEN_RESETS = 12
"""So many methods are compiled before Dynamo forgets all (``deyo.kept``): those alike share compiled code, but all of
it is looked through at every compilation."""
CODES = 8 * METHODS_BETWEEN_RESETS
"""Dynamo's limit of compiled forms of one function, past which it would silently run the function as it is."""
FUSE_PARTS = True
"""Compile a method's ``fused`` parts too: some 100 small kernels a step become a few."""
FORESEE = True
"""Start a step's next stage without waiting to hear that it is needed, where the step before needed it."""


class GraphMemory:
    """Device memory for what graphs compute on the way, shared by methods that never step in between of each other's.

    What one of them needs between two of its stages, another one's step overwrites; so it does reports and logits.
    """

    @functools.cached_property
    def handle(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def renew(self) -> None:
        """Graphs captured from now on get other memory: PyTorch takes no handle again that no graph uses any more."""
        self.__dict__.pop("handle", None)


def accelerate(method: Method, *, compile: bool = True, memory: GraphMemory | None = None) -> Method:
    """Run ``method``'s steps through CUDA graphs from now on, if it is on a GPU and can be captured.

    ``compile`` also compiles the network (once for each shape and mode; Inductor caches it on disk). After this,
    the tensors of ``method.report`` and ``method.logits`` are overwritten by the next step: copy what you keep.
    ``memory`` may be that of other methods that are done when this one steps; by default it is the method's own, as
    MEMO's always is.
    """
    if not can_accelerate(method):
        return method
    if compile:
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, CODES)
    if isinstance(method, MEMO):
        method.wrap = lambda function, compilable: GraphedFunction(function, compile=compile and compilable)
    else:
        method.runner = GraphRunner(compile=compile, memory=memory)
        method.coarse = True
    return method


def can_accelerate(method: Method) -> bool:
    """Whether ``accelerate`` does anything for ``method``."""
    if method.context.device.type != "cuda":
        return False
    return isinstance(method, MEMO) or (isinstance(method, LockstepMethod) and method.capturable)


class Decision:
    """Whether a further stage follows, by the bool tensor ``go_on`` on the device.

    Where the latest value known is true, the next is taken to be true as well, and nothing waits for the device: a
    stage in which no run has selected anything changes no run. Otherwise the device is asked.
    """

    def __init__(self, go_on: Tensor) -> None:
        self.go_on = go_on
        self.latest = False
        self.arriving = torch.empty((), dtype=torch.bool, pin_memory=True)
        self.arrived: torch.cuda.Event | None = None

    def __bool__(self) -> bool:
        if not FORESEE:
            return bool(self.go_on)
        if self.arrived is not None and self.arrived.query():
            self.latest, self.arrived = bool(self.arriving), None
        if not self.latest:
            self.latest = bool(self.go_on)
        elif self.arrived is None:
            self.arriving.copy_(self.go_on, non_blocking=True)
            self.arrived = torch.cuda.Event()
            self.arrived.record()
        return self.latest


@dataclasses.dataclass
class Segment:
    """One stage of a step as a graph; ``decision`` says whether the next stage runs (None: there is none)."""

    graph: torch.cuda.CUDAGraph
    decision: Decision | None
    report: StepReport
    logits: Tensor


class GraphRunner:
    """A method's runner that replays its stages as CUDA graphs, captured at the first batch of full size."""

    def __init__(self, *, compile: bool, memory: GraphMemory | None = None) -> None:
        self.compile = compile
        self.memory = memory or GraphMemory()
        self.compiled: list[tuple[Any, str, Any, Any]] = []
        self.pixels: Tensor | None = None
        self.segments: list[Segment] = []

    def __call__(self, method: LockstepMethod, pixels: Tensor) -> None:
        if pixels.shape[1] != method.context.batch_size:
            self._run_plainly(method, pixels)
            return
        with torch.cuda.device(pixels.device):
            self._replay(method, pixels)

    def _replay(self, method: LockstepMethod, pixels: Tensor) -> None:
        if self.pixels is None:
            self._capture(method, pixels)
        self.pixels.copy_(pixels)
        for segment in self.segments:
            segment.graph.replay()
            method.report, method.logits = segment.report, segment.logits
            if segment.decision is not None and not segment.decision:
                break

    def _run_plainly(self, method: LockstepMethod, pixels: Tensor) -> None:
        """A short batch is not worth a compilation."""
        with plain(method):
            run_stages(method, pixels)

    def _compile(self, method: LockstepMethod) -> None:
        network = method.network
        parts: list[tuple[Any, str, dict[str, bool]]] = [(network, "normalize", {})]
        parts.append((network, "forward_module", INDUCTOR))
        parts += [(method, name, {}) for name in method.fused if FUSE_PARTS]
        for owner, name, options in parts:
            plain = getattr(owner, name)
            fast = compiled(plain, options)
            self.compiled.append((owner, name, plain, fast))
            setattr(owner, name, fast)

    def _capture(self, method: LockstepMethod, pixels: Tensor) -> None:
        """Where this fails, the state of ``method`` is what it was, and the next step captures anew."""
        if self.compile and not self.compiled:
            self._compile(method)
        own = pixels.clone()
        self._warm_up(method, own)
        try:
            segments = self._captured(method, own)
        except BaseException:
            self.memory.renew()
            raise
        self.pixels, self.segments = own, segments

    def _captured(self, method: LockstepMethod, pixels: Tensor) -> list[Segment]:
        stages: Iterator[Tensor | None] = itertools.chain(method.stages(pixels), [None])
        segments: list[Segment] = []
        go_on: Tensor | None = None
        while not segments or go_on is not None:
            graph = torch.cuda.CUDAGraph()
            with capturing(graph, pool=self.memory.handle):
                go_on = next(stages)
            decision = None if go_on is None else Decision(go_on)
            segments.append(Segment(graph, decision, copy.copy(method.report), method.logits))
        return segments

    def _warm_up(self, method: LockstepMethod, pixels: Tensor) -> None:
        """Run whole steps, leaving the state as it was."""
        before = method.state_dict()
        try:
            warm_up(lambda: list(method.stages(pixels)))
        finally:
            method.load_state_dict(before)


@contextlib.contextmanager
def plain(method: LockstepMethod) -> Iterator[None]:
    """Without compiled code for the block: for what is not worth a compilation."""
    compiled = getattr(method.runner, "compiled", ())
    try:
        for owner, name, function, _ in compiled:
            setattr(owner, name, function)
        yield
    finally:
        for owner, name, _, function in compiled:
            setattr(owner, name, function)
