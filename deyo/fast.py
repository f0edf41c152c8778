"""Steps as CUDA graphs of a compiled network: what makes the engine fast on a GPU.

``accelerate(method)`` makes a method's full-size batches run through graphs captured at the first of them; other
sizes (a short last batch) and methods that cannot be captured run plainly. The numbers are the same up to the
rounding that another order of the same operations brings.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import itertools
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from deyo.compiling import compiled
from deyo.graphed import GraphedFunction, capturing, warm_up
from deyo.methods import create_method
from deyo.methods.base import RUNS_NETWORK, LockstepMethod, run_stages
from deyo.methods.memo import MEMO
from deyo.model import RunsNetwork
from deyo.types import Method, MethodContext, StepReport

INDUCTOR: dict[str, bool] = {}
METHODS_BETWEEN_RESETS = 12
"""So many methods are compiled before Dynamo forgets all: those alike share compiled code, but all of it is looked
through at every compilation."""
CODES = 8 * METHODS_BETWEEN_RESETS
"""Dynamo's limit of compiled forms of one function, past which it would silently run the function as it is."""
FUSE_PARTS = True
"""Compile a method's ``fused`` parts too: some 100 small kernels a step become a few."""
FORESEE = True
"""Start a step's next stage without waiting to hear that it is needed, where the step before needed it."""


def accelerate(method: Method, *, compile: bool = True) -> Method:
    """Run ``method``'s steps through CUDA graphs from now on, if it is on a GPU and can be captured.

    ``compile`` also compiles the network (once for each shape and mode; Inductor caches it on disk). After this,
    the tensors of ``method.report`` and ``method.logits`` are overwritten by the next step: copy what you keep.
    """
    if not can_accelerate(method):
        return method
    if compile:
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, CODES)
    if isinstance(method, MEMO):
        method.wrap = lambda function, compilable: GraphedFunction(function, compile=compile and compilable)
    else:
        method.runner = GraphRunner(compile=compile)
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

    def __init__(self, *, compile: bool) -> None:
        self.compile = compile
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
        pool = torch.cuda.graph_pool_handle()
        stages: Iterator[Tensor | None] = itertools.chain(method.stages(own), [None])
        segments: list[Segment] = []
        go_on: Tensor | None = None
        while not segments or go_on is not None:
            graph = torch.cuda.CUDAGraph()
            with capturing(graph, pool=pool):
                go_on = next(stages)
            decision = None if go_on is None else Decision(go_on)
            segments.append(Segment(graph, decision, copy.copy(method.report), method.logits))
        self.pixels, self.segments = own, segments

    def _warm_up(self, method: LockstepMethod, pixels: Tensor) -> None:
        """Run whole steps, leaving the state as it was."""
        before = method.state_dict()
        try:
            warm_up(lambda: list(method.stages(pixels)))
        finally:
            method.load_state_dict(before)


class MethodPool:
    """Accelerated methods kept for the next group of runs of the same shape, so that it starts at once.

    Capturing costs seconds and compiling up to minutes; putting other runs' settings, seeds and source weights
    into a captured method costs nothing. ``size`` methods are kept (their graphs hold device memory).
    Whether a method is compiled hangs on its own group alone, so that its numbers do not hang on those before.
    """

    def __init__(self, size: int = 2) -> None:
        self.size = size
        self._made = 0
        self._kept: OrderedDict[Hashable, LockstepMethod | MEMO] = OrderedDict()

    def get(
        self, name: str, context: MethodContext, settings: Sequence[Any], *, key: Hashable, compile: bool
    ) -> Method:
        """As ``create_method``, accelerated. ``key`` must differ where networks or class columns do."""
        place = (key, name, context.runs, context.batch_size, context.precision, compile, _shaping(settings))
        kept = self._kept.get(place)
        if isinstance(kept, LockstepMethod):
            renew(kept, context, settings)
        else:
            fresh = create_method(name, context, settings)
            if not can_accelerate(fresh):
                return fresh
            if kept is None:
                self._make_room(forget=isinstance(fresh, MEMO))
                kept = self._kept[place] = accelerate(fresh, compile=compile)
            elif kept.adopt(fresh):
                gc.collect()
                torch.compiler.reset()
        self._kept.move_to_end(place)
        return kept

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        """Let go of all graphs and their memory."""
        self._kept.clear()
        gc.collect()  # a captured method refers to itself
        torch.compiler.reset()

    def _make_room(self, *, forget: bool) -> None:
        """``forget`` all compiled code: MEMO's has a form for every setting."""
        while len(self._kept) >= self.size:
            self._kept.popitem(last=False)
            gc.collect()
        self._made += 1
        if forget or self._made % METHODS_BETWEEN_RESETS == 0:  # what is captured needs no compiled code any more
            torch.compiler.reset()


def renew(kept: LockstepMethod, context: MethodContext, settings: Sequence[Any]) -> None:
    """Make ``kept`` (captured) start anew with the runs of ``context``: its network, shapes and method are the same.

    A copy of the network on the device is what a method takes longest to make, so that this one is used again.
    """
    kept.network.reset()
    with plain(kept):
        again = {RUNS_NETWORK: kept.network} if isinstance(kept.network, RunsNetwork) else {}
        options = {**context.options, **again}
        transplant(type(kept)(dataclasses.replace(context, options=options), settings), kept)
    kept.context = context


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


def transplant(fresh: LockstepMethod, kept: LockstepMethod) -> None:
    """Make ``kept`` (captured) continue as ``fresh``: same class and shapes, other settings, seeds and state.

    Every tensor of ``fresh`` is written into its counterpart, whose address the graphs know.
    """
    owners = [(fresh, kept)]
    if fresh.adapts:
        owners.append((fresh.optimizer, kept.optimizer))
    with torch.no_grad():
        for source, target in owners:
            for name, value in vars(source).items():
                if isinstance(value, Tensor) and name != "theta":
                    getattr(target, name).copy_(value)
        kept.network.source_theta.copy_(fresh.network.source_theta)
    kept.load_state_dict(fresh.state_dict())
    kept.context, kept.settings = fresh.context, fresh.settings


def _shaping(settings: Sequence[Any]) -> tuple[Any, ...]:
    """What of the settings decides which operations a step has: names, counts and switches of every run.

    Of numbers, whether they are 0, which may leave a term out (EATA's ``fisher_strength``); their values are tensors.
    """
    values = [[(f.name, getattr(s, f.name)) for f in dataclasses.fields(s)] for s in settings]
    return tuple(tuple((name, bool(v) if isinstance(v, float) else v) for name, v in run) for run in values)
