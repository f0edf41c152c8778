"""Convolutions with frozen weights: nn.Conv2d's outputs and input gradients, and nothing kept of their input."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from parity_cases import CASES, batches, build_method, load_case, network_for, rgb
from torch import nn

from deyo import frozen
from deyo.frozen import FrozenConv2d, freeze_convolutions, input_gradient

GEOMETRIES = [
    {"kernel_size": 1},
    {"kernel_size": 1, "stride": 2},
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 3, "padding": (1, 2), "stride": (2, 1), "bias": False},
    {"kernel_size": 3, "padding": 2, "dilation": 2},
    {"kernel_size": 3, "padding": 1, "groups": 3},
    {"kernel_size": 7, "padding": 3, "stride": 2, "bias": False},
]


def outcome(conv: nn.Conv2d, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.detach().requires_grad_(True)
    y = conv(x)
    (gradient,) = torch.autograd.grad((y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum(), x)
    return y.detach(), gradient


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_outputs_and_gradients_are_those_of_a_plain_convolution(geometry: dict[str, Any], layout: Any) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 6, **geometry).double().requires_grad_(False).to(memory_format=layout)
    own = copy.deepcopy(conv)
    freeze_convolutions(nn.Sequential(own))
    assert type(own) is FrozenConv2d
    x = torch.randn(2, 3, 12, 9, dtype=torch.float64).to(memory_format=layout)
    expected, found = outcome(conv, x), outcome(own, x)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    assert found[1].stride() == expected[1].stride()


def test_the_operator_is_what_its_description_for_the_compiler_says() -> None:
    gradient, weight = torch.randn(2, 6, 5, 5), torch.randn(6, 3, 3, 3)
    for last in (False, True):
        layout = torch.channels_last if last else torch.contiguous_format
        arguments = (gradient.to(memory_format=layout), weight, [2, 3, 5, 5], last, [1, 1], [1, 1], [1, 1], 1)
        torch.library.opcheck(input_gradient, arguments)


def test_the_input_of_a_convolution_is_let_go() -> None:
    kept: list[int] = []
    conv = nn.Conv2d(3, 3, 3).requires_grad_(False)
    freeze_convolutions(nn.Sequential(conv))
    x = torch.randn(1, 3, 8, 8, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.data_ptr()) or t, lambda t: t):
        conv(x)
    assert kept == [conv.weight.data_ptr()]


def test_other_kinds_of_convolution_stay_as_they_are() -> None:
    class Standardised(nn.Conv2d):
        pass

    special = nn.Sequential(Standardised(3, 3, 1), nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect"))
    freeze_convolutions(special)
    assert [type(m) for m in special] == [Standardised, nn.Conv2d]


@pytest.mark.parametrize(
    "switches",
    [{}, {"POINTWISE_AS_MATRIX": True}, {"STEM_CHANNELS": 4}, {"POINTWISE_AS_MATRIX": True, "STEM_CHANNELS": 8}],
)
@pytest.mark.parametrize("name", [c for c in CASES if c in ("deyo_bn", "deyo_gn", "tent_bn", "sar_bn", "eata_gn")])
def test_recorded_cases_with_frozen_convolutions(
    name: str, switches: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for switch, value in switches.items():
        monkeypatch.setattr(frozen, switch, value)
    case = load_case(name)
    method, plain = build_method(case), build_method(case)
    if case.settings.get("fisher_alpha"):
        for built in (method, plain):
            built.measure_fisher([rgb(batch) for batch in network_for(case.settings["network"])[2]])
    freeze_convolutions(method.network.module)
    assert any(type(m) is FrozenConv2d for m in method.network.module.modules())
    for batch in batches(case, network_for(case.settings["network"])[1]):
        torch.testing.assert_close(method.step(batch), plain.step(batch), rtol=0, atol=1e-9)
    torch.testing.assert_close(method.network.theta, plain.network.theta, rtol=0, atol=1e-9)


def test_a_trainable_weight_in_its_place_gets_its_gradient() -> None:
    """What adapts all parameters calls the network with weights of its own."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)).requires_grad_(False)
    x = torch.randn(2, 3, 8, 8)
    gradients = []
    for freeze in (False, True):
        if freeze:
            freeze_convolutions(net)
        given = {name: value.clone().requires_grad_() for name, value in net.named_parameters()}
        torch.func.functional_call(net, given, (x,)).square().sum().backward()
        gradients.append({name: value.grad for name, value in given.items()})
    assert all(value.abs().sum() > 0 for value in gradients[1].values())
    for name, expected in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], expected)
