"""The packed stem is nn.Conv2d, up to the order of sums."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from deyo.stem import StemConv2d, pack_stem


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("height", "width"), [(16, 16), (32, 20), (15, 16), (17, 17)])
def test_outputs_and_gradients_are_those_of_the_plain_convolution(
    height: int, width: int, layout: torch.memory_format
) -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False).double()
    packed = copy.deepcopy(plain)
    pack_stem(nn.Sequential(packed))
    assert type(packed) is StemConv2d
    x = torch.randn(2, 3, height, width, dtype=torch.float64).to(memory_format=layout)
    outcomes = []
    for conv in (plain, packed):
        given = x.clone().requires_grad_(True)
        out = conv(given)
        (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
        assert out.is_contiguous(memory_format=layout)
        outcomes.append((out, given.grad, conv.weight.grad))
    for expected, found in zip(*outcomes):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.Conv2d(3, 8, 7, stride=1, padding=3),
        nn.Conv2d(4, 8, 7, stride=2, padding=3),
        nn.Conv2d(3, 9, 7, stride=2, padding=3, groups=3),
        nn.Conv2d(3, 8, 7, stride=2, padding=3, padding_mode="reflect"),
    ],
)
def test_others_stay_what_they_are(conv: nn.Conv2d) -> None:
    pack_stem(nn.Sequential(conv))
    assert type(conv) is nn.Conv2d
