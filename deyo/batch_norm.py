"""BatchNorm over runs with its gradient in closed form, for the compiler.

What autograd derives is the same up to rounding, but has the incoming gradient widened to float32 before it is used
twice, so that Inductor writes and reads maps of four bytes where two suffice, and rounds the parts of the input's
gradient one by one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def by_sample(values: Tensor, samples: int) -> Tensor:
    """Values of all runs [C] or [1, C] as [1, C], those of each run [R, C] as [R·B, C]."""
    if values.dim() == 1:
        return values.unsqueeze(0)
    runs = len(values)
    return values if runs == 1 else values.unsqueeze(1).expand(-1, samples // runs, -1).reshape(samples, -1)


def over_map(values: Tensor, x: Tensor) -> Tensor:
    """[N or 1, C] shaped to broadcast against x [N, C, *map].

    x is not viewed as [R, B, C, *map] for it: on such a view Inductor gives gradients the default layout, which every
    kernel and convolution that meets one then turns round.
    """
    return values.view(*values.shape, *[1] * (x.dim() - 2))


def map_sum(x: Tensor) -> Tensor:
    """x [N, C, *map] summed over the map, in float32 at least: [N, C]."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return x.sum(tuple(range(2, x.dim())), dtype=wide) if x.dim() > 2 else x.to(wide)


def run_sums(x: Tensor, runs: int) -> Tensor:
    """x [R·B, C, *map] summed over each run's samples: [R, C]."""
    return map_sum(x).unflatten(0, (runs, -1)).sum(1)


def statistics(x: Tensor, origin: Tensor, mask: Tensor | None, runs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and biased variance [R, C] of x [R·B, C, *map] over the mask's samples; how many values those are [R, 1].

    ``mask`` is bool [R, B], or None for all. One pass over x: sums of what is left after taking ``origin`` [C] away
    (the source's mean), which keeps them small. Sums are taken sample by sample first, so that the mask and the runs
    are a matter of [R, B, C], not of whole maps. A run without samples has a mean of ``origin`` and no variance.
    """
    area = x[0, 0].numel()
    centred = x - over_map(origin.unsqueeze(0), x)
    totals = [map_sum(values).unflatten(0, (runs, -1)) for values in (centred, centred.square())]
    if mask is None:
        values = torch.full((runs, 1), len(x) // runs * area, device=x.device)
    else:
        values = mask.sum(1, keepdim=True) * area
        totals = [torch.where(mask.unsqueeze(-1), total, 0) for total in totals]
    count = values.clamp(min=1).to(centred.dtype)
    offset, square = (total.sum(1) / count for total in totals)
    return origin + offset, (square - offset.square()).clamp(min=0), values


def standardize(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """x [R·B, C, *map] times ``scale`` plus ``shift`` [R or 1, C], in x's dtype; no view to autograd.

    (Networks add the shortcut in place; on a view that costs copies in the backward, to the default layout.)
    """
    scale, shift = (over_map(by_sample(values, len(x)), x) for values in (scale, shift))
    return narrowed(x * scale + shift, x.dtype)


def settled(values: Tensor) -> Tensor:
    """``values``, which Inductor computes once: it would else do so for every value of a map that they belong to."""
    return values.contiguous().as_strided(values.shape, (values.shape[1], 1))


def narrowed(wide: Tensor, dtype: torch.dtype) -> Tensor:
    """``wide`` in ``dtype``. Where it has it already, ``to`` is not called: PyTorch 2.11 compiles a ``Function`` that
    returns what that gives with gradients of zero."""
    return wide if wide.dtype == dtype else wide.to(dtype)


class BatchNormOverRuns(torch.autograd.Function):
    """``apply(x, weight, bias, origin, mask, runs, eps)``: x [R·B, C, *map], normalised by its runs' own statistics.

    weight, bias [R or 1, C]; origin [C], as in ``statistics``; mask bool [R, B] or None. Maps have two values or more.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, origin: Tensor, mask: Tensor | None, runs: int, eps: float
    ) -> Tensor:
        mean, var, values = statistics(x, origin, mask, runs)
        scale = (var + eps).rsqrt() * weight
        ctx.runs, ctx.eps = runs, eps
        ctx.save_for_backward(x, weight, origin, mask, mean, var, values)
        return standardize(x, settled(scale), settled(bias - mean * scale))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, origin, mask, mean, var, values = ctx.saved_tensors
        centred = x - over_map(origin.unsqueeze(0), x)
        total = run_sums(gradient, ctx.runs)
        inverse, offset = (var + ctx.eps).rsqrt(), mean - origin
        along = run_sums(centred * gradient, ctx.runs) - offset * total  # Σ g (x - mean)
        of_var = torch.where(var > 0, -0.5 * inverse**3 * weight * along, 0)
        of_mean = -inverse * weight * total - 2 * offset * of_var
        count = values.clamp(min=1).to(total.dtype)
        slope, level = (by_sample(v / count, len(x)) for v in (2 * of_var, of_mean))
        if mask is not None:
            slope, level = (torch.where(mask.view(-1, 1), v.expand(len(x), -1), 0) for v in (slope, level))
        slope, level, scale = settled(slope), settled(level), by_sample(settled(inverse * weight), len(x))
        of_statistics = centred * over_map(slope, x) + over_map(level, x)
        of_x = narrowed(gradient * over_map(scale, x) + of_statistics, x.dtype)
        of_weight, of_bias = (v.sum_to_size(weight.shape) for v in (inverse * along, total))
        return of_x, of_weight, of_bias, None, None, None, None


def batch_norm_over_runs(
    x: Tensor, weight: Tensor, bias: Tensor, origin: Tensor, mask: Tensor | None, runs: int, eps: float
) -> Tensor:
    """See ``BatchNormOverRuns``. Dynamo takes this for one operation (``deyo.compiling``)."""
    return BatchNormOverRuns.apply(x, weight, bias, origin, mask, runs, eps)
