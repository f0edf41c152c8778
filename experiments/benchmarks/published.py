"""The published step functions' operations, one run at a time in plain PyTorch: the baseline of the benchmarks.

These do what the authors' code does in its order (methods.md §1): norm layers in batch-statistics mode, the
selected subset forwarded again, torch.optim.SGD, no graphs, no compilation, PyTorch's default precision.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deyo.losses import entropy
from deyo.model import norm_names
from deyo.transforms import draw, shuffle_patches


class PublishedStep:
    """``step(images)`` on normalised images [B, 3, H, W].

    ``margin`` and ``plpd_threshold`` decide what is selected: everything, unless set otherwise.
    """

    def __init__(self, method: str, module: nn.Module) -> None:
        self.method = method
        self.module = module.train().requires_grad_(False)
        names = set(norm_names(module, "all" if method == "eata" else "lower"))
        parameters = []
        for name, layer in module.named_modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.track_running_stats, layer.running_mean, layer.running_var = False, None, None
            if name in names:
                parameters += [layer.weight.requires_grad_(True), layer.bias.requires_grad_(True)]
        self.parameters = parameters
        self.optimizer = torch.optim.SGD(parameters, lr=2.5e-4, momentum=0.9)
        self.margin = math.inf
        self.plpd_threshold = -2.0

    def step(self, images: Tensor) -> Tensor:
        if self.method == "no-adapt":
            with torch.no_grad():
                return self.module(images)
        return getattr(self, f"_{self.method}")(images)

    def _tent(self, images: Tensor) -> Tensor:
        logits = self.module(images)
        self._descend(entropy(logits).mean())
        return logits

    def _eata(self, images: Tensor) -> Tensor:
        logits = self.module(images)
        own = entropy(logits)
        kept = torch.where(own < self.margin)[0]
        if len(kept):
            F.cosine_similarity(torch.zeros_like(logits[:1]), logits[kept].softmax(1), dim=1)
            self._descend((own[kept] * (0.4 * math.log(1000) - own[kept].detach()).exp()).mean())
        return logits

    def _sar(self, images: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        logits = self.module(images)
        own = entropy(logits)
        kept = torch.where(own < self.margin)[0]
        if not len(kept):
            return logits
        own[kept].mean().backward()
        norm = torch.stack([p.grad.norm() for p in self.parameters]).norm()
        before = [p.detach().clone() for p in self.parameters]
        with torch.no_grad():
            for p in self.parameters:
                p.add_(p.grad * 0.05 / (norm + 1e-12))
        self.optimizer.zero_grad()
        second = entropy(self.module(images[kept]))
        loss = second[torch.where(second < self.margin)[0]].mean()
        float(loss)
        loss.backward()
        with torch.no_grad():
            for p, value in zip(self.parameters, before):
                p.copy_(value)
        self.optimizer.step()
        return logits

    def _deyo(self, images: Tensor) -> Tensor:
        logits = self.module(images)
        own = entropy(logits)
        certain = torch.where(own < self.margin)[0]
        if not len(certain):
            return logits
        subset = images[certain].detach()
        order = draw("patch", torch.zeros(1, dtype=torch.int64), 0, batch=len(subset), size=224, patches=4)[0]
        with torch.no_grad():
            after = self.module(shuffle_patches(subset, order.to(images.device), 4)).softmax(1)
        before = logits[certain].softmax(1)
        label = before.argmax(1, keepdim=True)
        plpd = (before.gather(1, label) - after.gather(1, label)).squeeze(1)
        kept = torch.where(plpd > self.plpd_threshold)[0]
        if not len(kept):
            return logits
        own, plpd = own[certain][kept], plpd[kept].detach()
        weight = (0.4 * math.log(1000) - own.detach()).exp() + plpd.exp()
        self._descend((own * weight).mean())
        return logits

    def _descend(self, loss: Tensor) -> None:
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
