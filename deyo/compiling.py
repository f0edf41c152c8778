"""torch.compile as the engine uses it: for fixed shapes, with kernels chosen by rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

BY_RULE = True
"""Inductor otherwise times several kernels for a reduction and takes the fastest, which may be another one in the next
process, and sum in another order: two workers would differ in their last bits."""


def compiled(function: Callable[..., Any], options: Mapping[str, Any] | None = None) -> Any:
    """``function`` compiled by Inductor with ``options``; the same function and shapes give the same kernels."""
    import torch._functorch.config as autograd
    import torch._inductor.config as inductor

    from deyo.kernels import choose_kernels

    choose_kernels()
    autograd.autograd_cache_allow_custom_autograd_functions = True  # else BatchNorm's graphs are traced every time
    chosen = {"deterministic": True} if BY_RULE and hasattr(inductor, "deterministic") else {}
    return torch.compile(function, dynamic=False, options={**chosen, **(options or {})})
