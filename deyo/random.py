"""Counter-based randomness: every number is a hash of explicit keys, so it is the same on any device, in any
batch, on any worker, and needs no state to be saved.

The mixer is splitmix64's finaliser (Steele, Lea and Flood, 2014), computed in int64 (PyTorch's integer
multiplication wraps, as uint64's does). The global generators of PyTorch, NumPy and Python are never used.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as int64
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64 (torch's is arithmetic)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def hash64(*keys: Tensor | int) -> Tensor:
    """Mix integer keys (broadcast against each other) into int64 hashes; the order of keys matters.

    At least one key must be a tensor, which decides the device; ints are taken modulo 2^64.
    """
    device = next(k.device for k in keys if isinstance(k, Tensor))
    state = torch.zeros((), dtype=torch.int64, device=device)
    for key in keys:
        value = key.to(torch.int64) if isinstance(key, Tensor) else _as_int64(key)
        state = _mix((state ^ value) + _GOLDEN)
    return state


def uniform(*keys: Tensor | int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Uniform numbers in [0, 1): 24 bits of the hash in float32, 53 bits in float64."""
    bits = 53 if dtype == torch.float64 else 24
    return _shift_right(hash64(*keys), 64 - bits).to(dtype) * 2.0**-bits


def normal(*keys: Tensor | int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal numbers by Box and Muller's transform (devices agree up to rounding)."""
    bits = hash64(*keys)
    first = (_shift_right(bits, 11).to(torch.float64) + 0.5) * 2.0**-53
    second = _shift_right(_mix(bits + _GOLDEN), 11).to(torch.float64) * 2.0**-53
    return ((-2.0 * first.log()).sqrt() * (2.0 * math.pi * second).cos()).to(dtype)


def permutations(*keys: Tensor | int, length: int) -> Tensor:
    """Independent random permutations of 0..length-1, int64 [..., length], one for each key."""
    base = hash64(*keys)
    lanes = torch.arange(length, device=base.device)
    return hash64(base.unsqueeze(-1), lanes).argsort(dim=-1, stable=True)


def _as_int64(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value
