"""MEMO (Zhang et al., NeurIPS 2022): test one image at a time, after one step on it alone (methods.md §1.5).

For every image: N AugMix views, the entropy of their mean prediction, one step on all parameters from the source
weights, then the prediction for the image itself with the stepped weights, which are thrown away. The source
weights are never written to, so they are the same bits before and after.

BatchNorm mixes the source's statistics with those of the forward at hand (the N views; then the one image), as
MEMO's code does: source weight 16/17, the current variance unbiased, no gradient through statistics. The layers
of this method's own copy are replaced; no class is changed.

Departures from the published script: its one AdamW lives across images, so that moments leak from one to the
next; here each image starts afresh. An image's views are drawn from its content and the run's seed, so the
answer to an image is the same in every scenario and order.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from deyo.augment import augmix, content_keys
from deyo.losses import entropy, finite_rows, quiet
from deyo.norms import NormState, RunBatchNorm, run_norm_for, widened
from deyo.precision import check_profile, numerics, parameter_dtype
from deyo.protocols import Situation
from deyo.settings import Bounded, setting
from deyo.types import ConfigError, MethodContext, StepReport

SMALL_IMAGES = ("cifar10-c", "colored-mnist", "colored-digits", "digits-c")
"""Benchmarks of 28 or 32 px, which take the settings of MEMO's CIFAR script."""

Wrap = Callable[..., Callable[..., tuple[Tensor, ...]]]
"""``wrap(function, compilable=bool)``: a faster function that returns the same."""

_SMALL_SIDE = 64
_VIEWS_AT_ONCE = 1024
_SMALL_IMAGES_AT_ONCE = 8
_ADAM_BETAS = (0.9, 0.999)
_ADAM_EPSILON = 1e-8


@dataclass(frozen=True, kw_only=True)
class MEMOSettings(Bounded):
    """Settings of MEMO."""

    views: int = setting(
        64, doc="N, AugMix views an image: 64 on ImageNet, 32 at 28 and 32 px (MEMO's scripts)", at_least=1
    )
    steps: int = setting(1, doc="gradient steps an image (MEMO's niter)", at_least=1)
    optimizer: Literal["sgd", "adamw"] = setting(
        "sgd", doc="sgd without momentum for ResNets, adamw for ViTs (MEMO's scripts; methods.md §1.5)"
    )
    learning_rate: float = setting(
        2.5e-4, doc="step size: 2.5e-4 with sgd, 1e-5 with adamw, 5e-3 at 28 and 32 px (MEMO's scripts)", at_least=0
    )
    weight_decay: float = setting(
        0.0, doc="decoupled weight decay of adamw: 0.01 (MEMO's scripts); 0 with sgd", at_least=0
    )
    prior_strength: float = setting(
        16.0, doc="s: BatchNorm's source statistics weigh s/(s+1), the current ones 1/(s+1); s < 0: source's alone"
    )

    @property
    def prior(self) -> float:
        """Weight of the source's BatchNorm statistics."""
        return 1.0 if self.prior_strength < 0 else self.prior_strength / (self.prior_strength + 1)


