"""Builders of the modules that the registry names. Each imports what it needs only when called."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

SMALL_CHANNELS = (8, 16, 24, 32)
SMALL_GROUPS = 4


def small_resnet(num_classes: int, *, norm: str) -> nn.Module:
    """A four-block ResNet for small images: 45,000 weights; the architecture of the parity cases.

    ``norm`` is "bn" or "gn" (groups of ``SMALL_GROUPS``). Layer names are the ResNet's (``layer4`` counts as
    its upper part where methods adapt the lower norm layers only).
    """
    from timm.layers import GroupNorm
    from timm.models.resnet import BasicBlock, ResNet
    from torch import nn

    layer = nn.BatchNorm2d if norm == "bn" else partial(GroupNorm, num_groups=SMALL_GROUPS)
    return ResNet(BasicBlock, (1, 1, 1, 1), num_classes=num_classes, channels=SMALL_CHANNELS, norm_layer=layer)


def torchvision_module(num_classes: int, *, name: str) -> nn.Module:
    """A torchvision classification network, initialised at random."""
    from torchvision.models import get_model

    return get_model(name, weights=None, num_classes=num_classes)


def timm_module(num_classes: int, *, name: str, arguments: dict[str, Any] | None = None) -> nn.Module:
    """A timm network, initialised at random. ``name`` may carry a tag, which fixes details of some models."""
    import timm

    return timm.create_model(name, pretrained=False, num_classes=num_classes, **(arguments or {}))
