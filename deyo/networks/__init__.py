"""Networks by name: what a name means, its weights, and the normalisation that those weights want.

| name | weights | normalisation |
|---|---|---|
| ``resnet18-bn`` | torchvision IMAGENET1K_V1, or pretrained by a recipe (``deyo.pretrain``) | ImageNet |
| ``resnet50-bn`` | torchvision IMAGENET1K_V1 | ImageNet |
| ``resnet50-gn`` | timm ``resnet50_gn.a1h_in1k`` | ImageNet |
| ``vit-base-ln``, ``vit-base-ln+paper`` | timm ``vit_base_patch16_224.augreg_in21k_ft_in1k`` | ImageNet (the paper's) |
| ``vit-base-ln+modern`` | timm ``vit_base_patch16_224.augreg2_in21k_ft_in1k`` | mean = std = 0.5 |
| ``small-resnet-bn``, ``small-resnet-gn`` | pretrained by a recipe in seconds | of the benchmark |
| ``timm:NAME.TAG``, ``torchvision:NAME@WEIGHTS`` | of that tag | of that tag |
| ``file:PATH.safetensors[@ARCHITECTURE]`` | a file of yours | of the file or the architecture |
| ``demo:efficientnet-lite0`` | from an installed package | mean = std = 0.5 |

The ViT's normalisation decides what it gives without adaptation (``ANCHORS``); the paper's numbers need ``+paper``.

Networks that a recipe pretrains take options after the name: ``resnet18-bn+pretrained-init``,
``resnet50-bn+plpd``, ``resnet18-bn+steps=50`` (see ``deyo.pretrain``). An installed package adds networks
through the entry-point group ``deyo.networks`` (see ``NetworkDefinition``).
"""

from __future__ import annotations

from deyo.anchors import ANCHORS, Anchor
from deyo.networks.definition import FileWeights, NetworkDefinition, Weights
from deyo.networks.loading import load_network, weights_id
from deyo.networks.registry import network_info, network_names

__all__ = [
    "ANCHORS",
    "Anchor",
    "FileWeights",
    "NetworkDefinition",
    "Weights",
    "load_network",
    "network_info",
    "network_names",
    "weights_id",
]
