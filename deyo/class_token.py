"""The last block of a vision transformer computed for its class token alone: the same logits, less work.

A classifier that reads only the class token needs, of the last block, keys and values of all tokens but the query,
the projection and the MLP of one. That is about a twelfth of ViT-B/16 saved in every forward and backward.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

_TIMM = "timm.models.vision_transformer"
_ATTENTION = (_TIMM, "timm.layers.attention")  # in earlier versions of timm, and in later ones


class ClassTokenBlock(nn.Module):
    """A timm ``Block`` (sharing its layers, under the same names) that maps tokens [N, T, D] to [N, 1, D]."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        for name, child in block.named_children():
            self.add_module(name, child)

    def forward(self, x: Tensor) -> Tensor:
        token = x[:, :1] + self.drop_path1(self.ls1(self._attend(self.norm1(x))))
        return token + self.drop_path2(self.ls2(self.mlp(self.norm2(token))))

    def _attend(self, x: Tensor) -> Tensor:
        attention = self.attn
        width, heads, size = attention.num_heads * attention.head_dim, attention.num_heads, attention.head_dim
        weight, bias = attention.qkv.weight, attention.qkv.bias
        query = F.linear(x[:, :1], weight[:width], None if bias is None else bias[:width])
        both = F.linear(x, weight[width:], None if bias is None else bias[width:])
        query = query.view(len(x), 1, heads, size).transpose(1, 2)
        key, value = both.view(len(x), -1, 2, heads, size).permute(2, 0, 3, 1, 4).unbind(0)
        query, key = attention.q_norm(query), attention.k_norm(key)
        out = F.scaled_dot_product_attention(query, key, value)
        return attention.proj(out.transpose(1, 2).reshape(len(x), 1, width))


def trim_last_block(module: nn.Module) -> bool:
    """Replace the last block of ``module`` (in place) where its output beyond the class token is never used.

    Only plain timm vision transformers with a class token qualify; returns whether it was done.
    """
    if type(module).__module__ != _TIMM:
        return False
    from timm.models.vision_transformer import Block, VisionTransformer  # seconds, that others need not wait

    if type(module) is not VisionTransformer or module.global_pool != "token":
        return False
    plain_head = module.attn_pool is None and module.cls_token is not None and module.num_prefix_tokens == 1
    last = module.blocks[-1]
    if not plain_head or type(last) is not Block or not is_plain_attention(last.attn):
        return False
    module.blocks[-1] = ClassTokenBlock(last)
    return True


def is_plain_attention(module: nn.Module) -> bool:
    """Whether ``module`` is timm's ``Attention`` without what later versions may put before its projection."""
    if type(module).__name__ != "Attention" or type(module).__module__ not in _ATTENTION:
        return False
    extras = (getattr(module, "norm", None), getattr(module, "gate", None))
    return all(extra is None or isinstance(extra, nn.Identity) for extra in extras)
