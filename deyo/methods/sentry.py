"""SENTRY (Prabhu et al., ICCV 2021) without its supervised loss, as the paper compares it (methods.md §1.6).

A committee of RandAugment views votes on each prediction. Where most views agree with the image's own
prediction, entropy is minimised, where most disagree, maximised, on the last view that voted so; an information
term moves predictions away from classes that were predicted often of late:

    L = λ_info · mean_i Σ_c p_ic·log(q_c + 1e-12)  +  λ_ent · (Σ_consistent H − Σ_inconsistent H) / B

with q the shares of the classes among the last 256 predictions (an empty place counts for no class).

What the port to test-time adaptation chooses, where the paper only says that the supervised loss is removed:
norm parameters of the ``lower`` subset, SGD with momentum 0.9, the learning rate that the other methods have on
the same benchmark, the queue kept over the stream, no class-balanced sampling, the network's own head, and the
clean batch's logits before the update as the prediction. The original takes its reference labels from a second
forward of the same clean batch, which is the same numbers here (batch statistics, no dropout): it is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from deyo import protocols
from deyo.augment import randaugment, step_keys
from deyo.losses import entropy, finite_rows, quiet
from deyo.methods.base import Forward, LockstepMethod
from deyo.methods.whole import WholeNetworks
from deyo.optim import RunSGD
from deyo.protocols import Situation
from deyo.settings import Bounded, setting
from deyo.types import MethodContext

_TINY = 1e-12


@dataclass(frozen=True, kw_only=True)
class SENTRYSettings(Bounded):
    """Settings of SENTRY; sources are the original code's unless another is named."""

    learning_rate: float = setting(doc="SGD step size; deyo.protocols.learning_rate (choice of the port)", at_least=0)
    momentum: float = setting(
        0.9, doc="SGD momentum; 0.9, but without the original's Nesterov (choice of the port)", at_least=0, below=1
    )
    parameters: Literal["norm", "all"] = setting(
        "norm", doc="adapt norm layers, as the paper does for all methods, or every parameter, as the original"
    )
    adapted: Literal["all", "lower"] = setting("lower", doc="norm layers adapted where parameters is norm")
    committee: int = setting(3, doc="RandAugment views an image; more than half decide", at_least=1)
    operations: int = setting(3, doc="RandAugment's N, operations a view", at_least=1)
    magnitude: float = setting(2.0, doc="RandAugment's M of 30", at_least=0, at_most=30)
    queue_length: int = setting(256, doc="predictions that the class shares q are taken over", at_least=1)
    information_weight: float = setting(0.1, doc="λ_info, weight of the information term", at_least=0)
    entropy_weight: float = setting(1.0, doc="λ_ent, weight of the selective entropy terms", at_least=0)


