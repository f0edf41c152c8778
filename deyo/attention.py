"""Attention of vision transformers in float32, over a number of tokens that a GPU's matrix units like.

A 14×14 grid of patches and a class token are 197 tokens, and a row of 197 float32 values does not end where the next
may begin to be read 16 bytes at a time: products with such matrices take kernels several times slower. Zeros up to 200
tokens cost no pass over memory, as queries, keys and values are written anew for each head anyway.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deyo.class_token import is_plain_attention

TOKENS = 8
"""Rows are filled up to a multiple of so many values."""


class PaddedAttention(nn.Module):
    """A plain timm ``Attention`` (sharing its layers, under the same names), for the compiler; otherwise that itself.

    Tokens [N, T, D] -> [N, T, D]: softmax(q kᵀ / √d) v over the T keys, up to rounding.
    """

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        for name, child in attention.named_children():
            self.add_module(name, child)
        self._plain = (attention,)  # its layers have their place, and so their names, here
        self.num_heads, self.head_dim = attention.num_heads, attention.head_dim

    def forward(self, x: Tensor, **options: Any) -> Tensor:
        masked = any(value is not None and value is not False for value in options.values())
        if masked or not torch.compiler.is_compiling() or x.dtype != torch.float32:
            return self._plain[0](x, **options)
        images, tokens, _ = x.shape
        shape = (images, tokens, 3, self.num_heads, self.head_dim)
        query, key, value = self.qkv(x).view(shape).permute(2, 0, 3, 1, 4).unbind(0)
        query, key = self.q_norm(query), self.k_norm(key)
        out = attend(query, key, value).transpose(1, 2).reshape(images, tokens, -1)
        return self.proj(out)


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """softmax(q kᵀ / √d) v of query, key and value [N, heads, T, d], with T filled up by keys of no weight."""
    tokens, size = query.shape[-2:]
    filling = -tokens % TOKENS
    query, key, value = (F.pad(t, (0, 0, 0, filling)) for t in (query * size**-0.5, key, value))
    scores = query @ key.transpose(-2, -1)
    is_token = torch.arange(tokens + filling, device=scores.device) < tokens
    weights = torch.where(is_token, scores, -torch.inf).softmax(-1)
    return (weights @ value)[:, :, :tokens]


def pad_attention(module: nn.Module) -> None:
    """Make the plain attentions of ``module`` ``PaddedAttention``s, in place."""
    for name, child in list(module.named_modules()):
        if is_plain_attention(child):
            module.set_submodule(name, PaddedAttention(child))
