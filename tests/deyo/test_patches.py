"""Convolutions that cut maps into patches, as products: the same values and gradients, in compiled networks alone."""

from __future__ import annotations

import copy

import pytest
import torch
from timm.models.convnext import ConvNeXt
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from traced import compiled

from deyo.patches import PatchConv2d, cut_patches


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_product_gives_the_values_and_gradients_of_the_convolution(bias: bool, layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(3, 7, (4, 2), stride=(4, 2), bias=bias).double()
    cut = copy.deepcopy(plain)
    cut_patches(cut)
    x = torch.randn(5, 3, 12, 6, dtype=torch.float64).to(memory_format=layout).requires_grad_()
    found, expected = compiled(cut)(x), plain(x)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
    direction = torch.randn_like(expected)
    gradients = [
        torch.autograd.grad(out, (x, *layer.parameters()), direction)
        for out, layer in ((found, cut), (expected, plain))
    ]
    torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-12)


def test_maps_that_patches_do_not_fill_lose_their_last_rows_as_before() -> None:
    plain = nn.Conv2d(2, 3, 4, stride=4)
    cut = copy.deepcopy(plain)
    cut_patches(cut)
    x = torch.randn(2, 2, 11, 9)
    torch.testing.assert_close(compiled(cut)(x), plain(x))


def test_convolutions_with_other_windows_stay_as_they_are() -> None:
    others = [
        nn.Conv2d(4, 4, 4, stride=2),
        nn.Conv2d(4, 4, 1),
        nn.Conv2d(4, 4, 4, stride=4, padding=1),
        nn.Conv2d(4, 4, 4, stride=4, groups=2),
        nn.Conv2d(4, 4, 4, stride=4, dilation=2),
    ]
    module = nn.Sequential(*others, nn.Conv2d(4, 4, 4, stride=4, padding="valid"))
    cut_patches(module)
    assert [type(layer) for layer in module] == [nn.Conv2d] * len(others) + [PatchConv2d]


@pytest.mark.parametrize("kind", ["vit", "convnext"])
def test_networks_give_the_same_logits(kind: str) -> None:
    torch.manual_seed(0)
    if kind == "vit":
        plain = VisionTransformer(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3, num_classes=5).eval()
    else:
        plain = ConvNeXt(depths=(1, 1, 1, 1), dims=(8, 12, 16, 24), num_classes=5).eval()
    cut = copy.deepcopy(plain)
    cut_patches(cut)
    assert sum(isinstance(layer, PatchConv2d) for layer in cut.modules()) == (1 if kind == "vit" else 4)
    x = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(compiled(cut)(x), plain(x), rtol=1e-4, atol=1e-5)
    assert torch.equal(cut(x), plain(x)), "uncompiled, it is the convolution"
