"""GELU by the normal distribution's tail: every bfloat16 value, and its gradient, in compiled networks alone."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from traced import compiled

from deyo.gelu import TailGELU, take_tails


def gelu() -> nn.GELU:
    module = nn.GELU()
    take_tails(module)
    return module


def every_value() -> Tensor:
    """All finite bfloat16 values."""
    values = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    return values[values.isfinite()]


def assert_rounded(found: Tensor, exact: Tensor) -> None:
    """Within what bfloat16 must round, and a hundredth of that; 1e-8 of all that is smaller."""
    assert found.dtype == torch.bfloat16
    error = (found.double() - exact).abs()
    half = torch.finfo(torch.bfloat16).eps / 2
    assert (error <= half * 1.01 * exact.abs() + 1e-8).all(), error.max()


def test_every_value_and_gradient_is_the_exact_one_rounded() -> None:
    x = every_value().requires_grad_()
    found = compiled(gelu())(x)
    wide = x.detach().double()
    cdf = torch.special.ndtr(wide)
    assert_rounded(found.detach(), wide * cdf)
    (gradient,) = torch.autograd.grad(found, x, torch.ones_like(found))
    density = torch.exp(-wide.square() / 2) / math.sqrt(2 * math.pi)
    expected = cdf + wide * density
    error = (gradient.double() - expected).abs()
    # Where the derivative passes zero, at -0.75, its two parts cancel: what they are good to stays.
    assert (error <= torch.finfo(torch.bfloat16).eps / 2 * 1.01 * expected.abs() + 2e-6).all(), error.max()


def test_a_gradient_is_passed_on_times_the_derivative() -> None:
    x = torch.randn(1000).bfloat16().requires_grad_()
    direction = torch.randn(1000).bfloat16()
    (found,) = torch.autograd.grad(compiled(gelu())(x), x, direction)
    wide = x.detach().float().requires_grad_()
    (expected,) = torch.autograd.grad(nn.functional.gelu(wide), wide, direction.float())
    torch.testing.assert_close(found.float(), expected, rtol=5e-3, atol=1e-5)


def test_only_inputs_of_two_bytes_are_kept_for_the_backward() -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(8, 8), nn.GELU())]
    module = nn.Sequential(*layers, nn.Linear(8, 8)).bfloat16().requires_grad_(False)
    take_tails(module)
    torch.compiler.reset()
    traced = torch.compile(module, backend="aot_eager_decomp_partition", dynamic=False, fullgraph=True)
    out = traced(torch.randn(64, 8).bfloat16().requires_grad_())
    kept = [t for t in out.grad_fn.saved_tensors if t.shape == (64, 8)]
    assert [t.dtype for t in kept] == 3 * [torch.bfloat16]


def test_a_vision_transformer_departs_from_float64_as_far_as_with_pytorchs_own() -> None:
    torch.manual_seed(0)
    exact = VisionTransformer(img_size=32, patch_size=8, embed_dim=48, depth=3, num_heads=3, num_classes=5).double()
    for parameter in exact.parameters():
        parameter.data = nn.init.normal_(parameter, std=0.2).bfloat16().double()
    plain = copy.deepcopy(exact).bfloat16()
    own = copy.deepcopy(plain)
    take_tails(own)
    assert sum(isinstance(layer, TailGELU) for layer in own.modules()) == 3
    images = torch.randn(64, 3, 32, 32).bfloat16()

    def found(network: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = network(x)
        weights = [p for name, p in network.named_parameters() if name.endswith("norm1.weight")]
        gradients = torch.autograd.grad(logits.double().logsumexp(1).sum(), weights)
        return logits.detach().double(), torch.cat(gradients).double()

    expected = found(exact, images.double())
    departures = [
        [(a - b).abs().mean() for a, b in zip(found(network, images), expected)] for network in (plain, compiled(own))
    ]
    for with_pytorchs, with_ours in zip(*departures):
        assert with_ours <= 1.05 * with_pytorchs


def test_what_is_no_number_stays_none() -> None:
    assert compiled(gelu())(torch.tensor([math.nan]).bfloat16()).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_dtypes_and_uncompiled_networks_have_pytorchs_own(dtype: torch.dtype) -> None:
    x = torch.randn(50, dtype=dtype)
    assert torch.equal(compiled(gelu())(x), nn.functional.gelu(x))
    assert torch.equal(gelu()(x.bfloat16()), nn.functional.gelu(x.bfloat16()))


def test_only_exact_gelus_are_changed() -> None:
    class Own(nn.GELU):
        pass

    module = nn.Sequential(nn.GELU(), nn.GELU("tanh"), Own(), nn.ReLU())
    take_tails(module)
    assert [type(child) for child in module] == [TailGELU, nn.GELU, Own, nn.ReLU]
