"""What methods over R runs have in common: the shared network, the step's frame, the report, saved state.

A method is one file: a frozen settings dataclass and a class. To write your own, subclass ``LockstepMethod``,
give it ``name``, ``Settings`` and ``defaults``, and write ``adapt``; announce the class in the entry-point group
``deyo.methods`` and its name works in specs like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from deyo.losses import entropy, finite_rows, quiet
from deyo.model import RunsNetwork
from deyo.optim import RunSGD
from deyo.precision import check_profile, numerics
from deyo.protocols import Situation
from deyo.types import ConfigError, MethodContext, StepReport

RUNS_NETWORK = "runs_network"
"""Option of a context: the ``RunsNetwork`` to use, at its source values; without it a method makes its own."""


@dataclass(kw_only=True)
class Forward:
    """The first forward of a step: normalised input, logits (with graph), and what follows from them.

    x [R, B, 3, H, W]; logits, safe [R, B, C] (safe: non-finite samples zeroed); entropy [R, B] (with graph);
    finite bool [R, B].
    """

    x: Tensor
    logits: Tensor
    safe: Tensor
    entropy: Tensor
    finite: Tensor


def judge(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of logits [R, B, C]: the same with non-finite samples zeroed, their entropy [R, B], which are finite."""
    safe = quiet(logits)
    return safe, entropy(safe), finite_rows(logits.detach())


def run_stages(method: LockstepMethod, pixels: Tensor) -> None:
    """The plain way to run a step: stage after stage, until one says that there is nothing left to do."""
    for go_on in method.stages(pixels):
        if not bool(go_on):
            break


