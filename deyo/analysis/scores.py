"""Confidence scores of a network before adaptation: entropy, and PLPD under each transform (methods.md §4).

Everything the paper analyses on a pre-adaptation model (risk-coverage curves, entropy quartiles, areas, the most
confident samples) is computed from one ``Scores``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from deyo.augment import augmix
from deyo.losses import entropy, finite_rows, probability_of, quiet
from deyo.model import RunsNetwork
from deyo.precision import numerics
from deyo.random import hash64, permutations
from deyo.transforms import destroy
from deyo.types import ConfigError, ImageSet, MethodContext, Network

KINDS = ("augmix", "pixel", "patch", "occlusion")
"""PLPD variants, in the order of the paper's Table 14."""

STATISTICS = ("running", "batch")
"""BatchNorm modes: the source's running statistics, or those of each batch (as methods adapt)."""

_BATCH_ORDER, _VIEWS, _SHUFFLE = 1, 2, 3


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Per image of a set, all [N]: label, group (-1: none), prediction int64; entropy (nats) float64.

    ``plpd`` maps each computed kind to float64 [N], the fall of the predicted class's probability.
    ``statistics`` says which BatchNorm mode made them, ``num_classes`` is C.
    """

    label: np.ndarray
    group: np.ndarray
    prediction: np.ndarray
    entropy: np.ndarray
    plpd: dict[str, np.ndarray]
    num_classes: int
    statistics: str

    @property
    def correct(self) -> np.ndarray:
        """bool [N]."""
        return self.prediction == self.label

    def confidence(self, name: str) -> np.ndarray:
        """Float [N], higher is more confident: "entropy" (negated) or a kind of PLPD."""
        return -self.entropy if name == "entropy" else self.plpd[name]

    def members(self, group: int | None) -> np.ndarray:
        """Indices of a group's images, in order; of all images for None. ValueError if the group is empty."""
        chosen = np.arange(len(self.label)) if group is None else np.flatnonzero(self.group == group)
        if not len(chosen):
            raise ValueError(f"group {group} has no images: the groups present are {np.unique(self.group)}")
        return chosen

    def worst_group(self) -> int:
        """The group of lowest accuracy (the paper's analyses look at it). ValueError without groups."""
        present = np.unique(self.group[self.group >= 0])
        if not len(present):
            raise ValueError("these images have no groups: choose images with groups, or group=None for all")
        accuracy = [self.correct[self.group == g].mean() for g in present]
        return int(present[int(np.argmin(accuracy))])


def score_images(
    network: Network,
    images: ImageSet,
    *,
    kinds: Sequence[str] = KINDS,
    statistics: str = "running",
    seed: int = 0,
    batch_size: int = 64,
    patches: int = 4,
    copies: int = 4,
    device: torch.device | str = "cpu",
    precision: str = "tf32",
    class_columns: np.ndarray | None = None,
) -> Scores:
    """Score every image of a set with the source network; nothing is adapted.

    ``kinds`` of ``KINDS``; ``patches`` is P of the patch transform, ``copies`` the AugMix copies whose mean PLPD
    counts (4 in Table 14). With ``statistics`` "batch", images are put into batches in an order drawn from
    ``seed``, and x' is normalised by the statistics of its own batch. The paper does not say which mode it used:
    report both. Raises ConfigError for unknown names.
    """
    _check(kinds, statistics)
    context = MethodContext(
        network=network,
        seeds=[seed],
        batch_size=batch_size,
        device=torch.device(device),
        precision=precision,
        class_columns=class_columns,
    )
    scorer = _Scorer(RunsNetwork(context, None), network, statistics, patches, copies, seed)
    rows: dict[str, np.ndarray] = {}
    with torch.no_grad(), numerics(precision, side=images.pixels.shape[1]):
        for index, pixels in _batches(images, batch_size, seed, context.device):
            for name, values in scorer.score(pixels, index, kinds).items():
                target = rows.setdefault(name, np.empty(len(images), dtype=values.dtype))
                target[index] = values
    blank = np.empty(0)
    return Scores(
        label=np.asarray(images.labels, dtype=np.int64),
        group=np.full(len(images), -1) if images.groups is None else np.asarray(images.groups, dtype=np.int64),
        prediction=rows.get("prediction", blank.astype(np.int64)),
        entropy=rows.get("entropy", blank),
        plpd={kind: rows.get(kind, blank) for kind in kinds},
        num_classes=network.num_classes if class_columns is None else len(class_columns),
        statistics=statistics,
    )


@dataclass(frozen=True)
class _Scorer:
    model: RunsNetwork
    network: Network
    statistics: str
    patches: int
    copies: int
    seed: int

    def score(self, pixels: Tensor, index: np.ndarray, kinds: Sequence[str]) -> dict[str, np.ndarray]:
        """prediction, entropy and each kind's PLPD of pixels uint8 [B, 3, H, W]."""
        x = self.model.normalize(pixels.unsqueeze(0))
        logits = self._logits(x)
        finite = finite_rows(logits)
        label, logits = logits.argmax(-1), quiet(logits)
        before = probability_of(logits, label)
        keys = hash64(torch.as_tensor(index, device=pixels.device), self.seed)
        # Without finite logits there is no confidence at all.
        result = {"prediction": label, "entropy": torch.where(finite, entropy(logits), torch.inf)}
        for kind in kinds:
            after = [probability_of(quiet(self._logits(v)), label) for v in self._views(kind, pixels, x, keys)]
            result[kind] = torch.where(finite, before - torch.stack(after).mean(0), -torch.inf)
        return {name: _array(values[0]) for name, values in result.items()}

    def _logits(self, x: Tensor) -> Tensor:
        return self.model(x, statistics=self.statistics)

    def _views(self, kind: str, pixels: Tensor, x: Tensor, keys: Tensor) -> Tensor:
        """x' [copies or 1, 1, B, 3, H, W]."""
        if kind == "augmix":
            make = partial(augmix, mean=self.network.mean, std=self.network.std, dtype=x.dtype)
            return make(pixels, copies=self.copies, keys=hash64(keys, _VIEWS)).unsqueeze(1)
        order = None
        if kind != "occlusion":
            length = self.patches**2 if kind == "patch" else x.shape[-1] ** 2
            order = permutations(hash64(keys, _SHUFFLE), length=length)
        return destroy(x[0], kind, order, patches=self.patches)[None, None]


def _batches(images: ImageSet, batch_size: int, seed: int, device: torch.device) -> Iterator[tuple[np.ndarray, Tensor]]:
    """(indices, pixels uint8 [B, 3, H, W]) in an order drawn from the seed."""
    order = permutations(torch.tensor(seed), _BATCH_ORDER, length=len(images)).numpy()
    for start in range(0, len(order), batch_size):
        index = order[start : start + batch_size]
        array = np.ascontiguousarray(images.pixels[index])
        yield index, torch.from_numpy(array).to(device).permute(0, 3, 1, 2)


def _array(values: Tensor) -> np.ndarray:
    return values.cpu().numpy().astype(np.float64 if values.is_floating_point() else np.int64)


def _check(kinds: Sequence[str], statistics: str) -> None:
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(f"PLPD kind {kind!r} is unknown: choose among {', '.join(KINDS)}")
    if statistics not in STATISTICS:
        raise ConfigError(f"statistics {statistics!r} is unknown: choose one of {', '.join(STATISTICS)}")
