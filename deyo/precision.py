"""Named numeric profiles. A profile decides numbers, so it is part of a run's identity and named in tables.

- ``float32``: plain float32, no TF32 anywhere, and of cuDNN's algorithms the deterministic ones.
- ``tf32`` (default): float32 storage; convolutions and matrix products of images from 64×64 pixels on may use TF32 on
  GPUs that have it. On a CPU, and for smaller images, the same as ``float32``.
- ``bf16``: frozen weights and activations in bfloat16; adapted parameters, norm statistics, logits' softmax and
  losses in float32.
- ``float64``: everything in double precision (parity tests).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch.backends import cuda

from deyo.types import ConfigError

TF32_FROM_SIDE = 64
"""Networks of smaller images wait for memory and launches, not for products: TF32 would cost digits and save little.
Its rounding moved single runs of methods that select samples by points (experiments/benchmarks/RESULTS.md)."""

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
def numerics(profile: str, *, side: int, autocast_on: torch.device | None = None) -> Iterator[None]:
    """Set the backend flags of ``profile`` for images of ``side`` pixels for the block, and put them back.

    With ``autocast_on``, ``bf16`` also turns autocast on there: for networks whose weights stay in float32.
    """
    allow = profile == "bf16" or (profile == "tf32" and side >= TF32_FROM_SIDE)
    # For float32 the memory-saving attention kernels are several times slower than plain matrix products.
    plain_attention = profile in ("float32", "tf32")
    switches: list[tuple[Callable[[], bool], Callable[[bool], None], bool]] = [
        # For plain float32 cuDNN may take kernels that add up in any order, so that numbers differ from run to run.
        (
            lambda: torch.backends.cudnn.deterministic,
            _set_cudnn_deterministic,
            torch.backends.cudnn.deterministic or not allow,
        ),
        (lambda: torch.backends.cudnn.allow_tf32, _set_cudnn_tf32, allow),
        (lambda: cuda.matmul.allow_tf32, _set_matmul_tf32, allow),
        (
            torch.backends.cuda.mem_efficient_sdp_enabled,
            torch.backends.cuda.enable_mem_efficient_sdp,
            not plain_attention,
        ),
    ]
    before = [read() for read, _, _ in switches]
    autocast = contextlib.nullcontext()
    if autocast_on is not None and profile == "bf16":
        autocast = torch.autocast(autocast_on.type, dtype=torch.bfloat16)
    try:
        for _, write, value in switches:
            write(value)
        with autocast:
            yield
    finally:
        for (_, write, _), value in zip(switches, before):
            write(value)


def _set_cudnn_deterministic(value: bool) -> None:
    torch.backends.cudnn.deterministic = value


def _set_cudnn_tf32(value: bool) -> None:
    torch.backends.cudnn.allow_tf32 = value


def _set_matmul_tf32(value: bool) -> None:
    cuda.matmul.allow_tf32 = value