class LockstepMethod:
    """Base of the methods that adapt norm layers of R runs side by side.

    Subclasses set ``name`` and ``Settings`` (whose fields include ``learning_rate``, ``momentum`` and
    ``adapted`` unless ``adapts`` is False) and implement ``adapt`` (or ``stages``). ``order_free``: as in the protocol
    ``Method``. ``capturable`` says whether a step can be captured in CUDA graphs; ``coarse`` (set where it is) asks for
    few stages of fixed shapes; ``fused`` names the functions of tensors among the attributes that are compiled then.
    """

    name: ClassVar[str]
    lockstep: ClassVar[bool] = True
    adapts: ClassVar[bool] = True
    order_free: ClassVar[bool] = False
    statistics: ClassVar[str] = "batch"
    fused: ClassVar[tuple[str, ...]] = ("judge",)
    capturable: bool = True
    coarse: bool = False
    Settings: ClassVar[type]

    def __init__(self, context: MethodContext, settings: Sequence[Any]) -> None:
        check_profile(context.precision)
        if len(settings) != context.runs or not settings:
            raise ConfigError(f"{len(settings)} settings for {context.runs} runs: there must be one each, at least one")
        self.context = context
        self.settings = list(settings)
        self.device = context.device
        self.network = context.options.get(RUNS_NETWORK) or RunsNetwork(
            context, self._shared("adapted") if self.adapts else None
        )
        if self.adapts:
            self.optimizer = RunSGD(self.network.theta, self._each("learning_rate"), self._each("momentum"))
        self.seeds = torch.tensor([int(s) for s in context.seeds], dtype=torch.int64, device=self.device)
        self.steps = torch.zeros((), dtype=torch.int64, device=self.device)
        self.judge: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]] = judge
        self.runner: Callable[[LockstepMethod, Tensor], None] = run_stages
        self.report: StepReport
        self.logits: Tensor

    @classmethod
    def defaults(cls, situation: Situation) -> Mapping[str, Any]:
        """Settings that depend on the situation; the rest are the dataclass's own defaults."""
        return {}

    def step(self, pixels: Tensor) -> Tensor:
        """Adapt on uint8 pixels [R, B, 3, H, W] and return the logits [R, B, C] that count as predictions.

        ``self.report`` then says what happened.
        """
        with numerics(self.context.precision, side=pixels.shape[-1]):
            self.runner(self, pixels)
        self.steps += 1
        return self.logits

    def stages(self, pixels: Tensor) -> Iterator[Tensor]:
        """One step in stages: yields a bool tensor [] before each further stage.

        Where it is false the step ends there, so ``make_report`` must have described that outcome already. A stage
        that runs all the same (for other runs, or unasked) leaves a run that selected nothing as it was.
        Stages are what a CUDA graph can capture: nothing in them waits for the device.
        """
        self.adapt(pixels)
        return
        yield

    def adapt(self, pixels: Tensor) -> None:
        """One step in one stage: forward, update, ``make_report``."""
        raise NotImplementedError

    def reset(self) -> None:
        """Source network, no momentum, empty state, for every run; the step count goes on."""
        self.network.reset()
        if self.adapts:
            self.optimizer.clear()
        for name, initial in self.initial_state().items():
            getattr(self, name).copy_(initial)

    def initial_state(self) -> Mapping[str, Tensor]:
        """The method's own state tensors (attribute name -> value at the start), beside theta and momentum."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of everything that the next step depends on."""
        return {name: tensor.detach().clone() for name, tensor in self._state_tensors().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on exactly where ``state_dict`` was taken. Raises ValueError if the shapes do not fit."""
        own = self._state_tensors()
        if own.keys() != state.keys() or any(own[k].shape != state[k].shape for k in own):
            raise ValueError(f"{self.name}: this state is of another method, network or number of runs")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])

    def forward_first(self, pixels: Tensor, *, gradient: bool = True) -> Forward:
        """The forward of the whole batch, whose logits are the predictions."""
        x = self.network.normalize(pixels)
        with torch.set_grad_enabled(gradient):
            logits = self.network(x, statistics=self.statistics)
            safe, own, finite = self.judge(logits)
            return Forward(x=x, logits=logits.detach(), safe=safe, entropy=own, finite=finite)

    def update(self, losses: Tensor, active: Tensor) -> Tensor:
        """Step the runs of ``active`` bool [R] down the gradient of their ``losses`` [R]; returns those stepped.

        A run whose loss or gradient is not finite is not stepped.
        """
        gradient = self.gradient(torch.where(active, losses, 0).sum())
        stepped = active & torch.isfinite(losses.detach()) & torch.isfinite(gradient).all(1)
        self.optimizer.step(gradient, stepped)
        return stepped

    def gradient(self, loss: Tensor) -> Tensor:
        """d loss / d theta [R, P]."""
        return torch.cat(torch.autograd.grad(loss, self.network.parameters_adapted), dim=1)

    def make_report(self, first: Forward, **fields: Tensor) -> StepReport:
        """A report with defaults: everything passed, no PLPD, one forward a sample, nothing skipped or reset."""
        runs, batch = first.finite.shape
        blank = torch.zeros(runs, dtype=torch.int64, device=self.device)
        values = {
            "entropy": torch.where(first.finite, first.entropy.detach(), torch.nan),
            "prediction": first.logits.argmax(-1),
            "plpd": torch.full((runs, batch), torch.nan, dtype=first.entropy.dtype, device=self.device),
            "passed_entropy": first.finite,
            "passed_both": first.finite,
            "forwards": blank + batch,
            "backwards": blank,
            "skipped": blank.bool(),
            "reset": blank.bool(),
        }
        self.logits = first.logits
        self.report = StepReport(**{**values, **fields})
        return self.report

    def column(self, name: str) -> Tensor:
        """Numeric setting ``name`` of every run, [R, 1], in the parameters' dtype."""
        return torch.tensor(self._each(name), dtype=self.network.dtype, device=self.device).unsqueeze(1)

    def flags(self, name: str) -> Tensor:
        """Boolean setting ``name`` of every run, bool [R, 1]."""
        return torch.tensor(self._each(name), dtype=torch.bool, device=self.device).unsqueeze(1)

    def _each(self, name: str) -> list[Any]:
        return [getattr(s, name) for s in self.settings]

    def _shared(self, name: str) -> Any:
        values = set(self._each(name))
        if len(values) != 1:
            raise ConfigError(f"runs side by side must share {name}; got {sorted(map(str, values))}")
        return values.pop()

    def _state_tensors(self) -> dict[str, Tensor]:
        tensors = {"theta": self.network.theta, "steps": self.steps}
        if self.adapts:
            tensors["momentum"] = self.optimizer.buffer
        return tensors | {name: getattr(self, name) for name in self.initial_state()}