class MEMO:
    """R·B images, each on its own: R runs cost what R times as many images do, and share nothing.

    ``source`` [P] holds all parameters, end to end. ``context.options["memo_images_at_once"]`` is how many
    images one vectorised step holds (each with its own gradients of all parameters); by default 8 up to 64 px
    on a GPU, which a single small image leaves idle, and 1 elsewhere. ``report``: entropy and prediction are
    those after the step; ``passed_both`` marks the images stepped on; a run counts as skipped if none of its
    images was. Nothing is reset in the report's sense. ``wrap``, if set, makes one episode faster (``deyo.fast``).
    """

    name: ClassVar[str] = "memo"
    lockstep: ClassVar[bool] = True
    Settings: ClassVar[type] = MEMOSettings

    def __init__(self, context: MethodContext, settings: Sequence[MEMOSettings]) -> None:
        check_profile(context.precision)
        if len(settings) != context.runs or not settings:
            raise ConfigError(f"{len(settings)} settings for {context.runs} runs: one each, at least one")
        self.context = context
        self.settings = list(settings)
        self.dtype = parameter_dtype(context.precision)
        self.module = _with_prior(context.network.module).to(context.device, self.dtype)
        self.batch_norms = [m for m in self.module.modules() if isinstance(m, PriorBatchNorm)]
        named = dict(self.module.named_parameters())
        self.shapes = {name: p.shape for name, p in named.items()}
        self.source = torch.cat([p.detach().flatten() for p in named.values()])
        on_gpu = context.device.type == "cuda"
        self.memory_format = torch.channels_last if on_gpu else torch.contiguous_format
        columns = context.class_columns
        self.columns = None if columns is None else torch.as_tensor(columns, device=context.device)
        self.seeds = torch.tensor([int(s) for s in context.seeds], device=context.device)
        self.steps = torch.zeros((), dtype=torch.int64, device=context.device)
        self.wrap: Wrap | None = None
        self.wrapped: dict[tuple[MEMOSettings, bool], Callable[..., tuple[Tensor, ...]]] = {}
        self.report: StepReport

    @classmethod
    def defaults(cls, situation: Situation) -> Mapping[str, Any]:
        size = situation.info.image_size
        small = situation.benchmark in SMALL_IMAGES or (size is not None and size <= _SMALL_SIDE)
        views = {"views": 32 if small else 64}
        if situation.info.family == "vit":
            return views | {"optimizer": "adamw", "learning_rate": 1e-5, "weight_decay": 0.01}
        return views | {"learning_rate": 5e-3 if small else 2.5e-4}

    def step(self, pixels: Tensor) -> Tensor:
        """Logits [R, B, C] of uint8 pixels [R, B, 3, H, W], each image's after its own step."""
        keys = content_keys(self.seeds, pixels)
        answers: list[Tensor] = []
        updated: list[Tensor] = []
        with numerics(self.context.precision, side=pixels.shape[-1], autocast_on=self.context.device):
            for run, settings in enumerate(self.settings):
                logits, stepped = self._episodes(pixels[run], keys[run], settings)
                answers.append(logits)
                updated.append(stepped)
        self.steps += 1
        logits = torch.stack(answers)
        self._report(logits, torch.stack(updated))
        return logits

    def reset(self) -> None:
        """Nothing to do: every image starts from the source."""

    def state_dict(self) -> dict[str, Tensor]:
        """The count of steps; an episodic method carries nothing else."""
        return {"steps": self.steps.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.steps.copy_(state["steps"])

    def _episodes(self, pixels: Tensor, keys: Tensor, settings: MEMOSettings) -> tuple[Tensor, Tensor]:
        """Logits [B, C] and stepped bool [B] of B images; their views are made many images at a time."""
        block = max(1, _VIEWS_AT_ONCE // settings.views)
        parts = [
            self._block(pixels[start : start + block], keys[start : start + block], settings)
            for start in range(0, len(pixels), block)
        ]
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])

    def _block(self, pixels: Tensor, keys: Tensor, settings: MEMOSettings) -> tuple[Tensor, Tensor]:
        network = self.context.network
        make = partial(augmix, pixels, keys=keys, mean=network.mean, std=network.std, dtype=self.dtype)
        views = make(copies=settings.views).transpose(0, 1)
        together = self._images_at_once(pixels.shape[-1])
        images = self._normalize(pixels)
        parts = []
        for start in range(0, len(pixels), together):
            inputs = views[start : start + together], images[start : start + together]
            run = self._episode_of(settings, vectorised=together > 1, whole=len(inputs[0]) == together)
            if together > 1:
                with sdpa_kernel(SDPBackend.MATH):  # the fused attention kernels have no vectorised form
                    parts.append(run(*inputs))
            else:
                one = inputs[0][0].contiguous(memory_format=self.memory_format), inputs[1][0]
                parts.append(tuple(v.unsqueeze(0) for v in run(*one)))
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])

    def _episode_of(
        self, settings: MEMOSettings, *, vectorised: bool, whole: bool
    ) -> Callable[..., tuple[Tensor, ...]]:
        """``_episode`` with ``settings``, over many images at once if ``vectorised``.

        Sped up if ``wrap`` is set, and it is a ``whole`` block: the shape that comes again and again.
        """
        episode = partial(self._episode, settings=settings)
        plain = vmap(episode) if vectorised else episode
        if self.wrap is None or not whole:
            return plain
        place = settings, vectorised
        if place not in self.wrapped:
            self.wrapped[place] = self.wrap(plain, compilable=not vectorised)
        return self.wrapped[place]

    def adopt(self, fresh: MEMO) -> bool:
        """Go on as ``fresh``, a MEMO of the same network and precision: its runs, settings and seeds.

        Graphs of other settings hold memory and are let go; whether there were any.
        """
        before = len(self.wrapped)
        self.wrapped = {place: run for place, run in self.wrapped.items() if place[0] in fresh.settings}
        self.context, self.settings, self.seeds, self.steps = fresh.context, fresh.settings, fresh.seeds, fresh.steps
        return len(self.wrapped) < before

    def _episode(self, views: Tensor, image: Tensor, *, settings: MEMOSettings) -> tuple[Tensor, Tensor]:
        """One image: views [N, 3, H, W], image [3, H, W] -> logits [C] after the steps, and whether they count."""
        theta = self.source
        moments = (torch.zeros_like(theta), torch.zeros_like(theta)) if settings.optimizer == "adamw" else None
        good = torch.ones((), dtype=torch.bool, device=views.device)
        loss_of = grad_and_value(lambda theta: marginal_entropy(self._forward(theta, views, settings)))
        for step in range(1, settings.steps + 1):
            gradient, loss = loss_of(theta)
            good = good & torch.isfinite(loss) & torch.isfinite(gradient).all()
            if moments is None:
                theta = theta - settings.learning_rate * gradient
            else:
                theta, moments = _adamw(theta, gradient, moments, step, settings)
        theta = torch.where(good, theta, self.source)
        with torch.no_grad():
            return self._forward(theta, image.unsqueeze(0), settings).squeeze(0), good

    def _forward(self, theta: Tensor, x: Tensor, settings: MEMOSettings) -> Tensor:
        """Logits [n, C] of x [n, 3, H, W] with all parameters read from theta [P]."""
        for layer in self.batch_norms:
            layer.prior = settings.prior
        pieces = theta.split([shape.numel() for shape in self.shapes.values()])
        weights = {name: piece.view(shape) for (name, shape), piece in zip(self.shapes.items(), pieces)}
        logits = functional_call(self.module, weights, (x,)).to(self.dtype)
        return logits if self.columns is None else logits[..., self.columns]

    def _normalize(self, pixels: Tensor) -> Tensor:
        options = {"dtype": torch.float32, "device": pixels.device}
        network = self.context.network
        mean, std = (torch.tensor(v, **options).view(3, 1, 1) for v in (network.mean, network.std))
        return ((pixels.to(torch.float32) / 255.0 - mean) / std).to(self.dtype)

    def _images_at_once(self, side: int) -> int:
        small_on_gpu = side <= _SMALL_SIDE and self.context.device.type == "cuda"
        default = _SMALL_IMAGES_AT_ONCE if small_on_gpu else 1
        return int(self.context.options.get("memo_images_at_once", default))

    def _report(self, logits: Tensor, updated: Tensor) -> None:
        runs, batch = updated.shape
        count = updated.sum(1)
        passes = torch.tensor([s.views * s.steps for s in self.settings], device=logits.device)
        ent = entropy(quiet(logits))
        self.report = StepReport(
            entropy=torch.where(finite_rows(logits), ent, torch.nan),
            prediction=logits.argmax(-1),
            plpd=torch.full_like(ent, torch.nan),
            passed_entropy=updated,
            passed_both=updated,
            forwards=(passes + 1) * batch,
            backwards=passes * count,
            skipped=count == 0,
            reset=torch.zeros(runs, dtype=torch.bool, device=logits.device),
        )


