"""No adaptation, and adaptation of BatchNorm's statistics alone (methods.md §1.1)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from deyo.methods.base import LockstepMethod


@dataclass(frozen=True, kw_only=True)
class NoAdaptSettings:
    """Nothing to set."""


class NoAdapt(LockstepMethod):
    """The source network as it is: eval mode, running statistics."""

    name = "no-adapt"
    adapts = False
    order_free = True
    statistics = "running"
    Settings = NoAdaptSettings

    def adapt(self, pixels: Tensor) -> None:
        self.make_report(self.forward_first(pixels, gradient=False))


class BNAdapt(NoAdapt):
    """Prediction with each batch's own BatchNorm statistics; nothing is trained.

    On GroupNorm and LayerNorm networks the same as no-adapt.
    """

    name = "bn-adapt"
    statistics = "batch"
