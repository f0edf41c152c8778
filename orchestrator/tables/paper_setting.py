"""Which runs are of the setting that the paper's numbers are of: options of images and stream, batch size, precision,
and the network. Both protocols are the paper's: the one is its code's, the other its text's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

INFINITE_RATIO = 500_000
"""What stands for an imbalance ratio of ∞ (methods.md §3.2)."""

OPTIONS: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "imagenet-c": {"imbalance_ratio": (INFINITE_RATIO,), "each_image_once": (None, False)},
    "imagenet-r": {"entropy_classes": (1000,), "imbalance_ratio": (INFINITE_RATIO,), "each_image_once": (None, True)},
    "visda-2021": {"classes": (1000,), "imbalance_ratio": (INFINITE_RATIO,), "each_image_once": (None, True)},
    "waterbirds": {"preprocessing": ("official",)},
    "colored-mnist": {"recipe": ("official", "paper"), "numpy_seed": (2024,)},
}
"""The values of a benchmark's and its stream's options that are the paper's: its code's, or its text's."""

BATCH_SIZE, BATCH_SIZES = 64, {"batch-size-1": 1}
"""Images in a batch: of any scenario, and of those that have another."""
PRECISIONS = ("tf32", "float32", "float64")
"""Whole ones: the paper's networks ran in PyTorch's default, TF32 or FP32 by the card."""

FLAGS = ("paper", "pretrained-init", "plpd")
"""Options in a network's name that are the paper's."""
START_FROM_RANDOM = ("colored-mnist",)
"""Benchmarks whose networks the paper starts from ImageNet weights, and this project from random ones by default:
compared all the same, with a note.
"""


def is_papers(axes: Mapping[str, Any]) -> bool:
    """Whether the options and the network of these runs are the paper's."""
    allowed = (*FLAGS, "random-init") if axes["benchmark"] in START_FROM_RANDOM else FLAGS
    return axes["benchmark"] in OPTIONS and not other_options(axes) and all(f in allowed for f in flags(axes))


def other_options(axes: Mapping[str, Any]) -> dict[str, Any]:
    """The options, batch size and precision that are not the paper's, on a benchmark of the paper."""
    papers = OPTIONS.get(axes["benchmark"])
    if papers is None:
        return {}
    allowed = {**papers, "batch_size": (BATCH_SIZES.get(axes["scenario"], BATCH_SIZE),), "precision": PRECISIONS}
    given = {**axes["benchmark_options"], **axes["scenario_options"]}
    given |= {name: axes[name] for name in ("batch_size", "precision")}
    return {k: v for k, v in given.items() if v not in allowed.get(k, ())}


def is_part(axes: Mapping[str, Any]) -> bool:
    """Whether the runs saw but the beginning of their stream, where the paper's saw all of it."""
    return axes["max_images"] is not None


def flags(axes: Mapping[str, Any]) -> list[str]:
    """The options in the network's name: ``["plpd"]`` of ``resnet50-bn+plpd``."""
    return axes["model"].split("+")[1:]


def starts_from_random(axes: Mapping[str, Any]) -> bool:
    """Whether the network started from random weights where the paper's started from ImageNet's."""
    return axes["benchmark"] in START_FROM_RANDOM and "pretrained-init" not in flags(axes)