def marginal_entropy(logits: Tensor) -> Tensor:
    """Entropy of the mean prediction of N views, logits [N, C] -> scalar, computed in log space (MEMO's loss)."""
    mean = logits.log_softmax(-1).logsumexp(0) - math.log(len(logits))
    mean = mean.clamp(min=torch.finfo(mean.dtype).min)
    return -(mean * mean.exp()).sum()


class PriorBatchNorm(RunBatchNorm):
    """BatchNorm whose statistics are ``prior``·source + (1 − prior)·current, as constants.

    The current variance is unbiased, as MEMO's code has it; where there is a single value per channel, it does
    not exist and the source's statistics stand alone.
    """

    prior = 1.0

    def normalize(self, x: Tensor) -> Tensor:
        mean, var = self.running_mean, self.running_var
        wide = widened(x)
        if self.prior < 1 and wide[:, 0].numel() > 1:
            axes = (0, *range(2, x.dim()))
            current_var, current_mean = torch.var_mean(wide.detach(), dim=axes, correction=1)
            mean = self.prior * mean + (1 - self.prior) * current_mean
            var = self.prior * var + (1 - self.prior) * current_var
        return F.batch_norm(wide, mean, var, self.weight, self.bias, False, 0.0, self.eps).to(x.dtype)


def _with_prior(module: nn.Module) -> nn.Module:
    """A copy of the source network in eval mode with its own BatchNorm layers replaced."""
    own = copy.deepcopy(module).eval()
    for name, layer in list(own.named_modules()):
        if run_norm_for(layer) is RunBatchNorm:
            own.set_submodule(name, PriorBatchNorm(layer, name, NormState()))
    return own


def _adamw(
    theta: Tensor, gradient: Tensor, moments: tuple[Tensor, Tensor], step: int, settings: MEMOSettings
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """One step of torch.optim.AdamW (defaults beside rate and decay) without touching its inputs."""
    first, second = _ADAM_BETAS
    mean = first * moments[0] + (1 - first) * gradient
    square = second * moments[1] + (1 - second) * gradient * gradient
    spread = (square / (1 - second**step)).sqrt() + _ADAM_EPSILON
    decayed = theta * (1 - settings.learning_rate * settings.weight_decay)
    return decayed - settings.learning_rate / (1 - first**step) * mean / spread, (mean, square)
