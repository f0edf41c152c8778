"""BatchNorm over runs: the closed form that is compiled against autograd and against each run's own nn.BatchNorm."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from deyo.batch_norm import BatchNormOverRuns, batch_norm_over_runs, by_sample, map_sum, standardize, statistics
from deyo.compiling import compiled

RUNS, BATCH, CHANNELS, EPS = 3, 4, 5, 1e-5
MASK = torch.tensor([[1, 1, 0, 1], [1, 1, 1, 1], [0, 1, 0, 0]]).bool()
EMPTY = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]]).bool()


def inputs(dtype: torch.dtype, *, per_run: bool = True) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x [R·B, C, 3, 2] channels-last, weight and bias [R or 1, C] that ask for gradients, origin [C]."""
    torch.manual_seed(0)
    wide = torch.promote_types(dtype, torch.float32)
    x = (3 + 2 * torch.randn(RUNS * BATCH, CHANNELS, 3, 2)).to(dtype).contiguous(memory_format=torch.channels_last)
    weight, bias = torch.randn(2, RUNS if per_run else 1, CHANNELS, dtype=wide)
    return x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_(), torch.randn(CHANNELS, dtype=wide)


def by_autograd(x: Tensor, weight: Tensor, bias: Tensor, origin: Tensor, mask: Tensor | None) -> Tensor:
    mean, var, _ = statistics(x, origin, mask, RUNS)
    scale = (var + EPS).rsqrt() * weight
    return standardize(x, scale, bias - mean * scale)


def gradients(y: Tensor, *of: Tensor) -> tuple[Tensor, ...]:
    torch.manual_seed(1)
    return torch.autograd.grad(y, of, torch.randn(y.shape).to(y.dtype))


@pytest.mark.parametrize("per_run", [True, False])
@pytest.mark.parametrize("mask", [None, MASK, EMPTY])
def test_closed_form_is_autograds(mask: Tensor | None, per_run: bool) -> None:
    x, weight, bias, origin = inputs(torch.float64, per_run=per_run)
    y = BatchNormOverRuns.apply(x, weight, bias, origin, mask, RUNS, EPS)
    expected = by_autograd(x, weight, bias, origin, mask)
    torch.testing.assert_close(y, expected, rtol=0, atol=0)
    for found, wanted in zip(gradients(y, x, weight, bias), gradients(expected, x, weight, bias), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)


def test_each_run_is_batch_norm_of_its_masked_samples() -> None:
    x, weight, bias, origin = inputs(torch.float64)
    y = BatchNormOverRuns.apply(x, weight, bias, origin, MASK, RUNS, EPS)
    for run in range(RUNS):
        own = slice(run * BATCH, (run + 1) * BATCH)
        alone = F.batch_norm(x[own][MASK[run]], None, None, weight[run], bias[run], True, 0.0, EPS)
        torch.testing.assert_close(y[own][MASK[run]], alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mask", [None, MASK])
def test_of_half_precision_only_the_result_is_rounded(mask: Tensor | None) -> None:
    x, weight, bias, origin = inputs(torch.bfloat16)
    y = BatchNormOverRuns.apply(x, weight, bias, origin, mask, RUNS, EPS)
    wide = x.detach().double().requires_grad_()
    exact = BatchNormOverRuns.apply(wide, weight.double(), bias.double(), origin.double(), mask, RUNS, EPS)
    rounded = 2.0**-8
    torch.testing.assert_close(y.double(), exact, rtol=rounded, atol=1e-5)
    torch.manual_seed(1)
    upstream = torch.randn(y.shape).to(y.dtype)
    found, wanted = torch.autograd.grad(y, x, upstream)[0], torch.autograd.grad(exact, wide, upstream.double())[0]
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), wanted, rtol=rounded, atol=1e-4)


def test_a_channel_without_variance_has_gradients() -> None:
    x, weight, bias, origin = inputs(torch.float64)
    flat = x.detach().clone()
    flat[:, 0] = origin[0]
    flat.requires_grad_()
    y = BatchNormOverRuns.apply(flat, weight, bias, origin, None, RUNS, EPS)
    assert all(torch.isfinite(g).all() for g in gradients(y, flat, weight, bias))


@pytest.mark.parametrize("shape", [(1, 4, 3, 2), (4, 1, 3, 2), (1, 1, 3, 2), (2, 3, 7)])
def test_closed_form_of_other_shapes(shape: tuple[int, ...]) -> None:
    """One run, one sample a run, maps of one axis; one channel is constant, another far from the origin."""
    runs, batch, *area = shape
    torch.manual_seed(0)
    x = torch.randn(runs * batch, CHANNELS, *area, dtype=torch.float64)
    x[:, 0], x[:, 1] = 2.0, x[:, 1] + 100
    x.requires_grad_()
    weight, bias = torch.randn(2, runs, CHANNELS, dtype=torch.float64).requires_grad_()
    origin = torch.zeros(CHANNELS, dtype=torch.float64)
    y = BatchNormOverRuns.apply(x, weight, bias, origin, None, runs, EPS)
    mean, var, _ = statistics(x, origin, None, runs)
    scale = (var + EPS).rsqrt() * weight
    expected = standardize(x, scale, bias - mean * scale)
    torch.testing.assert_close(y, expected, rtol=0, atol=0)
    for found, wanted in zip(gradients(y, x, weight, bias), gradients(expected, x, weight, bias), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-8)


def test_in_the_forward_a_sample_outside_the_mask_may_be_anything() -> None:
    x, weight, bias, origin = inputs(torch.float64)
    broken = x.detach().clone()
    broken[2] = torch.nan
    with torch.no_grad():
        y = BatchNormOverRuns.apply(broken, weight, bias, origin, MASK, RUNS, EPS)
        whole = BatchNormOverRuns.apply(x, weight, bias, origin, MASK, RUNS, EPS)
    rest = torch.arange(RUNS * BATCH) != 2
    torch.testing.assert_close(y[rest], whole[rest], rtol=0, atol=0)


def test_values_of_runs_and_sums_of_maps() -> None:
    values = torch.arange(6.0).view(3, 2)
    assert by_sample(values, 6).tolist() == [[0, 1], [0, 1], [2, 3], [2, 3], [4, 5], [4, 5]]
    assert by_sample(values[:1], 6).shape == (1, 2)
    assert by_sample(values[0], 6).shape == (1, 2)
    assert map_sum(torch.ones(2, 3, 4, 5, dtype=torch.bfloat16)).tolist() == [[20.0] * 3] * 2
    assert map_sum(torch.ones(2, 3, dtype=torch.bfloat16)).dtype == torch.float32


@pytest.mark.parametrize("way", [BatchNormOverRuns.apply, batch_norm_over_runs])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask", [None, MASK])
def test_compiled_it_has_the_same_gradients(mask: Tensor | None, dtype: torch.dtype, way: Any) -> None:
    x, weight, bias, origin = inputs(dtype)

    def normalised(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return way(x, weight, bias, origin, mask, RUNS, EPS).relu()

    compiled(normalised)  # nothing is compiled yet, but Dynamo knows the operation
    torch.compiler.reset()
    fast = torch.compile(normalised, backend="aot_eager", dynamic=False)
    found, wanted = (gradients(f(x, weight, bias), x, weight, bias) for f in (fast, normalised))
    for ours, expected in zip(found, wanted, strict=True):
        assert expected.abs().max() > 0
        torch.testing.assert_close(ours, expected)
