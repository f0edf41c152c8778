"""Convolutions whose weights never change: their backward keeps nothing of their input.

PyTorch's convolution holds on to its input for the weight's gradient, also where the weight is frozen. In a compiled
network that keeps every activation after a ReLU in memory beside the one before its norm layer, and the backward
reads both. The gradient of the input needs the weight alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

INPUT_GRADIENT_ONLY = True
"""Whether ``freeze_convolutions`` does anything (the benchmark measures both)."""

POINTWISE_AS_MATRIX = False
"""Run 1×1 convolutions of stride 1 as matrix products (channels last: the same sums in another library)."""

STEM_CHANNELS = 0
"""Pad the input of a convolution over 3 channels with zeros to so many, which tensor cores can read (0: as it is)."""


class FrozenConv2d(nn.Conv2d):
    """An nn.Conv2d with a frozen weight: equal outputs and input gradients, less memory.

    Where a functional call puts a trainable weight in its place (MEMO, SENTRY with all parameters), it is an nn.Conv2d.
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.requires_grad or (self.bias is not None and self.bias.requires_grad):
            return super().forward(x)
        if POINTWISE_AS_MATRIX and self._is_pointwise():
            moved = torch.nn.functional.linear(x.permute(0, 2, 3, 1), self.weight.flatten(1), self.bias)
            return moved.permute(0, 3, 1, 2)
        weight = self.weight
        if self.in_channels == 3 < STEM_CHANNELS and self.groups == 1:
            extra = STEM_CHANNELS - 3
            x = _padded(x, extra)
            weight = _padded(weight, extra)
        if not (torch.is_grad_enabled() and x.requires_grad):
            return nn.functional.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)
        return _InputGradientOnly.apply(
            x, weight, self.bias, list(self.stride), list(self.padding), list(self.dilation), self.groups
        )

    def _is_pointwise(self) -> bool:
        whole = self.kernel_size == (1, 1) and self.stride == (1, 1) and self.padding == (0, 0)
        return whole and self.groups == 1


def freeze_convolutions(module: nn.Module) -> None:
    """Make the plain convolutions of ``module`` ``FrozenConv2d``s, in place; subclasses stay what they are."""
    for child in module.modules() if INPUT_GRADIENT_ONLY else ():
        if type(child) is nn.Conv2d and child.padding_mode == "zeros" and not isinstance(child.padding, str):
            child.__class__ = FrozenConv2d


def _padded(x: Tensor, channels: int) -> Tensor:
    """x [N, C, H, W] with ``channels`` more of zeros; the memory format stays."""
    return nn.functional.pad(x, (0, 0, 0, 0, 0, channels))


class _InputGradientOnly(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        groups: int,
    ) -> Tensor:
        ctx.save_for_backward(weight)
        last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
        ctx.geometry = (list(x.shape), last, stride, padding, dilation, groups)
        return nn.functional.conv2d(x, weight, bias, stride, padding, dilation, groups)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        return input_gradient(gradient, weight, *ctx.geometry), None, None, None, None, None, None


@torch.library.custom_op("deyo::input_gradient", mutates_args=())
def input_gradient(
    gradient: Tensor,
    weight: Tensor,
    shape: list[int],
    channels_last: bool,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """The gradient of a convolution's input, of size ``shape``, from that of its output."""
    stand_in = _empty(gradient, shape, channels_last)  # only its shape and layout matter
    found, _, _ = torch.ops.aten.convolution_backward(
        gradient, stand_in, weight, None, stride, padding, dilation, False, [0, 0], groups, [True, False, False]
    )
    return found.contiguous(memory_format=_layout(channels_last))


@input_gradient.register_fake
def _(gradient: Tensor, weight: Tensor, shape: list[int], channels_last: bool, *geometry: Any) -> Tensor:
    return _empty(gradient, shape, channels_last)


def _empty(like: Tensor, shape: list[int], channels_last: bool) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=_layout(channels_last))


def _layout(channels_last: bool) -> torch.memory_format:
    return torch.channels_last if channels_last else torch.contiguous_format
