"""``score``: entropy and PLPD of every sample before adaptation (Tables 14, Figures 2a, 4, 5 and 6)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from deyo.analysis import score_images
from deyo.methods.deyo import DeYO
from deyo.protocols import Situation
from deyo.settings import Bounded, setting
from orchestrator.analyses.base import Findings, Subject


@dataclass(frozen=True, kw_only=True)
class ScoreSettings(Bounded):
    """Which PLPD, in which BatchNorm mode; the thresholds divide samples into Areas 1 to 4."""

    transform: Literal["patch", "pixel", "occlusion", "augmix"] = setting("patch", doc="how x' is made of x (Table 14)")
    statistics: Literal["running", "batch"] = setting(
        "running", doc="BatchNorm: the source's running statistics, or each batch's; the paper does not say which"
    )
    patches: int = setting(4, doc="P of the P×P grid of the patch transform", at_least=2)
    copies: int = setting(4, doc="AugMix copies whose mean PLPD counts (Table 14; 8 in Table 18, D20)", at_least=1)
    entropy_margin: float = setting(doc="τ_Ent as a fraction of ln C, as DeYO's", above=0)
    plpd_threshold: float = setting(doc="τ_PLPD, as DeYO's", at_least=-1, at_most=1)


class Score:
    """Nothing is adapted: the network as it was pretrained, watched."""

    Settings = ScoreSettings

    @classmethod
    def defaults(cls, situation: Situation) -> Mapping[str, Any]:
        deyo = DeYO.defaults(situation)
        return {"entropy_margin": deyo.get("entropy_margin", 0.5), "plpd_threshold": deyo["plpd_threshold"]}

    @staticmethod
    def run(subject: Subject) -> Findings:
        asked: ScoreSettings = subject.settings
        scores = score_images(
            subject.source,
            subject.pictures,
            kinds=[asked.transform],
            statistics=asked.statistics,
            seed=subject.config.seed,
            batch_size=subject.config.batch_size,
            patches=asked.patches,
            copies=asked.copies,
            device=subject.device,
            precision=subject.config.precision,
            class_columns=subject.class_columns,
        )
        certain = scores.entropy < asked.entropy_margin * math.log(subject.entropy_classes or scores.num_classes)
        views = asked.copies if asked.transform == "augmix" else 1
        return Findings(
            scores=scores,
            kind=asked.transform,
            passed_entropy=certain,
            passed_both=certain & (scores.plpd[asked.transform] > asked.plpd_threshold),
            forwards=len(scores.label) * (1 + views),
        )
