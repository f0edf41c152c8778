"""What an analysis is given, and what it finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch

from deyo.analysis import Scores
from deyo.protocols import Situation
from deyo.types import ConfigError, ImageSet, Network
from orchestrator.types import RunConfig


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What an analysis looks at: the images of the run's stream in its order (``index``: their numbers in the whole
    set), and the network as it was pretrained. Both are None for analyses that need neither. ``entropy_classes`` is
    the C of thresholds where it is not the number of logits (ImageNet-R).
    """

    config: RunConfig
    settings: Any
    device: torch.device
    images: ImageSet | None = None
    index: np.ndarray | None = None
    network: Network | None = None
    group_names: tuple[str, ...] = ()
    class_columns: np.ndarray | None = None
    entropy_classes: int | None = None

    @property
    def pictures(self) -> ImageSet:
        """The images. Raises ``ConfigError`` if there are none to look at."""
        if self.images is None:
            raise ConfigError(f"{self.config.method} needs a benchmark with images, not {self.config.benchmark!r}")
        return self.images

    @property
    def source(self) -> Network:
        """The network. Raises ``ConfigError`` if there is none."""
        if self.network is None:
            raise ConfigError(f"{self.config.method} needs a network, not {self.config.model!r}")
        return self.network


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What an analysis found: scores of every image, with the two filters' verdicts and PLPD of the chosen kind;
    ``picture``, JSON values from which the report draws; ``forwards`` in samples.
    """

    scores: Scores | None = None
    kind: str = ""
    passed_entropy: np.ndarray | None = None
    passed_both: np.ndarray | None = None
    picture: Mapping[str, Any] | None = None
    forwards: int = 0


class Analysis(Protocol):
    """One analysis: a settings dataclass, its defaults, and a function."""

    Settings: ClassVar[type]

    @classmethod
    def defaults(cls, situation: Situation) -> Mapping[str, Any]:
        """Settings that depend on benchmark, scenario and protocol."""

    @staticmethod
    def run(subject: Subject) -> Findings:
        """Look at the subject."""


def pixels_of(images: ImageSet, index: np.ndarray) -> torch.Tensor:
    """Images as uint8 [n, 3, H, W]."""
    return torch.from_numpy(np.ascontiguousarray(images.pixels[index])).permute(0, 3, 1, 2)
