"""The training loop of a recipe, one step at a time; images stay on the device, nothing is loaded twice."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deyo.networks.definition import read_state
from deyo.pretrain.captured import CapturedStep
from deyo.pretrain.checkpoint import read_metadata, write
from deyo.pretrain.recipes import Recipe
from deyo.random import permutations
from deyo.transforms import destroy
from deyo.types import ImageSet

RESIDENT_BYTES = 8 * 2**30  # larger sets stay on the host and cross in batches
_ORDER_KEY, _PATCH_KEY = 1, 2


class Trainer:
    """State of one training. ``step`` counts from 0 to ``total_steps``; ``history`` has one entry an epoch.

    The order of images in an epoch and the patch permutations are pure functions of the seed, the epoch and
    the step, so a training that goes on from a saved step gives the numbers of an undisturbed one.
    """

    def __init__(
        self,
        recipe: Recipe,
        module: nn.Module,
        images: ImageSet,
        *,
        seed: int,
        num_classes: int,
        device: torch.device,
    ) -> None:
        self.recipe, self.seed, self.device, self.num_classes = recipe, seed, device, num_classes
        # channels-last pays on tensor cores; on CPUs the plain layout was the faster one
        self.layout = torch.channels_last if device.type == "cuda" else torch.contiguous_format
        self.module = module.to(device, memory_format=self.layout).train()
        self.images = images
        self.labels = torch.as_tensor(np.asarray(images.labels), dtype=torch.int64, device=device)
        self.resident = self._resident_pixels()
        self.mean = torch.tensor(recipe.mean, device=device).view(1, 3, 1, 1)
        self.std = torch.tensor(recipe.std, device=device).view(1, 3, 1, 1)
        self.optimizer = torch.optim.SGD(
            self.module.parameters(),
            lr=recipe.learning_rate,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            fused=True,
        )
        self.steps_per_epoch = -(-len(images) // recipe.batch_size)
        steps = recipe.epochs * self.steps_per_epoch
        self.total_steps = min(steps, recipe.max_steps) if recipe.max_steps else steps
        self.step = 0
        self.history: list[dict[str, float]] = []
        self.sums = torch.zeros(4, dtype=torch.float64, device=device)  # loss, correct, selected, images
        self._order: tuple[int, Tensor] | None = None
        self.captured = CapturedStep(self._learn) if can_capture(recipe, device) else None

    @property
    def epoch(self) -> int:
        """The epoch that ``step`` lies in, from 0."""
        return self.step // self.steps_per_epoch

    def advance(self) -> None:
        """One step: forward, backward, update."""
        indices = self._indices()
        x = self._batch(indices)
        y = self.labels[indices]
        selected = self._selected(x)
        if self.captured is not None and selected is None and len(y) == self.recipe.batch_size:
            self.captured(x, y)
        else:
            self._learn(x, y, selected)
        self.step += 1
        if self.step % self.steps_per_epoch == 0 or self.step == self.total_steps:
            self.history.append(self.averages())
            self.sums.zero_()

    def averages(self) -> dict[str, float]:
        """loss, accuracy and selected share over the epoch so far (the whole of it at its end)."""
        loss, correct, selected, images = self.sums.tolist()
        if images == 0:
            return dict(self.history[-1]) if self.history else {"loss": math.nan, "accuracy": 0.0, "selected": 1.0}
        return {"loss": loss / images, "accuracy": correct / images, "selected": selected / images}

    def _learn(self, x: Tensor, y: Tensor, selected: Tensor | None = None) -> None:
        """Forward, backward and update on pixels [B, 3, H, W] and labels [B]; the loss is over the ``selected``."""
        logits = self.module(x)
        losses = F.cross_entropy(logits, y, reduction="none")
        weight = torch.ones_like(losses) if selected is None else selected.to(losses.dtype)
        loss = (losses * weight).sum() / weight.sum().clamp(min=1)
        self._update(loss, skip=selected is not None and not bool(selected.any()))
        correct = (logits.detach().argmax(1) == y).sum()
        self.sums[:3] += torch.stack([losses.detach().sum(), correct, weight.sum()])
        self.sums[3] += len(y)

    def _update(self, loss: Tensor, *, skip: bool) -> None:
        """An empty selection moves nothing, momentum included."""
        if skip:
            return
        for group in self.optimizer.param_groups:
            group["lr"] = self._learning_rate()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()

    def _learning_rate(self) -> float:
        top = self.recipe.learning_rate
        if self.recipe.schedule == "constant":
            return top
        done = (self.step + 1) / self.total_steps
        if done < 0.3:
            return top * done / 0.3
        return top * 0.5 * (1 + math.cos(math.pi * (done - 0.3) / 0.7))

    @torch.no_grad()
    def _selected(self, x: Tensor) -> Tensor | None:
        """bool [B]: samples with PLPD > threshold, in eval mode for x and x' alike (running statistics stay
        untouched); None while all samples count. The pseudo-label is the network's own (methods.md §4)."""
        start = self.recipe.plpd_from_epoch
        if start is None or self.epoch < start:
            return None
        patches = self.recipe.plpd_patches
        samples = torch.arange(len(x), device=self.device)
        order = permutations(self.seed, _PATCH_KEY, self.step, samples, length=patches * patches)
        self.module.eval()
        before = self.module(x).softmax(1)
        after = self.module(destroy(x, "patch", order, patches=patches)).softmax(1)
        self.module.train()
        label = before.argmax(1, keepdim=True)
        plpd = (before.gather(1, label) - after.gather(1, label)).squeeze(1)
        return plpd > self.recipe.plpd_threshold

    def _indices(self) -> Tensor:
        epoch, batch = divmod(self.step, self.steps_per_epoch)
        if self._order is None or self._order[0] != epoch:
            key = torch.tensor(epoch, device=self.device)
            self._order = epoch, permutations(self.seed, _ORDER_KEY, key, length=len(self.images))
        start = batch * self.recipe.batch_size
        return self._order[1][start : start + self.recipe.batch_size]

    def _batch(self, indices: Tensor) -> Tensor:
        if self.resident is not None:
            pixels = self.resident[indices]
        else:
            pixels = _channels_first(self.images.pixels[indices.cpu().numpy()]).to(self.device)
        x = (pixels.to(torch.float32) / 255.0 - self.mean) / self.std
        return x.contiguous(memory_format=self.layout)

    def _resident_pixels(self) -> Tensor | None:
        count, height, width, channels = self.images.pixels.shape
        if count * height * width * channels > RESIDENT_BYTES:
            return None
        every = np.arange(count)
        return _channels_first(self.images.pixels[every]).to(self.device)

    def save(self, path: Path) -> None:
        """Everything needed to go on: weights, momentum, counters, the epoch's sums."""
        tensors = {f"module.{k}": v for k, v in self.module.state_dict().items()}
        for name, parameter in self.module.named_parameters():
            buffer = self.optimizer.state[parameter].get("momentum_buffer")
            if buffer is not None:
                tensors[f"momentum.{name}"] = buffer
        tensors["sums"] = self.sums
        write(path, tensors, {"step": self.step, "history": self.history, "recipe": self.recipe.identity()})

    def load(self, path: Path) -> None:
        """Go on where ``save`` was called."""
        metadata, state = read_metadata(path), read_state(path)
        self.module.load_state_dict(_under("module.", state))
        momentum = _under("momentum.", state)
        for name, parameter in self.module.named_parameters():
            if name in momentum:
                buffer = momentum[name].to(self.device)
                self.optimizer.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(buffer)
        self.sums.copy_(state["sums"])
        self.step, self.history = _counters(metadata)


def can_capture(recipe: Recipe, device: torch.device) -> bool:
    """Whether steps of ``recipe`` can be a CUDA graph: what changes from step to step must be a tensor, and a learning
    rate is a number, so that it has to be constant."""
    return device.type == "cuda" and recipe.schedule == "constant"


def _counters(metadata: dict[str, Any]) -> tuple[int, list[dict[str, float]]]:
    return int(metadata["step"]), list(metadata["history"])


def _under(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def _channels_first(pixels: np.ndarray) -> Tensor:
    """uint8 [n, H, W, 3] -> uint8 [n, 3, H, W], still channels-last in memory."""
    return torch.from_numpy(np.ascontiguousarray(pixels)).permute(0, 3, 1, 2)
