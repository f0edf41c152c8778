"""DeYO (Lee et al., ICLR 2024): entropy and PLPD, the fall of the pseudo-label's probability when the object's
shape is destroyed, select and weight the samples to adapt on (methods.md §1.7, §2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from deyo import protocols
from deyo.losses import masked_mean, probability_of, quiet
from deyo.methods.base import Forward, LockstepMethod
from deyo.methods.copies import PLPD_STREAM, augmix_views, mean_copy_entropy
from deyo.protocols import Situation
from deyo.settings import Bounded, setting
from deyo.transforms import by_rank, destroy, draw
from deyo.types import ConfigError, MethodContext


@dataclass(frozen=True, kw_only=True)
class DeYOSettings(Bounded):
    """Settings of DeYO; the four switches give the paper's 16 ablations (Table 6)."""

    learning_rate: float = setting(doc="SGD step size; deyo.protocols.learning_rate (methods.md §1.0)", at_least=0)
    momentum: float = setting(0.9, doc="SGD momentum (methods.md §1.0)", at_least=0, below=1)
    adapted: Literal["all", "lower"] = setting("lower", doc="norm layers adapted (methods.md §1.0, D4)")
    entropy_margin: float = setting(0.5, doc="τ_Ent as a fraction of ln C: the entropy filter (Eq. 8)", above=0)
    entropy_reference: float = setting(
        0.4, doc="Ent_0 as a fraction of ln C: the entropy weight's reference (Eq. 10)", above=0
    )
    plpd_threshold: float = setting(
        0.2, doc="τ_PLPD: samples whose PLPD does not exceed it are not used (Eq. 8)", at_least=-1, at_most=1
    )
    plpd_reference: float = setting(
        0.0, doc="PLPD_0: the weight is exp(PLPD − PLPD_0) (Fig. 8)", at_least=-1, at_most=1
    )
    transform: Literal["patch", "pixel", "occlusion", "augmix"] = setting(
        "patch", doc="how x' is made of x (Fig. 3; augmix: Table 18)"
    )
    patches: int = setting(4, doc="P of the P×P grid of the patch transform (Fig. 7)", at_least=2)
    copies: int = setting(
        8, doc="AugMix copies whose mean probability PLPD uses, for transform augmix (Table 18, D20)", at_least=1
    )
    entropy_copies: int = setting(
        0,
        doc="n > 0: filter by the mean entropy of n AugMix copies instead of the image's own (Table 19)",
        at_least=0,
    )
    filter_entropy: bool = setting(True, doc="switch: drop samples at or above τ_Ent")
    filter_plpd: bool = setting(True, doc="switch: drop samples at or below τ_PLPD")
    weight_entropy: bool = setting(True, doc="switch: weight exp(Ent_0 − H)")
    weight_plpd: bool = setting(True, doc="switch: weight exp(PLPD)")
    loss_normalization: Literal["selected", "batch"] = setting(
        "selected", doc="divide the loss by the number of selected samples (official) or by B (D1)"
    )
    plpd_statistics: Literal["subset", "batch", "frozen"] = setting(
        "subset",
        doc="BatchNorm statistics of x': of the entropy-selected subset, the whole batch, or x's own (D7)",
    )


