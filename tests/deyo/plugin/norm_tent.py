"""A method of one's own, in one file: Tent with a temperature, over R runs, usable in specs as ``sharp-tent``.

The package that holds it announces it in its pyproject.toml:

    [project.entry-points."deyo.methods"]
    sharp-tent = "norm_tent:SharpTent"
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from deyo import protocols
from deyo.losses import entropy, masked_mean
from deyo.methods.base import LockstepMethod
from deyo.settings import setting


@dataclass(frozen=True, kw_only=True)
class SharpTentSettings:
    learning_rate: float = setting(doc="SGD step size", at_least=0)
    momentum: float = setting(0.9, doc="SGD momentum", at_least=0, below=1)
    adapted: Literal["all", "lower"] = setting("lower", doc="norm layers adapted")
    temperature: float = setting(1.0, doc="divides the logits before the entropy; 1 is Tent", above=0)


class SharpTent(LockstepMethod):
    name = "sharp-tent"
    Settings = SharpTentSettings

    @classmethod
    def defaults(cls, situation: protocols.Situation) -> dict[str, float]:
        return {"learning_rate": protocols.learning_rate("tent", situation)}

    def adapt(self, pixels: Tensor) -> None:
        first = self.forward_first(pixels)
        sharp = entropy(first.safe / self.column("temperature").unsqueeze(-1))
        stepped = self.update(masked_mean(sharp, first.finite), first.finite.all(1))
        self.make_report(first, backwards=stepped.long() * pixels.shape[1], skipped=~stepped)
