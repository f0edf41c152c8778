"""``grad-cam``: where the network looks in its most confident right and wrong answers (Figure 2b, c)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from deyo.analysis import grad_cam, most_confident, score_images
from deyo.protocols import Situation
from deyo.settings import Bounded, setting
from orchestrator.analyses.base import Findings, Subject, pixels_of
from orchestrator.analyses.pictures import encoded


@dataclass(frozen=True, kw_only=True)
class GradCamSettings(Bounded):
    """Which samples, and which layer. The paper names neither layer nor BatchNorm mode."""

    count: int = setting(4, doc="right and wrong samples each, the lowest entropy first", at_least=1)
    among: Literal["worst-group", "all"] = setting("worst-group", doc="where they are chosen (all: without groups)")
    layer: str = setting("", doc="a convolution's name; empty: the last one of layer4, or of the network")
    statistics: Literal["running", "batch"] = setting("running", doc="BatchNorm mode of predictions and maps")


class GradCamAnalysis:
    """Every image is scored; a map is made of the chosen ones alone."""

    Settings = GradCamSettings

    @classmethod
    def defaults(cls, situation: Situation) -> Mapping[str, Any]:
        return {}

    @staticmethod
    def run(subject: Subject) -> Findings:
        asked: GradCamSettings = subject.settings
        shared: dict[str, Any] = {
            "statistics": asked.statistics,
            "device": subject.device,
            "precision": subject.config.precision,
        }
        scores = score_images(
            subject.source,
            subject.pictures,
            kinds=[],
            seed=subject.config.seed,
            batch_size=subject.config.batch_size,
            class_columns=subject.class_columns,
            **shared,
        )
        group = scores.worst_group() if asked.among == "worst-group" and (scores.group >= 0).any() else None
        chosen = np.concatenate(most_confident(scores, count=asked.count, group=group))
        pixels = pixels_of(subject.pictures, chosen)
        maps = grad_cam(subject.source, pixels, layer=asked.layer or None, **shared)
        numbers = np.arange(len(scores.label)) if subject.index is None else subject.index
        examples = [
            {
                "index": int(numbers[k]),
                "label": int(scores.label[k]),
                "prediction": int(scores.prediction[k]),
                "entropy": _finite(scores.entropy[k]),
                "correct": bool(scores.correct[k]),
                "image": encoded(pixels[i].permute(1, 2, 0).numpy()),
                "heat": encoded(np.round(255 * maps.heat[i]).astype(np.uint8)),
            }
            for i, k in enumerate(chosen)
        ]
        name = "all samples" if group is None else subject.group_names[group]
        everywhere = np.isfinite(scores.entropy)
        return Findings(
            scores=scores,
            passed_entropy=everywhere,
            passed_both=everywhere,
            picture={"layer": maps.layer, "among": name, "examples": examples},
            forwards=len(scores.label) + len(chosen),
        )


def _finite(value: float) -> float | None:
    return round(float(value), 6) if math.isfinite(value) else None
