"""What is compiled is compiled by rule, not by the clock."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from deyo import compiling
from deyo.compiling import compiled


@pytest.mark.parametrize("by_rule", [True, False])
def test_inductor_is_told_to_time_no_kernels(by_rule: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def keep(function: Any, **how: Any) -> Any:
        asked.append(how)
        return function

    monkeypatch.setattr(torch, "compile", keep)
    monkeypatch.setattr(compiling, "BY_RULE", by_rule)
    assert compiled(len, {"max_autotune": True}) is len
    expected = {"max_autotune": True} | ({"deterministic": True} if by_rule else {})
    assert asked == [{"dynamic": False, "options": expected}]


def test_inductor_knows_the_option() -> None:
    """It compiles with it: an option that it does not know is refused."""
    x = torch.randn(8, 5)
    torch.testing.assert_close(compiled(lambda t: (t * 2).sum(1))(x), (x * 2).sum(1))
