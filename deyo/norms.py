"""Norm layers with a run axis: R runs share a network, each with its own weights, biases and statistics.

Inputs hold R·B samples, run-major, so sample ``r * B + b`` belongs to run r. Adapted layers hold weight and
bias [R, C]; the others keep the source's [C]. The normalisation itself is that of the source layer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deyo.batch_norm import batch_norm_over_runs, by_sample, standardize, statistics
from deyo.types import ConfigError

_CRASHES = torch.__version__ < (2, 14)
"""GroupNorm's backward ends the process on a CPU where a channels-last input asks for no gradient (PyTorch 2.11)."""


LARGE = 2**22
"""Values of one run's map from which a GPU's kernels take longer than their launches: each run may have its own."""


@dataclass
class NormState:
    """What the norm layers of one network share during a forward.

    runs: R. mask: bool [R, B] or None; BatchNorm statistics are taken over these samples only (equal, up to
    rounding, to a forward of that subset). statistics: "running" (the source's), "batch" (of this forward),
    "record" (as "batch", and kept) or "replay" (those kept by the last "record").
    """

    runs: int = 1
    mask: Tensor | None = None
    statistics: str = "batch"
    recorded: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)


class RunNorm(nn.Module):
    """Base of the layers: the per-run affine part, and timm's fused activation after it.

    ``weight`` and ``bias`` are [R, C] if ``adapted`` (set through ``bind``) and [C] otherwise. A ``delayed`` layer
    hands its input on: what comes after it does its work too (``deyo.stem``).
    """

    channel_dim = 1
    delayed = False

    def __init__(self, source: nn.Module, name: str, state: NormState) -> None:
        super().__init__()
        self.name = name
        self.state = state
        self.eps = source.eps
        self.weight = nn.Parameter(source.weight.detach().clone(), requires_grad=False)
        self.bias = nn.Parameter(source.bias.detach().clone(), requires_grad=False)
        self.drop = getattr(source, "drop", None) or nn.Identity()
        self.act = getattr(source, "act", None) or nn.Identity()

    def bind(self, weight: nn.Parameter, bias: nn.Parameter) -> None:
        """Adapt this layer: use these [R, C] parameters from now on."""
        self.weight = weight
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        return x if self.delayed else self.act(self.drop(self.normalize(x)))

    def normalize(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def affine(self, x: Tensor) -> Tensor:
        """Weight and bias on normalised x [R·B, ...], by run."""
        shape = [1] * x.dim()
        shape[self.channel_dim] = x.shape[self.channel_dim]
        if self.weight.dim() == 1:
            return x * self.weight.view(shape) + self.bias.view(shape)
        runs = self.state.runs
        split = x.view(runs, -1, *x.shape[1:])
        per_run = [runs, *shape]
        return reshaped(split * self.weight.view(per_run) + self.bias.view(per_run), x)

    def shared_affine(self) -> tuple[Tensor, Tensor] | None:
        """Weight and bias [C] if one pair serves all samples of this forward, else None."""
        if self.weight.dim() == 1:
            return self.weight, self.bias
        return (self.weight[0], self.bias[0]) if self.state.runs == 1 else None


class RunGroupNorm(RunNorm):
    """nn.GroupNorm (and timm's GroupNormAct), exact over runs: samples do not touch each other.

    PyTorch's own kernel and its form for the compiler turn channels-last maps into the default layout, which the next
    convolution turns back: compiled, statistics come from sums by channel instead, in one pass and any layout.
    """

    def __init__(self, source: nn.GroupNorm, name: str, state: NormState) -> None:
        super().__init__(source, name, state)
        self.num_groups = source.num_groups

    def normalize(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling() and x.dim() == 4:
            return self.by_channel(x)
        wide, shared = widened(x), self.shared_affine()
        if shared is not None:
            if _CRASHES and torch.is_grad_enabled() and not x.requires_grad and x.device.type == "cpu":
                wide = wide.contiguous()
            return F.group_norm(wide, self.num_groups, *shared, self.eps).to(x.dtype)
        return self.affine(F.group_norm(wide, self.num_groups, None, None, self.eps)).to(x.dtype)

    def by_channel(self, x: Tensor) -> Tensor:
        """The same from sums over each channel's map: x [R·B, C, H, W]."""
        return standardize(x, *self.coefficients(x))

    def coefficients(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Scale and shift [R·B, C] that x [R·B, C, H, W] is normalised by."""
        wide = widened(x)
        # What is left after taking a value of the map away is small against the spread, so that squares do not cancel.
        origin = wide[:, :, :1, :1].detach()
        centred, area = wide - origin, x.shape[2] * x.shape[3]
        offset, spread = moments(centred, (2, 3), area)
        means = (origin.flatten(1) + offset).unflatten(1, (self.num_groups, -1))
        mean = means.mean(2, keepdim=True)
        within = spread.unflatten(1, (self.num_groups, -1)).mean(2, keepdim=True)
        var = within + (means - mean).square().mean(2, keepdim=True)
        scale = (var + self.eps).rsqrt().expand_as(means).flatten(1) * by_sample(self.weight, len(x))
        return scale, by_sample(self.bias, len(x)) - mean.expand_as(means).flatten(1) * scale


class RunLayerNorm(RunNorm):
    """nn.LayerNorm over the last axis, exact over runs."""

    def __init__(self, source: nn.LayerNorm, name: str, state: NormState) -> None:
        super().__init__(source, name, state)
        self.normalized_shape = source.normalized_shape
        if len(self.normalized_shape) != 1:
            raise ConfigError(
                f"layer {name!r} is a LayerNorm over {len(self.normalized_shape)} axes; methods adapt those over one"
            )

    def normalize(self, x: Tensor) -> Tensor:
        wide, shared = widened(x), self.shared_affine()
        if shared is not None:
            return F.layer_norm(wide, self.normalized_shape, *shared, self.eps).to(x.dtype)
        self.channel_dim = x.dim() - 1
        return self.affine(F.layer_norm(wide, self.normalized_shape, None, None, self.eps)).to(x.dtype)


class RunLayerNorm2d(RunLayerNorm):
    """LayerNorm over the channels of [N, C, H, W] (ConvNeXt's)."""

    def normalize(self, x: Tensor) -> Tensor:
        return super().normalize(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class RunBatchNorm(RunNorm):
    """nn.BatchNorm2d (and timm's BatchNormAct2d) with statistics per run, over the samples of the mask.

    Where a run has a single value per channel (one sample, a 1×1 map), its batch statistics do not exist and
    the source's running ones take their place; methods skip the step of such a run.
    """

    def __init__(self, source: nn.BatchNorm2d, name: str, state: NormState) -> None:
        super().__init__(source, name, state)
        if source.running_mean is None:
            raise ConfigError(
                f"layer {name!r} is a BatchNorm without running statistics; methods need those of the source"
            )
        self.register_buffer("running_mean", source.running_mean.detach().clone())
        self.register_buffer("running_var", source.running_var.detach().clone())
        self.smallest_map = 0

    def normalize(self, x: Tensor) -> Tensor:
        state = self.state
        area = x[0, 0].numel()
        self.smallest_map = area
        if state.statistics == "running":
            return self._running(x)
        if self._plain_batch_norm_suffices(x, area):
            return F.batch_norm(widened(x), None, None, *self.shared_affine(), True, 0.0, self.eps).to(x.dtype)
        if self._run_by_run_pays(x, area):
            return self.run_by_run(x)
        if torch.compiler.is_compiling() and state.statistics == "batch" and area > 1:
            return self._closed_form(x)
        return standardize(x, *self._batch_coefficients(x, area))

    def coefficients(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Scale and shift [R or 1, C] that the samples of each run in x [R·B, C, *map] are normalised by."""
        self.smallest_map = area = x[0, 0].numel()
        if self.state.statistics != "running":
            return self._batch_coefficients(x, area)
        weight, bias = self.weight.view(-1, x.shape[1]), self.bias.view(-1, x.shape[1])
        scale = (self.running_var + self.eps).rsqrt() * weight
        return scale, bias - self.running_mean * scale

    def _batch_coefficients(self, x: Tensor, area: int) -> tuple[Tensor, Tensor]:
        state = self.state
        if state.statistics == "replay":
            mean, var = state.recorded[self.name]
        else:
            mean, var = self._statistics(x, area)
            if state.statistics == "record":
                state.recorded[self.name] = (mean.detach(), var.detach())
        scale = (var + self.eps).rsqrt() * self.weight
        return scale, self.bias - mean * scale

    def _plain_batch_norm_suffices(self, x: Tensor, area: int) -> bool:
        state = self.state
        one_run = state.runs == 1 and state.mask is None and state.statistics == "batch"
        # Compiled, the one pass below is the faster.
        return one_run and x.shape[0] * area > 1 and not torch.compiler.is_compiling()

    def _run_by_run_pays(self, x: Tensor, area: int) -> bool:
        state = self.state
        plain = state.mask is None and state.statistics == "batch" and not torch.compiler.is_compiling()
        samples = x.shape[0] // state.runs
        return plain and x.is_cuda and samples * area > 1 and x.numel() // state.runs >= LARGE

    def run_by_run(self, x: Tensor) -> Tensor:
        """The same by PyTorch's own kernels for x [R·B, C, *map]: uncompiled, the sums below read x some ten times."""
        runs = self.state.runs
        values = [v.expand(runs, -1).unbind() for v in (self.weight, self.bias)]
        parts = zip(widened(x).chunk(runs), *values)
        return torch.cat([F.batch_norm(part, None, None, w, b, True, 0.0, self.eps) for part, w, b in parts]).to(
            x.dtype
        )

    def _running(self, x: Tensor) -> Tensor:
        wide, shared = widened(x), self.shared_affine()
        running = self.running_mean, self.running_var
        if shared is not None:
            return F.batch_norm(wide, *running, *shared, False, 0.0, self.eps).to(x.dtype)
        return self.affine(F.batch_norm(wide, *running, None, None, False, 0.0, self.eps)).to(x.dtype)

    def _statistics(self, x: Tensor, area: int) -> tuple[Tensor, Tensor]:
        """Mean and biased variance [R, C] of x [R·B, C, *map] over the mask's samples."""
        origin = self.running_mean.to(widened(x).dtype)
        mean, var, values = statistics(x, origin, self.state.mask, self.state.runs)
        if area == 1:  # elsewhere a run always has two values or more
            mean = torch.where(values > 1, mean, origin)
            var = torch.where(values > 1, var, self.running_var.to(var.dtype))
        return mean, var

    def _closed_form(self, x: Tensor) -> Tensor:
        state, origin = self.state, self.running_mean
        weight, bias = (v.view(-1, x.shape[1]) for v in (self.weight, self.bias))
        return batch_norm_over_runs(x, weight, bias, origin, state.mask, state.runs, self.eps)


def moments(centred: Tensor, axes: tuple[int, ...], count: Tensor | int) -> tuple[Tensor, Tensor]:
    """Mean and biased variance over ``axes`` of ``count`` values in one pass; their mean is small for their spread."""
    mean = centred.sum(axes) / count
    return mean, (centred.square().sum(axes) / count - mean.square()).clamp(min=0)


def reshaped(fresh: Tensor, like: Tensor) -> Tensor:
    """``fresh``, which nothing else refers to, in the shape of ``like``, and no view to autograd.

    Networks add the shortcut in place; on a view that costs copies in the backward, to the default layout.
    """
    return torch.ops.aten._unsafe_view(fresh, like.shape)


def widened(x: Tensor) -> Tensor:
    """x in at least float32: normalisation of half-precision activations is computed in float32."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def run_norm_for(module: nn.Module) -> type[RunNorm] | None:
    """The run-axis class that replaces ``module``, or None if it is no affine norm layer."""
    if getattr(module, "weight", None) is None or getattr(module, "bias", None) is None:
        return None
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return RunBatchNorm
    if isinstance(module, nn.GroupNorm):
        return RunGroupNorm
    if isinstance(module, nn.LayerNorm):
        return RunLayerNorm2d if type(module).__name__.startswith("LayerNorm2d") else RunLayerNorm
    return None
