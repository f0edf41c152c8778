"""Attention over tokens filled up to a multiple of eight: the same values and gradients, in compiled networks alone."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from timm.models.vision_transformer import Attention, VisionTransformer
from torch import Tensor, nn
from traced import compiled

from deyo.attention import PaddedAttention, attend, pad_attention
from deyo.model import RunsNetwork, norm_names
from deyo.types import MethodContext, Network, NetworkInfo

SIDE = 32


def vision_transformer(**options: object) -> VisionTransformer:
    torch.manual_seed(0)
    sizes = {"img_size": SIDE, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": 5}
    module = VisionTransformer(**sizes, **options).eval()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module


@pytest.mark.parametrize("tokens", [17, 24, 197])
def test_tokens_filled_up_change_neither_values_nor_gradients(tokens: int) -> None:
    torch.manual_seed(tokens)
    query, key, value = (torch.randn(2, 3, tokens, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    found, expected = attend(query, key, value), F.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    direction = torch.randn_like(found)
    gradients = [torch.autograd.grad(out, (query, key, value), direction) for out in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-12)


def test_keys_without_weight_have_none_however_small_the_scores_of_the_others() -> None:
    query, key = torch.full((1, 1, 3, 2), 30.0), torch.full((1, 1, 3, 2), -30.0)
    value = torch.arange(6.0).view(1, 1, 3, 2)
    torch.testing.assert_close(attend(query, key, value), value.mean(2, keepdim=True).expand_as(value))


@pytest.mark.parametrize("options", [{}, {"qk_norm": True}, {"qkv_bias": False}, {"global_pool": "avg"}])
def test_a_compiled_network_gives_the_same_logits(options: dict[str, object]) -> None:
    plain = vision_transformer(**options)
    padded = copy.deepcopy(plain)
    pad_attention(padded)
    assert [n for n, _ in padded.named_parameters()] == [n for n, _ in plain.named_parameters()]
    images = torch.randn(4, 3, SIDE, SIDE)
    torch.testing.assert_close(compiled(padded)(images), plain(images), rtol=1e-4, atol=1e-5)
    assert torch.equal(padded(images), plain(images)), "uncompiled, it is timm's own attention"


def test_only_a_compiled_network_of_float32_is_filled_up(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[int] = []

    def watched(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        shapes.append(query.shape[-2])
        return attend(query, key, value)

    monkeypatch.setattr("deyo.attention.attend", watched)
    padded = vision_transformer()
    pad_attention(padded)
    images = torch.randn(2, 3, SIDE, SIDE)
    padded(images)
    compiled(padded.double())(images.double())
    assert shapes == []
    compiled(padded.float())(images)
    assert shapes == [17, 17, 17]


def test_a_masked_attention_is_not_filled_up() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(Attention(24, num_heads=3)).eval()
    plain = module[0]
    pad_attention(module)
    x, mask = torch.randn(2, 5, 24), torch.ones(5, 5, dtype=torch.bool).tril()
    expected = plain(x, attn_mask=mask)
    assert not torch.allclose(expected, plain(x), atol=1e-3)
    torch.testing.assert_close(compiled(module[0])(x, attn_mask=mask), expected)


def test_an_attention_with_more_before_its_projection_stays_as_it_is() -> None:
    attention = Attention(24, num_heads=3, scale_norm=True, norm_layer=nn.LayerNorm)
    module = nn.Sequential(attention, Attention(24, num_heads=3))
    pad_attention(module)
    assert module[0] is attention
    assert isinstance(module[1], PaddedAttention)


def test_runs_of_a_vision_transformer_learn_the_same_through_it() -> None:
    info = NetworkInfo(name="small", family="vit", norm="ln", num_classes=5, image_size=SIDE)
    source = vision_transformer(qk_norm=True)
    network = Network(info=info, module=source, mean=(0.5,) * 3, std=(0.5,) * 3, num_classes=5, sha256="0")
    context = MethodContext(network=network, seeds=[0, 1], batch_size=3, device=torch.device("cpu"))
    plain, padded = (RunsNetwork(context, "lower") for _ in range(2))
    pad_attention(padded.module)
    assert norm_names(padded.module) == norm_names(plain.module)
    padded.forward_module = compiled(padded.module)
    images = torch.randn(2, 3, 3, SIDE, SIDE)
    direction = torch.randn(2, 3, 5)
    outcomes = []
    for one in (plain, padded):
        logits = one(images)
        outcomes.append((logits, *torch.autograd.grad(logits, one.parameters_adapted, direction)))
    torch.testing.assert_close(*outcomes, rtol=1e-3, atol=1e-4)