class SENTRY(LockstepMethod):
    """Selective entropy optimisation by committee consistency, over R runs.

    ``report``: ``passed_both`` marks consistent samples; forwards are 1 + committee a sample, backwards the
    clean sample and the view that speaks for it. A run of which any clean or augmented sample is not finite, or
    whose BatchNorm saw a single value per channel, is not stepped, and neither is its queue filled by samples
    that are not finite.
    """

    name = "sentry"
    Settings = SENTRYSettings

    def __init__(self, context: MethodContext, settings: Sequence[SENTRYSettings]) -> None:
        super().__init__(context, settings)
        self.committee = self._shared("committee")
        self.operations = self._shared("operations")
        self.queue_length = self._shared("queue_length")
        if self._shared("parameters") == "all":
            self.network = WholeNetworks(context)
            self.optimizer = RunSGD(self.network.theta, self._each("learning_rate"), self._each("momentum"))
        self.num_classes = context.num_classes
        self.information_weight = self.column("information_weight").squeeze(1)
        self.entropy_weight = self.column("entropy_weight").squeeze(1)
        self.magnitude = torch.tensor(self._each("magnitude"), dtype=torch.float64)
        for name, initial in self.initial_state().items():
            setattr(self, name, initial)
        self.capturable = not isinstance(self.network, WholeNetworks)
        # Views are drawn on the host, so it keeps its own count of steps: reading the device's would wait for it.
        self._host_seeds = self.seeds.cpu()
        self._host_steps = 0
        self._buffers: dict[torch.Size, Tensor] = {}
        self.views: Tensor

    @classmethod
    def defaults(cls, situation: Situation) -> Mapping[str, Any]:
        return {
            "learning_rate": protocols.learning_rate(cls.name, situation),
            "adapted": protocols.adapted_subset(cls.name, situation),
        }

    def initial_state(self) -> Mapping[str, Tensor]:
        """``queue`` int64 [R, Q]: predicted class + 1, 0 for an empty place; ``pointer`` int64 [R]: next place."""
        queue = torch.zeros(self.context.runs, self.queue_length, dtype=torch.int64, device=self.device)
        return {"queue": queue, "pointer": queue[:, 0].clone()}

    def step(self, pixels: Tensor) -> Tensor:
        """See ``LockstepMethod.step``. The committee's views are made first, outside of what may be captured."""
        views = self._make_views(pixels)
        # One place for each batch size, which a captured step goes on reading.
        self.views = self._buffers.setdefault(pixels.shape, torch.empty_like(views))
        self.views.copy_(views)
        logits = super().step(pixels)
        self._host_steps += 1
        return logits

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        super().load_state_dict(state)
        self._host_steps = int(self.steps)

    def adapt(self, pixels: Tensor) -> None:
        first = self.forward_first(pixels)
        label = first.logits.argmax(-1)
        self._enqueue(label, first.finite)
        agreeing, disagreeing, votes, finite = self._vote(first, label)
        majority = self.committee // 2 + 1
        consistent = first.finite & (votes >= majority)
        inconsistent = first.finite & (self.committee - votes >= majority)

        selective = torch.where(consistent, entropy(agreeing), 0) - torch.where(inconsistent, entropy(disagreeing), 0)
        losses = self.information_weight * self._information(first).mean(1)
        losses = losses + self.entropy_weight * selective.mean(1)
        batch = torch.full_like(self.pointer, pixels.shape[1])
        stepped = self.update(losses, finite & ~self.network.single_valued(batch))
        report = self.make_report(first, passed_both=consistent, skipped=~stepped)
        report.forwards = report.forwards * (1 + self.committee)
        report.backwards = stepped * (batch + (consistent | inconsistent).sum(1))

    def _vote(self, first: Forward, label: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Logits [R, B, C] of the last agreeing and the last disagreeing view, votes for ``label`` int64 [R, B],
        and whether all samples of a run were finite in all forwards, bool [R].
        """
        agreeing = disagreeing = torch.zeros_like(first.safe.detach())
        votes = torch.zeros_like(label)
        finite = first.finite.all(1)
        for view in self.views:
            logits = self.network(view, statistics="batch")
            finite = finite & finite_rows(logits.detach()).all(1)
            logits = quiet(logits)
            agrees = logits.detach().argmax(-1) == label
            agreeing = torch.where(agrees.unsqueeze(-1), logits, agreeing)
            disagreeing = torch.where(agrees.unsqueeze(-1), disagreeing, logits)
            votes = votes + agrees
        return agreeing, disagreeing, votes, finite

    def _make_views(self, pixels: Tensor) -> Tensor:
        """The committee's views, [committee, R, B, 3, H, W] normalised."""
        runs, batch = pixels.shape[:2]
        views = randaugment(
            pixels.flatten(0, 1),
            copies=self.committee,
            keys=step_keys(self._host_seeds, self._host_steps, batch).flatten(),
            mean=self.network.mean,
            std=self.network.std,
            magnitude=self.magnitude.repeat_interleave(batch),
            operations=self.operations,
            dtype=self.network.activations,
        )
        return views.view(self.committee, runs, batch, *pixels.shape[2:])

    def _enqueue(self, label: Tensor, finite: Tensor) -> None:
        """Put the predictions of finite samples into the ring, the last Q of them if there are more."""
        count = finite.sum(1, keepdim=True)
        rank = finite.long().cumsum(1) - 1
        kept = finite & (rank >= count - self.queue_length)
        # Samples that are not kept go to a place behind the ring, which is cut off again.
        place = torch.where(kept, (self.pointer.unsqueeze(1) + rank) % self.queue_length, self.queue_length)
        spare = torch.zeros_like(self.queue[:, :1])
        self.queue.copy_(torch.cat((self.queue, spare), 1).scatter(1, place, label + 1)[:, :-1])
        self.pointer.copy_((self.pointer + count.squeeze(1)) % self.queue_length)

    def _information(self, first: Forward) -> Tensor:
        """Σ_c p_c·log(q_c + 1e-12) of every sample, [R, B]."""
        counts = torch.zeros(len(self.queue), self.num_classes + 1, dtype=self.network.dtype, device=self.device)
        counts.scatter_add_(1, self.queue, torch.ones_like(self.queue, dtype=counts.dtype))
        log_share = (counts[:, 1:] / self.queue_length + _TINY).log()
        return (first.safe.softmax(-1) * log_share.unsqueeze(1)).sum(-1)
