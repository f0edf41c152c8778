"""Named numeric profiles. A profile decides numbers, so it is part of a run's identity and named in tables.

- ``float32``: plain float32, no TF32 anywhere.
- ``tf32`` (default): float32 storage; convolutions and matrix products may use TF32 on GPUs that have it. On a
  CPU the same as ``float32``.
- ``bf16``: frozen weights and activations in bfloat16; adapted parameters, norm statistics, logits' softmax and
  losses in float32.
- ``float64``: everything in double precision (parity tests).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from deyo.types import ConfigError

PROFILES = ("float32", "tf32", "bf16", "float64")


def check_profile(name: str) -> str:
    """``name`` if it is a profile; ConfigError otherwise."""
    if name not in PROFILES:
        raise ConfigError(f"precision {name!r} is unknown: choose one of {', '.join(PROFILES)}")
    return name


def parameter_dtype(profile: str) -> torch.dtype:
    """The dtype of adapted parameters, norm statistics, logits and losses under ``profile``."""
    return torch.float64 if profile == "float64" else torch.float32


def activation_dtype(profile: str) -> torch.dtype:
    """The dtype of frozen weights and of activations between layers under ``profile``."""
    return torch.bfloat16 if profile == "bf16" else parameter_dtype(profile)


@contextlib.contextmanager
def numerics(profile: str, autocast_on: torch.device | None = None) -> Iterator[None]:
    """Set the backend flags of ``profile`` for the block, and put them back.

    With ``autocast_on``, ``bf16`` also turns autocast on there: for networks whose weights stay in float32.
    """
    allow = profile in ("tf32", "bf16")
    before = (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32)
    torch.backends.cudnn.allow_tf32 = allow
    torch.backends.cuda.matmul.allow_tf32 = allow
    autocast = contextlib.nullcontext()
    if autocast_on is not None and profile == "bf16":
        autocast = torch.autocast(autocast_on.type, dtype=torch.bfloat16)
    try:
        with autocast:
            yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
