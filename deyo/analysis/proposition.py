"""Proposition 1 on synthetic disentangled factors: entropy cannot tell harmful samples (paper, Sec. 2.3).

A linear classifier a = θ·v(x) is adapted by one step of entropy minimisation on a single sample x. The change of
the gap between the classes' mean logits is then C'·ŷ·v(x)·(E₊[v] − E₋[v]) with C' > 0: its sign is that of the
proposition's score. Samples whose score is negative are harmful, however low their entropy.

Factors come in four blocks by their correlation with the label in training and at test time: pp (positive in
both: CPR), pn (positive in training only: TRAP), np and nn. They are non-negative, as disentangled factors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCKS = ("pp", "pn", "np", "nn")
_SIGNS = {"pp": (1, 1), "pn": (1, -1), "np": (-1, 1), "nn": (-1, -1)}


@dataclass(frozen=True, kw_only=True)
class Factors:
    """Samples of the synthetic world: values float64 [n, d], label int64 [n] in {-1, +1}; blocks name columns."""

    values: Tensor
    label: Tensor
    blocks: tuple[str, ...]

    def block(self, name: str) -> Tensor:
        """The columns of one block, [n, d / 4]."""
        return self.values[:, [b == name for b in self.blocks]]

    @property
    def mean_difference(self) -> Tensor:
        """E₊[v] − E₋[v], [d]."""
        return self.values[self.label > 0].mean(0) - self.values[self.label < 0].mean(0)


@dataclass(frozen=True, kw_only=True)
class GapChanges:
    """For each sample, what one step on it alone does; all float64 [n].

    score: ŷ·v(x)·(E₊v − E₋v), the left side of the proposition's condition. change: of the gap between the
    classes' mean logits, measured. entropy in nats. cpr, trap: the parts of the score that CPR (pp) and TRAP
    (pn) factors contribute, (7.a) and (7.b).
    """

    score: Tensor
    change: Tensor
    entropy: Tensor
    cpr: Tensor
    trap: Tensor

    @property
    def harmful(self) -> Tensor:
        """bool [n]: the sample brings the classes closer together."""
        return self.score < 0


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """Adaptation over steps: gap between the classes' mean logits and accuracy, float64 [steps + 1]."""

    gap: Tensor
    accuracy: Tensor


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The small experiment behind the picture: changes by sample, and adaptation on three choices of samples.

    trajectories: "all" samples, the "low-entropy" half, the "harmless" ones (by the proposition's score).
    """

    changes: GapChanges
    trajectories: dict[str, Trajectory]


def make_factors(count: int, *, train: bool, seed: int, width: int = 4, strength: float = 0.8) -> Factors:
    """``count`` samples with ``width`` factors a block; ``strength`` in [0, 1) is how far label means differ."""
    generator = torch.Generator().manual_seed(seed)
    label = 2 * torch.randint(0, 2, (count,), generator=generator) - 1
    blocks = tuple(name for name in BLOCKS for _ in range(width))
    sign = torch.tensor([_SIGNS[name][0 if train else 1] for name in blocks], dtype=torch.float64)
    mean = 1 + strength * label.unsqueeze(1) * sign
    noise = torch.rand(count, len(blocks), generator=generator, dtype=torch.float64)
    return Factors(values=mean * noise, label=label, blocks=blocks)


def train_classifier(factors: Factors, *, steps: int = 500, rate: float = 0.5) -> Tensor:
    """θ float64 [d] of a logistic regression without intercept, by full-batch gradient descent."""
    theta = torch.zeros(factors.values.shape[1], dtype=torch.float64, requires_grad=True)
    for _ in range(steps):
        margin = factors.label * (factors.values @ theta)
        (gradient,) = torch.autograd.grad(F.softplus(-margin).mean(), theta)
        theta = (theta - rate * gradient).detach().requires_grad_(True)
    return theta.detach()


def binary_entropy(logit: Tensor) -> Tensor:
    """Entropy (nats) of a prediction with p = σ(logit)."""
    return F.softplus(logit) - logit * logit.sigmoid()


def gap(theta: Tensor, factors: Factors) -> Tensor:
    """Difference of the classes' mean logits under θ [..., d] -> [...]."""
    logits = theta @ factors.values.T
    return logits[..., factors.label > 0].mean(-1) - logits[..., factors.label < 0].mean(-1)


def gap_changes(theta: Tensor, factors: Factors, *, rate: float = 0.01) -> GapChanges:
    """For every sample: one SGD step of entropy minimisation on it alone from θ, and what it does to the gap."""
    values = factors.values
    copies = theta.repeat(len(values), 1).requires_grad_(True)
    logit = (copies * values).sum(1)
    (gradient,) = torch.autograd.grad(binary_entropy(logit).sum(), copies)
    stepped = (copies - rate * gradient).detach()
    pseudo_label = torch.where(logit.detach() > 0, 1.0, -1.0).to(values.dtype)
    parts = pseudo_label.unsqueeze(1) * values * factors.mean_difference
    return GapChanges(
        score=parts.sum(1),
        change=gap(stepped, factors) - gap(theta, factors),
        entropy=binary_entropy(logit.detach()),
        cpr=parts[:, [b == "pp" for b in factors.blocks]].sum(1),
        trap=parts[:, [b == "pn" for b in factors.blocks]].sum(1),
    )


def adapt_linear(theta: Tensor, factors: Factors, choice: str, *, steps: int, rate: float) -> Trajectory:
    """Entropy minimisation on "all", the "low-entropy" half or the "harmless" samples, chosen anew each step."""
    gaps, accuracies = [], []
    for step in range(steps + 1):
        logit = factors.values @ theta
        gaps.append(gap(theta, factors))
        accuracies.append(((logit > 0) == (factors.label > 0)).double().mean())
        if step < steps:
            changes = gap_changes(theta, factors)
            chosen = {
                "all": torch.ones_like(changes.harmful),
                "low-entropy": changes.entropy <= changes.entropy.median(),
                "harmless": ~changes.harmful,
            }[choice]
            weights = theta.clone().requires_grad_(True)
            loss = (binary_entropy(factors.values @ weights) * chosen).sum() / chosen.sum().clamp(min=1)
            theta = (theta - rate * torch.autograd.grad(loss, weights)[0]).detach()
    return Trajectory(gap=torch.stack(gaps), accuracy=torch.stack(accuracies))


def run_experiment(
    *, seed: int = 0, samples: int = 500, width: int = 4, strength: float = 0.8, steps: int = 50, rate: float = 0.5
) -> Experiment:
    """Train on one world, meet the other: what each test sample does, and where adaptation leads."""
    source = make_factors(samples, train=True, seed=2 * seed, width=width, strength=strength)
    target = make_factors(samples, train=False, seed=2 * seed + 1, width=width, strength=strength)
    theta = train_classifier(source)
    return Experiment(
        changes=gap_changes(theta, target),
        trajectories={
            choice: adapt_linear(theta, target, choice, steps=steps, rate=rate)
            for choice in ("all", "low-entropy", "harmless")
        },
    )
