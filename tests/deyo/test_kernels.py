"""Which of Inductor's kernels get a shape of ours, and which shape."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import sympy
import torch
from torch._inductor import config
from torch._inductor.choices import InductorChoices

from deyo.compiling import compiled
from deyo.kernels import ChannelsLastChoices, blocks_for, choose_kernels, sums_columns

ACROSS = {"x": 1000, "r0_": 0}


def kernel(sums: Any, rows: Any) -> Any:
    return SimpleNamespace(
        numel=sympy.sympify(sums), reduction_numel=sympy.sympify(rows), is_reduction=lambda: rows != 1
    )


@pytest.mark.parametrize(
    ("sums", "rows", "scores", "ours"),
    [
        (20480, 3136, ACROSS, True),
        (655360, 49, ACROSS, True),
        (20480, 3136, {"x": 1000, "r0_": 1000}, False),
        (20480, 3136, {"x": 1000, "r0_": 63}, False),
        (20480, 3136, {"x": 1000, "r0_": 62}, True),
        (98304, 197, {"x": 79036416, "r0_": 201728}, True),
        (20480, 3136, {"x": 1000, "r0_": 0, "y": 5}, False),
        (20480, 3136, {}, False),
        (20480, 1, ACROSS, False),
        (1280, 65536, ACROSS, False),
        (5120, 64, ACROSS, False),
        (2**24, 8, ACROSS, False),
        (sympy.Symbol("s0"), 3136, ACROSS, False),
    ],
)
def test_sums_down_many_columns_are_ours(sums: Any, rows: Any, scores: dict[str, int], ours: bool) -> None:
    assert sums_columns(kernel(sums, rows), scores) is ours


def test_more_rows_are_taken_at_a_time_where_there_are_more() -> None:
    assert [blocks_for(rows)["R0_BLOCK"] for rows in (12544, 3136, 784, 196, 49)] == [32, 32, 16, 16, 8]


def test_other_kernels_are_left_as_they_are() -> None:
    given = {"tiling_scores": {"x": 5}}
    assert ChannelsLastChoices().triton_kernel_kwargs(None, kernel(10, 1), [], given) == given
    ours = ChannelsLastChoices().triton_kernel_kwargs(None, kernel(20480, 3136), [], {"tiling_scores": ACROSS})
    assert ours["fixed_config"].config == blocks_for(3136)
    assert ours["override_persistent_reduction"] is False


def test_what_is_compiled_is_compiled_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "inductor_choices_class", None)
    compiled(torch.relu)
    assert config.inductor_choices_class is ChannelsLastChoices
    choose_kernels()
    assert issubclass(config.inductor_choices_class, InductorChoices)
