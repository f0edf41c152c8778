"""SAR (Niu et al., ICLR 2023): sharpness-aware entropy minimisation with recovery (methods.md §1.4).

Two variants: ``sar`` is the port in DeYO's repository (reset constant 0.005, second forward on the selected
subset, nothing done where nothing is selected), ``sar-official`` is SAR's own code (0.2, second forward on the
whole batch, and a step on zero gradients, which momentum turns into drift, where nothing is selected).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from deyo import protocols
from deyo.losses import entropy, finite_rows, masked_mean, quiet
from deyo.methods.base import LockstepMethod
from deyo.protocols import Situation
from deyo.settings import Bounded, setting
from deyo.types import MethodContext


@dataclass(frozen=True, kw_only=True)
class SARSettings(Bounded):
    """Settings of SAR."""

    learning_rate: float = setting(doc="SGD step size; deyo.protocols.learning_rate (methods.md §1.0)", at_least=0)
    momentum: float = setting(0.9, doc="SGD momentum (methods.md §1.0)", at_least=0, below=1)
    adapted: Literal["all", "lower"] = setting("lower", doc="norm layers adapted (methods.md §1.0)")
    entropy_margin: float = setting(
        0.4, doc="E0 as a fraction of ln C: samples above it are not used (SAR, Eq. 2)", above=0
    )
    sharpness_radius: float = setting(0.05, doc="ρ of the sharpness-aware step (SAR, Eq. 5)", at_least=0)
    reset_constant: float = setting(
        0.005, doc="e_m: an entropy EMA below it sends the run back to the source; 0.2 in SAR's code (D5)", at_least=0
    )
    entropy_decay: float = setting(
        0.9, doc="decay of the EMA of the second loss (methods.md §1.4)", at_least=0, below=1
    )
    second_forward: Literal["selected", "batch"] = setting(
        "selected", doc="what the second forward sees, which decides BatchNorm statistics (D5)"
    )
    step_on_empty: bool = setting(
        False, doc="step on zero gradients where nothing is selected, as SAR's code does: momentum drifts"
    )


class SAR(LockstepMethod):
    """Ascend to θ + ρ·g/‖g‖, take the gradient there over samples still below E0, descend from θ."""

    name = "sar"
    Settings = SARSettings

    def __init__(self, context: MethodContext, settings: Sequence[SARSettings]) -> None:
        super().__init__(context, settings)
        self.entropy_margin = self.column("entropy_margin") * context.log_classes
        self.radius = self.column("sharpness_radius")
        self.reset_constant = self.column("reset_constant").squeeze(1)
        self.decay = self.column("entropy_decay").squeeze(1)
        self.second_selected = self._shared("second_forward") == "selected"
        self.step_on_empty = self.flags("step_on_empty").squeeze(1)
        self.entropy_ema = torch.full((context.runs,), torch.nan, dtype=self.network.dtype, device=self.device)

    @classmethod
    def defaults(cls, situation: Situation) -> Mapping[str, Any]:
        published = {"reset_constant": 0.2, "second_forward": "batch"} if situation.protocol == "paper" else {}
        return {
            "learning_rate": protocols.learning_rate(cls.name, situation),
            "adapted": protocols.adapted_subset(cls.name, situation),
            **published,
        }

    def initial_state(self) -> Mapping[str, Tensor]:
        return {"entropy_ema": torch.full_like(self.entropy_ema, torch.nan)}

    def stages(self, pixels: Tensor) -> Iterator[Tensor]:
        first = self.forward_first(pixels)
        reliable = first.finite & (first.entropy.detach() < self.entropy_margin)
        count = reliable.sum(1)
        second_count = self._second_count(first.finite, count)
        steppable = first.finite.all(1) & ~self.network.single_valued(second_count)
        started = ((count > 0) | self.step_on_empty) & steppable
        nothing = torch.zeros_like(reliable)
        self.make_report(first, passed_entropy=reliable, passed_both=nothing, skipped=torch.ones_like(started))
        yield started.any()

        losses = masked_mean(first.entropy, reliable, count)
        gradient = self.gradient(torch.where(started, losses, 0).sum())
        losses, gradient, kept = self._second_pass(first.x, reliable, gradient, started)
        stepped = self._descend(losses, gradient, kept, started)
        report = self.report
        report.reset = self._recover(losses, kept.any(1) & started, started)
        report.passed_both = kept & started.unsqueeze(1)
        report.skipped = ~stepped
        report.forwards = report.forwards + second_count * started
        report.backwards = (count + kept.sum(1)) * started

    def _second_count(self, finite: Tensor, selected: Tensor) -> Tensor:
        """Samples [R] of the second forward."""
        return selected if self.second_selected else torch.full_like(selected, finite.shape[1])

    def _second_pass(
        self, x: Tensor, reliable: Tensor, gradient: Tensor, started: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """At the ascended weights: loss [R], its gradient [R, P], its samples bool [R, B]. Theta is restored."""
        theta = self.network.theta
        before = theta.clone()
        norm = gradient.norm(dim=1, keepdim=True)
        ascent = torch.where(started.unsqueeze(1), self.radius * gradient / (norm + 1e-12), 0)
        with torch.no_grad():
            theta.add_(torch.where(torch.isfinite(ascent), ascent, 0))
        logits = self.network(x, mask=reliable if self.second_selected else None)
        own = entropy(quiet(logits))
        kept = reliable & finite_rows(logits.detach()) & (own.detach() < self.entropy_margin)
        losses = masked_mean(own, kept)
        gradient = self.gradient(torch.where(started, losses, 0).sum())
        with torch.no_grad():
            theta.copy_(before)
        return losses.detach(), gradient, kept

    def _descend(self, losses: Tensor, gradient: Tensor, kept: Tensor, started: Tensor) -> Tensor:
        finite = torch.isfinite(losses) & torch.isfinite(gradient).all(1)
        stepped = started & finite & (kept.any(1) | self.step_on_empty)
        self.optimizer.step(gradient, stepped)
        return stepped

    def _recover(self, losses: Tensor, measured: Tensor, started: Tensor) -> Tensor:
        """Update the entropy EMA and reset the runs that fell below the constant; returns them, bool [R].

        As in SAR's code, momentum survives the reset, and so does the EMA that triggered it.
        """
        fresh = torch.where(
            torch.isnan(self.entropy_ema), losses, self.decay * self.entropy_ema + (1 - self.decay) * losses
        )
        self.entropy_ema.copy_(torch.where(measured, fresh, self.entropy_ema))
        recovered = started & (self.entropy_ema < self.reset_constant)
        self.network.reset(recovered)
        return recovered


class SAROfficial(SAR):
    """SAR as in its own repository."""

    name = "sar-official"

    @classmethod
    def defaults(cls, situation: Situation) -> Mapping[str, Any]:
        return {
            **super().defaults(situation),
            "reset_constant": 0.2,
            "second_forward": "batch",
            "step_on_empty": True,
        }
