"""How Inductor's kernels take sums over maps whose channels lie side by side (channels-last).

Where there are many sums (one for each sample and channel), Inductor takes several shapes of a kernel into account and,
when it must choose by rule, may take one that reads eight channels of a row at a time: half of what a GPU fetches for
them is thrown away. Here such kernels read 32 channels of 64 rows.
"""

from __future__ import annotations

from typing import Any

from torch._inductor import config
from torch._inductor.choices import InductorChoices
from torch._inductor.codegen.triton import FixedTritonConfig

COLUMNS, ROWS, WARPS = 32, 64, 4
FEWEST_SUMS = 4096
"""With fewer, blocks of so many columns would leave multiprocessors without work."""
FEWEST_ROWS, FEWEST_VALUES = 16, 2**22


class ChannelsLastChoices(InductorChoices):
    """Inductor's own choices but for sums down the columns of a matrix of many columns."""

    def triton_kernel_kwargs(
        self, kernel_cls: Any, features: Any, groups: Any, kernel_kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        kwargs = super().triton_kernel_kwargs(kernel_cls, features, groups, kernel_kwargs)
        if not self._sums_columns(features, kwargs.get("tiling_scores") or {}):
            return kwargs
        blocks = {"XBLOCK": COLUMNS, "R0_BLOCK": ROWS, "num_warps": WARPS, "num_stages": 1}
        return {**kwargs, "fixed_config": FixedTritonConfig(blocks), "override_persistent_reduction": False}

    def _sums_columns(self, features: Any, scores: dict[str, Any]) -> bool:
        """Whether a kernel reduces a matrix whose rows are contiguous. ``scores``: bytes side by side, by axis."""
        if not features.is_reduction() or set(scores) != {"x", "r0_"}:
            return False
        sums, rows = features.numel, features.reduction_numel
        if not (sums.is_Integer and rows.is_Integer) or scores["r0_"] != 0:
            return False
        return sums >= FEWEST_SUMS and rows >= FEWEST_ROWS and sums * rows >= FEWEST_VALUES

    @classmethod
    def uuid(cls) -> str:
        """What compiled code is kept by, beside the source."""
        return f"channels-last-{COLUMNS}-{ROWS}-{WARPS}-{FEWEST_SUMS}"


def choose_kernels() -> None:
    """Let everything that is compiled from now on be compiled so."""
    config.inductor_choices_class = ChannelsLastChoices
