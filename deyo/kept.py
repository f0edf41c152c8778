"""Methods that were captured are kept for later groups of runs, which then start at once."""

from __future__ import annotations

import dataclasses
import gc
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from deyo.fast import METHODS_BETWEEN_RESETS, GraphMemory, accelerate, can_accelerate, plain
from deyo.methods import create_method
from deyo.methods.base import RUNS_NETWORK, LockstepMethod
from deyo.methods.memo import MEMO
from deyo.model import RunsNetwork
from deyo.types import Method, MethodContext

METHODS_OF_A_SHAPE = 8
"""Each holds a copy of the network; what their graphs compute on the way shares memory. MEMO's graphs share none: one
MEMO is kept."""


@dataclasses.dataclass
class Alike:
    """Methods over networks, batches and runs of one shape, and the memory of their graphs: one steps at a time."""

    memory: GraphMemory = dataclasses.field(default_factory=GraphMemory)
    methods: OrderedDict[Hashable, LockstepMethod | MEMO] = dataclasses.field(default_factory=OrderedDict)

    def let_go(self, place: Hashable) -> None:
        del self.methods[place]
        gc.collect()  # a captured method refers to itself
        lockstep = [method for method in self.methods.values() if isinstance(method, LockstepMethod)]
        if not any(getattr(method.runner, "segments", ()) for method in lockstep):
            self.memory.renew()


class MethodPool:
    """Accelerated methods kept for the next group of runs of the same shape, so that it starts at once.

    Capturing costs half a second and compiling up to minutes; putting other runs' settings, seeds and source weights
    into a captured method costs nothing. Methods of ``size`` shapes are kept (their graphs hold device memory).
    Whether a method is compiled hangs on its own group alone, so that its numbers do not hang on those before.
    """

    def __init__(self, size: int = 2) -> None:
        self.size = size
        self._made = 0
        self._kept: OrderedDict[Hashable, Alike] = OrderedDict()

    def get(
        self, name: str, context: MethodContext, settings: Sequence[Any], *, key: Hashable, compile: bool
    ) -> Method:
        """As ``create_method``, accelerated. ``key`` must differ where networks or class columns do."""
        shape = (key, context.runs, context.batch_size, context.precision, compile)
        place = (name, _shaping(settings))
        kept = self._kept[shape].methods.get(place) if shape in self._kept else None
        if isinstance(kept, LockstepMethod):
            renew(kept, context, settings)
        else:
            fresh = create_method(name, context, settings)
            if not can_accelerate(fresh):
                return fresh
            if kept is None:
                self._make_room(shape, forget=isinstance(fresh, MEMO))
                alike = self._kept.setdefault(shape, Alike())
                kept = alike.methods[place] = accelerate(fresh, compile=compile, memory=alike.memory)
            elif kept.adopt(fresh):
                gc.collect()
                torch.compiler.reset()
        self._kept.move_to_end(shape)
        self._kept[shape].methods.move_to_end(place)
        return kept

    def __len__(self) -> int:
        return sum(len(alike.methods) for alike in self._kept.values())

    def clear(self) -> None:
        """Let go of all graphs and their memory."""
        self._kept.clear()
        gc.collect()  # a captured method refers to itself
        torch.compiler.reset()

    def _make_room(self, shape: Hashable, *, forget: bool) -> None:
        """For one more method of ``shape``. ``forget`` all compiled code: MEMO's has a form for every setting."""
        while shape not in self._kept and len(self._kept) >= self.size:
            self._kept.popitem(last=False)
            gc.collect()
        if (alike := self._kept.get(shape)) is not None:
            others = [place for place, method in alike.methods.items() if forget and isinstance(method, MEMO)]
            for place in others or list(alike.methods)[: 1 - METHODS_OF_A_SHAPE]:
                alike.let_go(place)
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
    kept.context = context  # without the network, which is no option of the caller's


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
