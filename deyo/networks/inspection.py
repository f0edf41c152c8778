"""What an architecture is, seen without memory or weights (PyTorch's meta device)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deyo.types import ConfigError

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Inspection:
    """``family`` and ``norm`` as in ``NetworkInfo``; ``shapes`` of the state dict by key."""

    family: str
    norm: str
    shapes: dict[str, tuple[int, ...]]


def inspect_architecture(name: str, build: Callable[[int], nn.Module], num_classes: int) -> Inspection:
    """Norm layers and weights' shapes of a network. Raises ``ConfigError`` if there is nothing to adapt.

    The norm is that of most norm layers. LayerNorm networks take the ViT's learning-rate rule ("vit"), all
    others the ResNets' (methods.md §1.0).
    """
    import torch
    from torch import nn

    with torch.device("meta"):
        module = build(num_classes)
    kinds: Counter[str] = Counter()
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            kinds["bn"] += 1
        elif isinstance(layer, nn.GroupNorm):
            kinds["gn"] += 1
        elif isinstance(layer, nn.LayerNorm):
            kinds["ln"] += 1
    if not kinds:
        raise ConfigError(
            f"network {name!r} has no BatchNorm2d, GroupNorm or LayerNorm layer, so no method can adapt it; "
            f"choose one that has (resnet50-bn, resnet50-gn, vit-base-ln, ...)"
        )
    norm = kinds.most_common(1)[0][0]
    shapes = {key: tuple(value.shape) for key, value in module.state_dict().items()}
    return Inspection(family="vit" if norm == "ln" else "resnet", norm=norm, shapes=shapes)
