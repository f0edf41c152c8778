"""A network that R runs share: one forward, per-run norm parameters, everything else frozen.

No method but MEMO adapts anything except the weights and biases of norm layers, so R independent runs can use
one set of convolution and linear weights. All adapted values lie in one flat tensor ``theta`` [R, P], of which
the layers' parameters are views: optimiser steps, resets and checkpoints touch one tensor.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from deyo.attention import pad_attention
from deyo.class_token import trim_last_block
from deyo.gelu import take_tails
from deyo.norms import NormState, RunBatchNorm, RunGroupNorm, RunNorm, run_norm_for
from deyo.patches import cut_patches
from deyo.precision import activation_dtype, parameter_dtype
from deyo.relus import look_at_inputs
from deyo.stem import pack_stem
from deyo.types import ConfigError, MethodContext

_UPPER_MARKS = ("layer4", "blocks.9", "blocks.10", "blocks.11", "norm.")
_WRAPPER_PREFIXES = ("module.", "_orig_mod.")


def plain_name(name: str) -> str:
    """A module's name without the prefixes of DataParallel, DDP and torch.compile, wherever they stand."""
    for prefix in _WRAPPER_PREFIXES:
        name = name.removeprefix(prefix).replace("." + prefix, ".")
    return name


def in_lower_subset(name: str) -> bool:
    """Whether a norm layer belongs to SAR's ``lower`` subset, by the literal name rule (methods.md §1.0)."""
    name = plain_name(name)
    return name != "norm" and not any(mark in name for mark in _UPPER_MARKS)


def norm_names(module: nn.Module, subset: str = "all") -> list[str]:
    """Names of the affine norm layers of ``module`` that ``subset`` ("all" or "lower") adapts, in order."""
    if subset not in ("all", "lower"):
        raise ConfigError(f"adapted={subset!r} is unknown: choose 'all' or 'lower'")
    names = [plain_name(n) for n, m in module.named_modules() if run_norm_for(m) or isinstance(m, RunNorm)]
    return [n for n in names if subset == "all" or in_lower_subset(n)]