class DeYO(LockstepMethod):
    """L = mean over {H < τ_Ent, PLPD > τ_PLPD} of (exp(Ent_0 − H) + exp(PLPD))·H (paper, Eq. 8-11).

    ``report.forwards`` counts the batch, x' of the entropy-selected samples, and every AugMix copy as a sample.

    ``draw_indices(kind, patches, batch, size) -> int64 [R, B or 1, L]`` is the source of the transform's
    randomness; replace it to inject recorded permutations.
    """

    name = "deyo"
    Settings = DeYOSettings
    fused = ("judge", "draw_indices")

    def __init__(self, context: MethodContext, settings: Sequence[DeYOSettings]) -> None:
        super().__init__(context, settings)
        log_classes = context.log_classes
        no_filter = torch.tensor(torch.inf, dtype=self.network.dtype, device=self.device)
        self.entropy_margin = torch.where(
            self.flags("filter_entropy"), self.column("entropy_margin") * log_classes, no_filter
        )
        self.plpd_threshold = torch.where(self.flags("filter_plpd"), self.column("plpd_threshold"), -no_filter)
        self.entropy_reference = self.column("entropy_reference") * log_classes
        self.plpd_reference = self.column("plpd_reference")
        self.weight_entropy = self.flags("weight_entropy")
        self.weight_plpd = self.flags("weight_plpd")
        self.by_batch = torch.tensor([s.loss_normalization == "batch" for s in settings], device=self.device)
        self.uses_plpd = torch.tensor([s.filter_plpd or s.weight_plpd for s in settings], device=self.device)
        self.any_plpd = any(s.filter_plpd or s.weight_plpd for s in settings)
        views = torch.tensor([s.copies if s.transform == "augmix" else 1 for s in settings], device=self.device)
        self.plpd_forwards = views * self.uses_plpd
        self.plpd_statistics = self._shared("plpd_statistics")
        if self.plpd_statistics == "frozen":
            self.statistics = "record"
        self.entropy_copies = self._shared("entropy_copies")
        self.kinds = self._runs_by_transform()
        uses_augmix = any(s.transform == "augmix" for s in settings)
        self.capturable = not (uses_augmix or self.entropy_copies)
        # With one run, only x' of the samples that passed the entropy filter need a forward; a graph cannot do that.
        self.gathers = context.runs == 1 and self.plpd_statistics != "batch" and not uses_augmix

    @classmethod
    def defaults(cls, situation: Situation) -> Mapping[str, Any]:
        values: dict[str, Any] = {
            "learning_rate": protocols.learning_rate(cls.name, situation),
            "adapted": protocols.adapted_subset(cls.name, situation),
            "plpd_threshold": protocols.plpd_threshold(situation),
        }
        if situation.benchmark in protocols.COLORED:
            values |= {"entropy_margin": 1.0, "entropy_reference": 1.0}
        if situation.protocol == "paper":
            values |= {"loss_normalization": "batch", "plpd_statistics": "batch"}
        return values

    def stages(self, pixels: Tensor) -> Iterator[Tensor]:
        first = self.forward_first(pixels)
        own = first.entropy.detach()
        certain = first.finite & (self._filter_entropy(pixels, own) < self.entropy_margin)
        certain_count = certain.sum(1)
        nothing, no_step = torch.zeros_like(certain), torch.ones_like(self.uses_plpd)
        report = self.make_report(first, passed_entropy=certain, passed_both=nothing, skipped=no_step)
        if self.entropy_copies:
            report.forwards = report.forwards * (1 + self.entropy_copies)
        yield certain.any()

        selected, plpd = certain, torch.zeros_like(own)
        if self.any_plpd:
            plpd = self._plpd(pixels, first, certain)
            selected = certain & (plpd > self.plpd_threshold)
            report.plpd = torch.where(certain & self.uses_plpd.unsqueeze(1), plpd, torch.nan)
            report.forwards = report.forwards + certain_count * self.plpd_forwards
            report.passed_both = selected
            if not self.coarse:
                yield selected.any()

        count = selected.sum(1)
        divisor = torch.where(self.by_batch, selected.shape[1], count)
        losses = masked_mean(self._weights(own, plpd) * first.entropy, selected, divisor)
        stepped = self.update(losses, (count > 0) & ~self._degenerate(first, certain_count))
        report.passed_both = selected
        report.skipped = ~stepped
        report.backwards = count * stepped

    def _filter_entropy(self, pixels: Tensor, own: Tensor) -> Tensor:
        if not self.entropy_copies:
            return own
        return mean_copy_entropy(self, pixels, self.entropy_copies)

    def _plpd(self, pixels: Tensor, first: Forward, certain: Tensor) -> Tensor:
        """PLPD [R, B] (paper, Eq. 9) of the samples in ``certain``; of no meaning elsewhere."""
        label = first.logits.argmax(-1)
        before = probability_of(first.safe.detach(), label)
        with torch.no_grad():
            if self.gathers and not self.coarse:
                return before - self._probability_gathered(first.x, certain, label)
            return before - self._probability_masked(pixels, first.x, certain, label)

    def _probability_masked(self, pixels: Tensor, x: Tensor, certain: Tensor, label: Tensor) -> Tensor:
        """p(x')[ŷ] [R, B], the mean over copies for AugMix; x' of every sample is forwarded (static shapes)."""
        mask = certain if self.plpd_statistics == "subset" else None
        statistics = "replay" if self.plpd_statistics == "frozen" else "batch"
        total, copies = torch.zeros(label.shape, dtype=self.network.dtype, device=self.device), 0
        for destroyed in self._destroyed(pixels, x, certain):
            logits = quiet(self.network(destroyed, mask=mask, statistics=statistics))
            total += probability_of(logits, label)
            copies += 1
        return total / copies

    def _probability_gathered(self, x: Tensor, certain: Tensor, label: Tensor) -> Tensor:
        """The same for one run, forwarding only the samples in ``certain`` (dynamic shapes)."""
        ((kind, patches), _), *_ = self.kinds
        rows = certain[0].nonzero().squeeze(1)
        indices = self.draw_indices(kind, patches, x.shape[1], x.shape[-1])
        order = None if indices is None else by_rank(indices, certain)[0, rows]
        destroyed = destroy(x[0, rows], kind, order, patches=patches).unsqueeze(0)
        statistics = "replay" if self.plpd_statistics == "frozen" else "batch"
        logits = quiet(self.network(destroyed, statistics=statistics))
        result = torch.zeros(label.shape, dtype=self.network.dtype, device=self.device)
        result[0, rows] = probability_of(logits, label[:, rows])[0]
        return result

    def _destroyed(self, pixels: Tensor, x: Tensor, certain: Tensor) -> Iterator[Tensor]:
        """x' [R, B, 3, H, W]: one, or as many as AugMix makes copies."""
        views = self._augmix_views(pixels)
        for copy in range(1 if views is None else len(views)):
            whole = torch.empty_like(x) if len(self.kinds) > 1 else None
            for (kind, patches), runs in self.kinds:
                if kind == "augmix":
                    part = _take(views[copy], runs)
                else:
                    part = self._shuffled(kind, patches, runs, x, certain)
                if whole is not None:
                    whole[runs] = part
            yield part if whole is None else whole

    def _augmix_views(self, pixels: Tensor) -> Tensor | None:
        copies = {s.copies for s in self.settings if s.transform == "augmix"}
        if not copies:
            return None
        if len(copies) > 1:
            raise ConfigError(f"runs side by side must share copies; got {sorted(copies)}")
        return augmix_views(self, pixels, copies.pop(), PLPD_STREAM)

    def _shuffled(self, kind: str, patches: int, runs: Tensor | None, x: Tensor, certain: Tensor) -> Tensor:
        indices = self.draw_indices(kind, patches, x.shape[1], x.shape[-1])
        some = _take(x, runs)
        rows = None if indices is None else _take(by_rank(indices, certain), runs).flatten(0, 1)
        return destroy(some.flatten(0, 1), kind, rows, patches=patches).view_as(some)

    def _runs_by_transform(self) -> list[tuple[tuple[str, int], Tensor | None]]:
        """((transform, patches), the runs that use it: int64 on the device, or None for all)."""
        kinds: dict[tuple[str, int], list[int]] = {}
        for run, s in enumerate(self.settings):
            kinds.setdefault((s.transform, s.patches if s.transform == "patch" else 0), []).append(run)
        if len(kinds) == 1:
            return [(next(iter(kinds)), None)]
        return [(kind, torch.tensor(runs, device=self.device)) for kind, runs in kinds.items()]

    def draw_indices(self, kind: str, patches: int, batch: int, size: int) -> Tensor | None:
        return draw(kind, self.seeds, self.steps, batch=batch, size=size, patches=patches)

    def _weights(self, own: Tensor, plpd: Tensor) -> Tensor:
        """α [R, B] (paper, Eq. 10); 1 for runs with both weights switched off."""
        entropy_part = torch.where(self.weight_entropy, (self.entropy_reference - own).exp(), 0)
        plpd_part = torch.where(self.weight_plpd, (plpd - self.plpd_reference).exp(), 0)
        return torch.where(self.weight_entropy | self.weight_plpd, entropy_part + plpd_part, 1)

    def _degenerate(self, first: Forward, certain_count: Tensor) -> Tensor:
        """bool [R]: runs whose BatchNorm saw one value per channel, in x (never adapted on) or in x'."""
        whole = self.network.single_valued(first.finite.sum(1))
        if not self.any_plpd or self.plpd_statistics != "subset":
            return whole
        return whole | (self.network.single_valued(certain_count) & self.uses_plpd)


def _take(values: Tensor, runs: Tensor | None) -> Tensor:
    return values if runs is None else values[runs]
