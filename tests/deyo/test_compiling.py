"""What is compiled is compiled by rule, not by the clock."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from deyo import compiling
from deyo.compiling import compiled
from deyo.kernels import ChannelsLastChoices


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


@pytest.mark.parametrize("by_rule", [True, False])
def test_inductor_compiles_under_the_option_backwards_too(by_rule: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config
    from torch._inductor.graph import GraphLowering

    seen: list[bool] = []
    run = GraphLowering.run

    def noting(self: GraphLowering, *given: Any) -> Any:
        seen.append(config.deterministic)
        return run(self, *given)

    monkeypatch.setattr(GraphLowering, "run", noting)
    monkeypatch.setattr(compiling, "BY_RULE", by_rule)
    x = torch.randn(8, 5, requires_grad=True)
    torch.compiler.reset()
    with config.patch(force_disable_caches=True):
        compiled(lambda t: (t * 2).sin().sum())(x).backward()
    torch.testing.assert_close(x.grad, 2 * (x * 2).cos())
    assert seen == [by_rule, by_rule]


def test_a_backward_in_another_thread_is_compiled_with_our_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, whose gradients autograd takes in a thread of its own; PyTorch's settings may be a thread's."""
    from torch._inductor import config
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    seen: list[tuple[bool, type]] = []
    run = GraphLowering.run

    def noting(self: GraphLowering, *given: Any) -> Any:
        seen.append((self.is_backward, type(V.choices)))
        return run(self, *given)

    monkeypatch.setattr(GraphLowering, "run", noting)
    x = torch.randn(8, 5, requires_grad=True)
    torch.compiler.reset()
    with config.patch(force_disable_caches=True):
        y = compiled(lambda t: (t * 3).sin().sum())(x)
        thread = threading.Thread(target=y.backward)
        thread.start()
        thread.join()
    torch.testing.assert_close(x.grad, 3 * (x * 3).cos())
    assert seen == [(False, ChannelsLastChoices), (True, ChannelsLastChoices)]
