"""Entropy, pseudo-label probability and masked means: the arithmetic that methods share."""

from __future__ import annotations

import torch
from torch import Tensor


def entropy(logits: Tensor) -> Tensor:
    """Shannon entropy in nats, −Σ softmax·log_softmax over the last axis: [..., C] -> [...] (paper, Eq. 1)."""
    return -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)


def finite_rows(logits: Tensor) -> Tensor:
    """bool [...]: samples all of whose logits [..., C] are finite."""
    return torch.isfinite(logits).all(-1)


def quiet(logits: Tensor) -> Tensor:
    """Logits with those of non-finite samples set to 0, so that masking their loss also masks its gradient."""
    return torch.where(finite_rows(logits).unsqueeze(-1), logits, 0)


def masked_mean(values: Tensor, mask: Tensor, count: Tensor | None = None) -> Tensor:
    """Mean of values [R, B] over mask bool [R, B] -> [R]; 0 for a run with none. ``count`` [R] replaces |mask|."""
    total = torch.where(mask, values, 0).sum(1)
    divisor = mask.sum(1) if count is None else count
    return total / divisor.clamp(min=1)


def probability_of(logits: Tensor, label: Tensor) -> Tensor:
    """softmax(logits)[label]: [..., C], [...] -> [...]."""
    return logits.softmax(-1).gather(-1, label.unsqueeze(-1)).squeeze(-1)
