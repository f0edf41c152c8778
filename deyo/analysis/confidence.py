"""What confidence is worth: risk-coverage curves, accuracy by entropy quartile, the four areas (methods.md §4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deyo.analysis.scores import Scores
from deyo.confidence import aurc, excess_aurc, risk_coverage

TABLE_14 = {"entropy": 56.30, "augmix": 35.58, "pixel": 20.71, "patch": 14.75, "occlusion": 13.77}
"""The paper's AURC (%) on the worst group of Waterbirds."""


@dataclass(frozen=True, kw_only=True)
class RiskCurve:
    """One score's risk-coverage curve: coverage, risk float64 [n]; AURC and E-AURC as fractions."""

    score: str
    coverage: np.ndarray
    risk: np.ndarray
    aurc: float
    excess_aurc: float


@dataclass(frozen=True, kw_only=True)
class Quartiles:
    """Accuracy by entropy quartile: edges float64 [5] (min, Q1, Q2, Q3, max), accuracy and images [4]."""

    edges: np.ndarray
    accuracy: np.ndarray
    images: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Areas:
    """Areas 1-4 of the entropy/PLPD plane, in this order: accuracy (NaN where empty), share, images [4].

    1: high entropy, low PLPD; 2: high, high; 3: low, low; 4: low, high (the samples DeYO adapts on).
    ``area`` int64 [n] holds each sample's number.
    """

    accuracy: np.ndarray
    share: np.ndarray
    images: np.ndarray
    area: np.ndarray


def risk_curves(scores: Scores, *, group: int | None = None, names: Sequence[str] = ()) -> list[RiskCurve]:
    """A curve for each score (entropy and every kind of PLPD there is, or ``names``) within a group.

    The paper's Table 14 and Figure 5 take the worst group: ``group=scores.worst_group()``.
    """
    members = scores.members(group)
    correct = scores.correct[members]
    curves = []
    for name in names or ("entropy", *scores.plpd):
        confidence = scores.confidence(name)[members]
        coverage, risk = risk_coverage(confidence, correct)
        curves.append(
            RiskCurve(
                score=name,
                coverage=coverage,
                risk=risk,
                aurc=aurc(confidence, correct),
                excess_aurc=excess_aurc(confidence, correct),
            )
        )
    return curves


def entropy_quartiles(scores: Scores, *, group: int | None = None) -> Quartiles:
    """Accuracy in the intervals 0-Q1, Q1-Q2, Q2-Q3, Q3-max of entropy within a group (Figure 2a).

    Samples are cut by rank (stable), so that the quartiles hold equally many even where entropies tie.
    """
    members = scores.members(group)
    values, correct = scores.entropy[members], scores.correct[members]
    order = np.argsort(values, kind="stable")
    parts = np.array_split(order, 4)
    return Quartiles(
        edges=np.quantile(values, [0, 0.25, 0.5, 0.75, 1]),
        accuracy=np.array([correct[p].mean() if len(p) else math.nan for p in parts]),
        images=np.array([len(p) for p in parts]),
    )


def areas(
    scores: Scores,
    *,
    kind: str = "patch",
    entropy_margin: float = 0.5,
    plpd_threshold: float = 0.2,
    group: int | None = None,
) -> Areas:
    """Accuracy and share of Areas 1-4 (Figures 4 and 6).

    ``entropy_margin`` is τ_Ent as a fraction of ln C; both thresholds are DeYO's and strict as in its filters.
    """
    members = scores.members(group)
    low_entropy = scores.entropy[members] < entropy_margin * math.log(scores.num_classes)
    high_plpd = scores.plpd[kind][members] > plpd_threshold
    area = 1 + 2 * low_entropy + high_plpd
    correct = scores.correct[members]
    images = np.bincount(area, minlength=5)[1:]
    right = np.bincount(area, weights=correct, minlength=5)[1:]
    with np.errstate(invalid="ignore"):
        return Areas(accuracy=right / images, share=images / len(members), images=images, area=area)


def most_confident(scores: Scores, *, count: int = 4, group: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the ``count`` lowest-entropy right and wrong samples of a group (Figure 2b, c)."""
    members = scores.members(group)
    ordered = members[np.argsort(scores.entropy[members], kind="stable")]
    right = scores.correct[ordered]
    return ordered[right][:count], ordered[~right][:count]
