"""The paper's analyses that are more than a sweep, as functions that return plain arrays.

    scores = score_images(network, images, statistics="running")         # or "batch"
    risk_curves(scores, group=scores.worst_group())                      # Table 14, Figure 5
    entropy_quartiles(scores, group=...)                                 # Figure 2a
    right, wrong = most_confident(scores, group=...)                     # Figure 2b, c: with grad_cam
    areas(scores, plpd_threshold=0.2)                                    # Figures 4, 6
    transformed_examples(pixels)                                         # Figure 3
    measure_efficiency(method, stream)                                   # Table 7
    proposition.run_experiment()                                         # Proposition 1

``to_plain`` turns any of the results into JSON values for the result store.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import torch

from deyo.analysis import proposition
from deyo.analysis.confidence import (
    TABLE_14,
    Areas,
    Quartiles,
    RiskCurve,
    areas,
    entropy_quartiles,
    most_confident,
    risk_curves,
)
from deyo.analysis.efficiency import Efficiency, measure_efficiency
from deyo.analysis.pictures import GradCam, grad_cam, last_convolution, transformed_examples
from deyo.analysis.scores import KINDS, STATISTICS, Scores, score_images

__all__ = [
    "KINDS",
    "STATISTICS",
    "TABLE_14",
    "Areas",
    "Efficiency",
    "GradCam",
    "Quartiles",
    "RiskCurve",
    "Scores",
    "areas",
    "entropy_quartiles",
    "grad_cam",
    "last_convolution",
    "measure_efficiency",
    "most_confident",
    "proposition",
    "risk_curves",
    "score_images",
    "to_plain",
    "transformed_examples",
]


def to_plain(result: Any) -> Any:
    """Dataclasses, arrays, tensors and containers of them as JSON values; a float that is not finite is None."""
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return {f.name: to_plain(getattr(result, f.name)) for f in dataclasses.fields(result)}
    if isinstance(result, dict):
        return {str(key): to_plain(value) for key, value in result.items()}
    if isinstance(result, list | tuple):
        return [to_plain(value) for value in result]
    if isinstance(result, torch.Tensor | np.ndarray | np.generic):
        return to_plain(result.tolist())
    if isinstance(result, float) and not math.isfinite(result):
        return None
    return result
