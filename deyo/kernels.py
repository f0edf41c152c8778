"""How Inductor's kernels take sums over maps whose channels lie side by side (channels-last).

Where there are many sums (one for each sample and channel), Inductor takes several shapes of a kernel into account and,
when it must choose by rule, may take one that reads eight channels of a row at a time: half of what a GPU fetches for
them is thrown away. Here such kernels read 64 channels of some rows: as many as were fastest on an H200 over the maps
of a ResNet-50 (experiments/benchmarks/RESULTS.md).
"""

from __future__ import annotations

from typing import Any

from torch._inductor import config
from torch._inductor.choices import InductorChoices
from torch._inductor.codegen.triton import FixedTritonConfig
from torch._inductor.virtualized import V

COLUMNS = 64
ROWS_AND_WARPS = ((2048, 32, 8), (128, 16, 4), (0, 8, 2))
"""(From so many rows on, rows at a time, warps)."""
MATRIX = 16
"""The matrix is at least so many times as large as all else that a kernel reads along its rows' axis: a guess (a value
for each row of a LayerNorm over 768 channels is a 392nd)."""
FEWEST_SUMS, FEWEST_ROWS, FEWEST_VALUES = 4096, 16, 2**22
"""Smaller kernels are left to Inductor: they would leave multiprocessors without work, or take no time anyway."""


class ChannelsLastChoices(InductorChoices):
    """Inductor's own choices but for sums down the columns of a matrix of many columns."""

    def triton_kernel_kwargs(
        self, kernel_cls: Any, features: Any, groups: Any, kernel_kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        kwargs = super().triton_kernel_kwargs(kernel_cls, features, groups, kernel_kwargs)
        if not sums_columns(features, kwargs.get("tiling_scores") or {}):
            return kwargs
        blocks = FixedTritonConfig(blocks_for(int(features.reduction_numel)))
        return {**kwargs, "fixed_config": blocks, "override_persistent_reduction": False}

    @classmethod
    def uuid(cls) -> str:
        """What compiled code is kept by, beside the source."""
        return f"channels-last-{COLUMNS}-{ROWS_AND_WARPS}-{MATRIX}-{FEWEST_SUMS}-{FEWEST_ROWS}-{FEWEST_VALUES}"


def sums_columns(features: Any, scores: dict[str, Any]) -> bool:
    """Whether a kernel reduces a matrix whose rows are contiguous, beside little else (such as a value for each row).

    ``scores``: bytes side by side, by axis.
    """
    if not features.is_reduction() or set(scores) != {"x", "r0_"} or scores["r0_"] * MATRIX > scores["x"]:
        return False
    sums, rows = features.numel, features.reduction_numel
    if not (sums.is_Integer and rows.is_Integer):
        return False
    return bool(sums >= FEWEST_SUMS and rows >= FEWEST_ROWS and sums * rows >= FEWEST_VALUES)


def blocks_for(rows: int) -> dict[str, int]:
    """The shape of a kernel that sums so many rows."""
    at_a_time, warps = next((count, warps) for start, count, warps in ROWS_AND_WARPS if rows >= start)
    return {"XBLOCK": COLUMNS, "R0_BLOCK": at_a_time, "num_warps": warps, "num_stages": 1}


def choose_kernels() -> None:
    """Let everything that this thread compiles from now on be compiled so (compiled code is kept by it, too)."""
    config.inductor_choices_class = ChannelsLastChoices
    V.set_choices_handler(ChannelsLastChoices())  # what a thread has once compiled with stays its own