class RunsNetwork(nn.Module):
    """A copy of ``context.network`` whose norm layers have a run axis.

    Parameters ``adapted``: "all", "lower" (methods.md §1.0), or None (nothing is adapted). ``frozen``: nobody
    else adapts what is no norm layer.

    ``theta`` [R, P] holds the adapted values; ``parameters_adapted`` are its views in layer order (weight, bias
    of each). Raises ConfigError if the subset is empty, or a norm layer is of a kind that has no run axis.
    """

    def __init__(self, context: MethodContext, adapted: str | None, *, frozen: bool = True) -> None:
        super().__init__()
        network = context.network
        self.runs = context.runs
        self.state = NormState(runs=self.runs)
        self.dtype = parameter_dtype(context.precision)
        self.module = copy.deepcopy(network.module).eval().requires_grad_(False)
        trim_last_block(self.module)
        self._replace_norms()
        self.to(context.device, self.dtype)
        self.layers = dict(self._norm_layers())
        self.activations = activation_dtype(context.precision)
        self._cast_frozen()
        if context.device.type == "cuda":
            self.module.to(memory_format=torch.channels_last)
            pack_stem(self.module, frozen=frozen)
            look_at_inputs(self.module)
            pad_attention(self.module)
            cut_patches(self.module)
            take_tails(self.module)
        self.forward_module: nn.Module = self.module
        self.batch_norms = [m for m in self.layers.values() if isinstance(m, RunBatchNorm)]
        self.adapted_names = norm_names(self.module, adapted) if adapted else []
        if adapted and not self.adapted_names:
            raise ConfigError(f"network {network.name!r} has no norm layer in the subset {adapted!r}")
        self.bind_parameters(alike=context.device.type == "cuda" and adapted is not None)
        columns = context.class_columns
        self.columns = None if columns is None else torch.as_tensor(columns, device=context.device)
        shape = (1, 1, 3, 1, 1)
        self.register_buffer("mean", torch.tensor(network.mean, device=context.device).view(shape))
        self.register_buffer("white", torch.tensor(255.0, device=context.device))
        self.register_buffer("std", torch.tensor(network.std, device=context.device).view(shape))

    def normalize(self, pixels: Tensor) -> Tensor:
        """uint8 [R, B, 3, H, W] -> the network's input, normalised in float32, then in the profile's dtype."""
        # Divided by a tensor, since a GPU divides by a Python number through its reciprocal, which rounds twice.
        return ((pixels.to(torch.float32) / self.white - self.mean) / self.std).to(self.activations)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        statistics: str = "batch",
    ) -> Tensor:
        """Logits [R, B, C] of normalised x [R, B, 3, H, W].

        ``mask`` bool [R, B] restricts BatchNorm statistics to those samples of each run; a run without any uses
        all of its samples (its output is then of no use, but finite). See ``NormState`` for ``statistics``.
        """
        state = self.state
        state.mask, state.statistics = self._complete(mask, x) if self.batch_norms else None, statistics
        flat = x.flatten(0, 1)
        if flat.is_cuda:
            flat = flat.contiguous(memory_format=torch.channels_last)
        logits = self.forward_module(flat).view(x.shape[0], x.shape[1], -1)
        if logits.dtype != self.dtype:
            logits = logits.to(self.dtype)
        return logits if self.columns is None else logits[..., self.columns]

    def _complete(self, mask: Tensor | None, x: Tensor) -> Tensor | None:
        """The mask of a forward: compiled, there always is one, so that forwards with and without share their code."""
        if mask is not None:
            return mask | ~mask.any(dim=1, keepdim=True)
        compiled = self.forward_module is not self.module
        return torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if compiled else None

    def single_valued(self, count: Tensor) -> Tensor:
        """bool [R]: runs whose forward of ``count`` [R] samples gave a BatchNorm one value per channel."""
        if any(layer.smallest_map == 1 for layer in self.batch_norms):
            return count < 2
        return torch.zeros_like(count, dtype=torch.bool)

    def reset(self, runs: Tensor | None = None) -> None:
        """Source values back into ``theta``; for the runs of a bool [R] mask, or for all."""
        with torch.no_grad():
            if runs is None:
                self.theta.copy_(self.source_theta.expand_as(self.theta))
            else:
                self.theta.copy_(torch.where(runs.unsqueeze(1), self.source_theta, self.theta))

    def named_adapted(self) -> Iterator[tuple[str, Tensor]]:
        """(name such as ``layer1.0.bn1.weight``, values [R, C]) of every adapted tensor."""
        for name, parameter in zip(self.adapted_tensor_names, self.parameters_adapted):
            yield name, parameter.detach()

    def _cast_frozen(self) -> None:
        """Everything but the norm layers to the activations' dtype."""
        if self.activations == self.dtype:
            return
        of_norms = {id(t) for layer in self.layers.values() for t in (*layer.parameters(), *layer.buffers())}
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            if tensor.is_floating_point() and id(tensor) not in of_norms:
                tensor.data = tensor.data.to(self.activations)

    def _replace_norms(self) -> None:
        for name, module in list(self.module.named_modules()):
            kind = run_norm_for(module)
            if kind is not None:
                self.module.set_submodule(name, kind(module, plain_name(name), self.state))

    def _norm_layers(self) -> Iterator[tuple[str, RunNorm]]:
        for name, module in self.module.named_modules():
            if isinstance(module, RunNorm):
                yield plain_name(name), module

    def bind_parameters(self, *, alike: bool) -> None:
        """Give every adapted layer its part of ``theta``.

        ``alike`` makes those that are not adapted look the same, with values of their own for every run, so that all
        subsets share one compiled network. Their gradients come with that of the layer's input, where statistics are
        taken over maps (elsewhere they stay as they are); nobody asks for them.
        """
        layers = [self.layers[name] for name in self.adapted_names]
        self.adapted_tensor_names = [f"{n}.{kind}" for n in self.adapted_names for kind in ("weight", "bias")]
        others = [v for n, v in self.layers.items() if n not in self.adapted_names and over_maps(v)] if alike else []
        values = [v.detach() for layer in (*layers, *others) for v in (layer.weight, layer.bias)]
        source = torch.cat(values) if values else torch.zeros(0, dtype=self.dtype)
        adapted = sum(len(v) for v in values[: 2 * len(layers)])
        place = source.repeat(self.runs, 1)
        self.register_buffer("source_theta", source[:adapted].unsqueeze(0).clone())
        self.register_buffer("theta", place[:, :adapted])
        pieces = [nn.Parameter(piece) for piece in place.split([len(v) for v in values], dim=1)]
        for layer, weight, bias in zip((*layers, *others), pieces[::2], pieces[1::2]):
            layer.bind(weight, bias)
        self.parameters_adapted: list[nn.Parameter] = pieces[: 2 * len(layers)]


def over_maps(layer: RunNorm) -> bool:
    """Whether the layer takes statistics over maps, so that its backward has the sums that its own gradients are."""
    return isinstance(layer, RunBatchNorm | RunGroupNorm)
