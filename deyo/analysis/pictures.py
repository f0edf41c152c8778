"""Arrays for pictures: Grad-CAM maps (Selvaraju et al., 2017) and one image under every transform."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deyo.augment import augmix
from deyo.model import RunsNetwork
from deyo.precision import numerics
from deyo.random import permutations
from deyo.transforms import destroy
from deyo.types import ConfigError, MethodContext, Network


@dataclass(frozen=True, kw_only=True)
class GradCam:
    """Maps float32 [B, H, W] in [0, 1], and the class that each explains, int64 [B]."""

    heat: np.ndarray
    target: np.ndarray
    layer: str


def grad_cam(
    network: Network,
    pixels: Tensor,
    *,
    target: Tensor | None = None,
    layer: str | None = None,
    statistics: str = "running",
    device: torch.device | str = "cpu",
    precision: str = "float32",
) -> GradCam:
    """Where the network looks for its answer: pixels uint8 [B, 3, H, W].

    ``target`` int64 [B] is the class to explain (the predicted one by default), ``layer`` the name of a
    convolution (by default the last one of ``layer4``, or of the network). A map is ReLU(Σ_k w_k·A_k) with A
    the layer's output and w the mean gradient of the class's logit, resized bilinearly, divided by its maximum
    (all zero where nothing speaks for the class). Raises ConfigError if there is no such convolution.
    """
    context = MethodContext(
        network=network, seeds=[0], batch_size=len(pixels), device=torch.device(device), precision=precision
    )
    model = RunsNetwork(context, None)
    name = layer or last_convolution(model.module)
    kept: list[Tensor] = []
    hooked = dict(model.module.named_modules()).get(name)
    if hooked is None:
        raise ConfigError(f"network {network.name!r} has no layer {name!r}")
    # The network is this function's own copy, so the hook stays with it.
    hooked.register_forward_hook(lambda _module, _inputs, output: kept.append(output.requires_grad_(True)))
    with torch.enable_grad(), numerics(precision, side=pixels.shape[-1]):
        logits = model(model.normalize(pixels.to(context.device).unsqueeze(0)), statistics=statistics)[0]
        wanted = logits.argmax(1) if target is None else target.to(context.device)
        chosen = logits.gather(1, wanted.unsqueeze(1)).sum()
        (gradient,) = torch.autograd.grad(chosen, kept)
    weights = gradient.float().mean((2, 3), keepdim=True)
    heat = (weights * kept[0].detach().float()).sum(1, keepdim=True).relu()
    heat = F.interpolate(heat, size=pixels.shape[-2:], mode="bilinear", align_corners=False)[:, 0]
    peak = heat.amax((1, 2), keepdim=True)
    heat = torch.where(peak > 0, heat / peak.clamp(min=1e-12), 0)
    return GradCam(heat=heat.cpu().numpy(), target=wanted.cpu().numpy(), layer=name)


def last_convolution(module: nn.Module) -> str:
    """Name of the last convolution of ``layer4`` (of the whole network without one), shortcuts aside."""
    names = [
        name
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Conv2d) and not any(mark in name for mark in ("downsample", "shortcut"))
    ]
    late = [name for name in names if "layer4" in name] or names
    if not late or len(names) == 1:  # a ViT's only convolution cuts the patches
        raise ConfigError("Grad-CAM needs a convolutional network; name a convolution with layer=...")
    return late[-1]


def transformed_examples(pixels: Tensor, *, patches: int = 4, seed: int = 0) -> dict[str, np.ndarray]:
    """One image uint8 [3, H, W] as it is and under each transform: name -> uint8 [H, W, 3] (Figure 3)."""
    x = pixels.to(torch.float32).unsqueeze(0)
    side, key = x.shape[-1], torch.tensor([seed])
    orders = {
        "pixel": permutations(key, length=side * side),
        "patch": permutations(key, length=patches * patches),
        "occlusion": None,
    }
    views = {"original": x}
    views |= {kind: destroy(x, kind, order, patches=patches) for kind, order in orders.items()}
    # Without normalisation, views are fractions of 255.
    plain = augmix(pixels.unsqueeze(0), copies=1, keys=key, mean=(0.0,) * 3, std=(1.0,) * 3)[0]
    views["augmix"] = plain * 255
    return {
        name: view[0].round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy() for name, view in views.items()
    }
