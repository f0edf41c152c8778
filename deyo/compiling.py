"""torch.compile as the engine uses it: for fixed shapes, with kernels chosen by rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from deyo.batch_norm import batch_norm_over_runs
from deyo.numerics import code_digest

BY_RULE = True
"""Inductor otherwise times several kernels for a reduction and takes the fastest, which may be another one in the next
process, and sum in another order: two workers would differ in their last bits."""


def compiled(function: Callable[..., Any], options: Mapping[str, Any] | None = None) -> Any:
    """``function`` compiled by Inductor with ``options``; the same function and shapes give the same kernels."""
    import torch._inductor.config as inductor

    _prepare()
    chosen = {"deterministic": True} if BY_RULE and hasattr(inductor, "deterministic") else {}
    return torch.compile(function, dynamic=False, options={**chosen, **(options or {})})


def _prepare() -> None:
    """What all that is compiled has in common; every time, for from PyTorch 2.14 on settings are a thread's own."""
    import torch._functorch.config as autograd
    import torch._inductor.config as inductor

    from deyo.kernels import choose_kernels

    choose_kernels()
    # Later, autograd's own thread would compile a backward, without these settings.
    autograd.force_non_lazy_backward_lowering = True
    # Looking into BatchNorm, of which a ResNet-50 has 53, takes Dynamo longer than all the rest of the network.
    torch.compiler.allow_in_graph(batch_norm_over_runs)
    # Otherwise graphs that hold it are traced anew in every process.
    autograd.autograd_cache_allow_custom_autograd_functions = True
    name = f"{batch_norm_over_runs.__module__}.{batch_norm_over_runs.__name__}"
    inductor.unsafe_marked_cacheable_functions[name] = code_digest()
