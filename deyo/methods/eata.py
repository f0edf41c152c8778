"""EATA and ETA (Niu et al., ICML 2022): reliable, non-redundant samples, and a Fisher anchor (methods.md §1.3)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from deyo import protocols
from deyo.losses import masked_mean, quiet
from deyo.methods.base import LockstepMethod
from deyo.methods.copies import mean_copy_entropy
from deyo.precision import numerics
from deyo.protocols import Situation
from deyo.random import hash64
from deyo.settings import Bounded, setting
from deyo.types import ConfigError, MethodContext

_FISHER_STREAM = 0xEA7A


@dataclass(frozen=True, kw_only=True)
class EATASettings(Bounded):
    """Settings of EATA; ``fisher_strength=0`` is ETA."""

    learning_rate: float = setting(doc="SGD step size; deyo.protocols.learning_rate (methods.md §1.0)", at_least=0)
    momentum: float = setting(0.9, doc="SGD momentum (methods.md §1.0)", at_least=0, below=1)
    adapted: Literal["all", "lower"] = setting("all", doc="norm layers adapted (methods.md §1.3)")
    entropy_margin: float = setting(
        0.4, doc="E0 as a fraction of ln C: samples above it are unreliable (EATA, Eq. 3)", above=0
    )
    redundancy_margin: float = setting(
        0.05,
        doc="ε: samples whose |cosine| with the EMA of probabilities reaches it are redundant (EATA, Eq. 5)",
        above=0,
    )
    probability_decay: float = setting(0.9, doc="decay of the EMA of probabilities (EATA, Eq. 5)", at_least=0, below=1)
    fisher_strength: float = setting(
        2000.0, doc="β of the anti-forgetting term; 0 switches it off (EATA, Eq. 8)", at_least=0
    )
    fisher_size: int = setting(2000, doc="clean source images for the Fisher matrix (methods.md §1.3)", at_least=1)
    entropy_copies: int = setting(
        0,
        doc="n > 0: filter by the mean entropy of n AugMix copies instead of the image's own (paper, Table 19)",
        at_least=0,
    )


class EATA(LockstepMethod):
    """L = mean over kept samples of exp(E0 − H)·H + β·Σ F·(θ − θ0)²; no step where none is kept.

    F is measured on ``context.source`` where it is given, else by the caller (``measure_fisher``); a step without
    it raises ConfigError unless every run's ``fisher_strength`` is 0. It depends on the network and the seed, not on
    the test images: ``context.options["fisher_kept"]``, a dict, keeps it from one group of runs to the next.
    """

    name = "eata"
    Settings = EATASettings

    def __init__(self, context: MethodContext, settings: Sequence[EATASettings]) -> None:
        super().__init__(context, settings)
        runs, classes = context.runs, context.num_classes
        self.entropy_margin = self.column("entropy_margin") * context.log_classes
        self.redundancy_margin = self.column("redundancy_margin")
        self.decay = self.column("probability_decay")
        self.strength = self.column("fisher_strength").squeeze(1)
        self.copies = self._shared("entropy_copies")
        self.capturable = not self.copies
        self.probability_ema = torch.zeros(runs, classes, dtype=self.network.dtype, device=self.device)
        self.has_ema = torch.zeros(runs, dtype=torch.bool, device=self.device)
        self.anchored = any(s.fisher_strength for s in settings)
        self.fisher = torch.zeros_like(self.network.theta)
        self.has_fisher = False
        if self.anchored and context.source is not None:
            self._recall_fisher(context.options.get("fisher_kept", {}))

    @classmethod
    def defaults(cls, situation: Situation) -> Mapping[str, Any]:
        return {
            "learning_rate": protocols.learning_rate("eata", situation),
            "adapted": protocols.adapted_subset("eata", situation),
        }

    def initial_state(self) -> Mapping[str, Tensor]:
        return {
            "probability_ema": torch.zeros_like(self.probability_ema),
            "has_ema": torch.zeros_like(self.has_ema),
        }

    def stages(self, pixels: Tensor) -> Iterator[Tensor]:
        if self.anchored and not self.has_fisher:
            raise ConfigError(
                f"{self.name}: fisher_strength is {max(self._each('fisher_strength')):g}, but there were no clean "
                "images to measure the Fisher matrix on: give MethodContext.source (or a benchmark), or set "
                "fisher_strength to 0"
            )
        first = self.forward_first(pixels)
        filtering = self._filter_entropy(pixels, first.entropy.detach())
        reliable = first.finite & (filtering < self.entropy_margin)
        probabilities = first.safe.detach().softmax(-1)
        kept = reliable & self._novel(probabilities)
        count = kept.sum(1)
        self._remember(probabilities, kept, count)
        self.make_report(first, passed_entropy=reliable, passed_both=kept, skipped=torch.ones_like(self.has_ema))
        if self.copies:
            self.report.forwards = self.report.forwards * (1 + self.copies)
        yield kept.any()

        weight = (self.entropy_margin - first.entropy.detach()).exp()
        losses = masked_mean(weight * first.entropy, kept, count) + self._anchor()
        stepped = self.update(losses, (count > 0) & ~self.network.single_valued(first.finite.sum(1)))
        self.report.skipped = ~stepped
        self.report.backwards = count * stepped

    def measure_fisher(self, batches: Iterable[Tensor]) -> None:
        """Diagonal Fisher [R, P]: mean over batches of the squared gradient of the batch's mean cross-entropy
        against its own argmax. Each batch: uint8 [R, B, 3, H, W] clean images.
        """
        total, count = torch.zeros_like(self.network.theta), 0
        for pixels in batches:
            with numerics(self.context.precision, side=pixels.shape[-1]):
                logits = quiet(self.network(self.network.normalize(pixels)))
                labels = logits.detach().argmax(-1)
                losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
                total += self.gradient(losses.mean(1).sum()).square()
            count += 1
        self.fisher.copy_(total / max(count, 1))
        self.has_fisher = True

    def _recall_fisher(self, kept: MutableMapping[Any, Tensor]) -> None:
        """Take the runs' rows from ``kept`` if all are there, else measure them and keep them.

        Rows were measured at the same number of runs side by side, so that they are the same bits either way.
        """
        places = [self._fisher_place(seed) for seed in self.context.seeds]
        if all(place in kept for place in places):
            self.fisher.copy_(torch.stack([kept[place] for place in places]))
            self.has_fisher = True
            return
        self.measure_fisher(self._source_batches())
        kept.update({place: row.clone() for place, row in zip(places, self.fisher)})

    def _fisher_place(self, seed: int) -> Hashable:
        """All that a run's Fisher matrix depends on."""
        context = self.context
        sizes = self._shared("fisher_size"), context.batch_size, context.runs
        columns = None if context.class_columns is None else tuple(context.class_columns)
        names = tuple(self.network.adapted_names)
        return context.network.sha256, context.source.fingerprint, int(seed), sizes, context.precision, columns, names

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See ``LockstepMethod.load_state_dict``; the state brings the Fisher matrix."""
        super().load_state_dict(state)
        self.has_fisher = True

    def _state_tensors(self) -> dict[str, Tensor]:
        return super()._state_tensors() | {"fisher": self.fisher}

    def _anchor(self) -> Tensor:
        if not self.anchored:
            return torch.zeros((), dtype=self.network.dtype, device=self.device)
        theta = torch.cat(list(self.network.parameters_adapted), dim=1)
        return self.strength * (self.fisher * (theta - self.network.source_theta).square()).sum(1)

    def _filter_entropy(self, pixels: Tensor, own: Tensor) -> Tensor:
        if not self.copies:
            return own
        return mean_copy_entropy(self, pixels, self.copies)

    def _novel(self, probabilities: Tensor) -> Tensor:
        """bool [R, B]: not redundant with the EMA; everything is while there is none."""
        likeness = F.cosine_similarity(self.probability_ema.unsqueeze(1), probabilities, dim=-1).abs()
        return (likeness < self.redundancy_margin) | ~self.has_ema.unsqueeze(1)

    def _remember(self, probabilities: Tensor, kept: Tensor, count: Tensor) -> None:
        mean = torch.where(kept.unsqueeze(-1), probabilities, 0).sum(1) / count.clamp(min=1).unsqueeze(1)
        blended = self.decay * self.probability_ema + (1 - self.decay) * mean
        fresh = torch.where(self.has_ema.unsqueeze(1), blended, mean)
        some = count > 0
        self.probability_ema.copy_(torch.where(some.unsqueeze(1), fresh, self.probability_ema))
        self.has_ema.logical_or_(some)

    def _source_batches(self) -> Iterable[Tensor]:
        """The run's own random subset of the source images, in batches of the test batch size."""
        source, size = self.context.source, self._shared("fisher_size")
        orders = []
        for seed in self.seeds.cpu():
            keys = hash64(seed, _FISHER_STREAM, torch.arange(len(source)))
            orders.append(keys.argsort(stable=True)[:size].numpy())
        batch = self.context.batch_size
        for start in range(0, len(orders[0]), batch):
            pixels = np.stack([source.pixels[order[start : start + batch]] for order in orders])
            yield torch.from_numpy(pixels).to(self.device).permute(0, 1, 4, 2, 3)


@dataclass(frozen=True, kw_only=True)
class ETASettings(EATASettings):
    """Settings of ETA: EATA's with the anchor off."""

    fisher_strength: float = setting(
        0.0, doc="β of the anti-forgetting term; 0, its default here, makes it ETA", at_least=0
    )


class ETA(EATA):
    """EATA without the Fisher anchor."""

    name = "eta"
    Settings = ETASettings
