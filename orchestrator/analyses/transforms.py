"""``transforms``: one image as it is and under each transform, side by side (Figure 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from deyo.analysis import transformed_examples
from deyo.protocols import Situation
from deyo.settings import Bounded, setting
from orchestrator.analyses.base import Findings, Subject, pixels_of
from orchestrator.analyses.pictures import encoded


@dataclass(frozen=True, kw_only=True)
class TransformsSettings(Bounded):
    """How many images, and into how many patches."""

    count: int = setting(3, doc="images shown, the first of the run's stream", at_least=1)
    patches: int = setting(4, doc="P of the P×P grid of the patch transform", at_least=2)


class Transforms:
    """Pictures alone: no network looks at them."""

    Settings = TransformsSettings

    @classmethod
    def defaults(cls, situation: Situation) -> Mapping[str, Any]:
        return {}

    @staticmethod
    def run(subject: Subject) -> Findings:
        asked: TransformsSettings = subject.settings
        images = subject.pictures
        shown = np.arange(min(asked.count, len(images)))
        numbers = shown if subject.index is None else subject.index[shown]
        examples = []
        for k, pixels in zip(shown, pixels_of(images, shown)):
            views = transformed_examples(pixels, patches=asked.patches, seed=subject.config.seed)
            examples.append(
                {
                    "index": int(numbers[k]),
                    "label": int(images.labels[k]),
                    "views": {name: encoded(view) for name, view in views.items()},
                }
            )
        return Findings(picture={"examples": examples})
