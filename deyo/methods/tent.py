"""Tent (Wang et al., ICLR 2021): entropy minimisation over every sample (methods.md §1.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from deyo import protocols
from deyo.losses import masked_mean
from deyo.methods.base import LockstepMethod
from deyo.protocols import Situation
from deyo.settings import Bounded, setting


@dataclass(frozen=True, kw_only=True)
class TentSettings(Bounded):
    """Settings of Tent."""

    learning_rate: float = setting(doc="SGD step size; deyo.protocols.learning_rate (methods.md §1.0)", at_least=0)
    momentum: float = setting(0.9, doc="SGD momentum (methods.md §1.0)", at_least=0, below=1)
    adapted: Literal["all", "lower"] = setting(
        "lower", doc="norm layers adapted: lower in DeYO's repository, all in SAR's (methods.md §1.2)"
    )


class Tent(LockstepMethod):
    """L = mean over the batch of H(x); always steps."""

    name = "tent"
    Settings = TentSettings

    @classmethod
    def defaults(cls, situation: Situation) -> Mapping[str, Any]:
        return {
            "learning_rate": protocols.learning_rate(cls.name, situation),
            "adapted": protocols.adapted_subset(cls.name, situation),
        }

    def adapt(self, pixels: Tensor) -> None:
        first = self.forward_first(pixels)
        count = first.finite.sum(1)
        # A sample that is not finite spoils its batch: the run's step is skipped and counted.
        active = (count == first.finite.shape[1]) & ~self.network.single_valued(count)
        stepped = self.update(masked_mean(first.entropy, first.finite), active)
        self.make_report(first, backwards=stepped.long() * count, skipped=~stepped)
