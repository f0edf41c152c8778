"""Pretraining of one network on one benchmark's training images, from a recipe and a seed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from deyo.networks.hub import load_into
from deyo.networks.registry import definition
from deyo.pretrain.checkpoint import checkpoint_path, read_metadata, write
from deyo.pretrain.recipes import Recipe
from deyo.pretrain.trainer import Trainer
from deyo.types import Benchmark, ConfigError, DataError

SAVE_SECONDS = 60.0
REPORT_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class PretrainProgress:
    """How far a pretraining is: steps of ``total_steps``; mean loss, accuracy and share of samples that
    counted (1 without a PLPD filter), all over the epoch so far; ``seconds`` since this process began it."""

    network: str
    benchmark: str
    seed: int
    epoch: int
    epochs: int
    step: int
    total_steps: int
    loss: float
    accuracy: float
    selected: float
    seconds: float


def pretrain(
    recipe: Recipe,
    benchmark: Benchmark,
    seed: int,
    *,
    device: torch.device | str | None = None,
    cache: Path | None = None,
    weights: Path | None = None,
    progress: Callable[[PretrainProgress], None] | None = None,
) -> Path:
    """Train a network and return its checkpoint's path; one that is there already is returned at once.

    The same recipe, images and seed give the same weights on the same kind of device. Interrupted training
    goes on from its last saved step (one a minute) with the numbers of an undisturbed one. A second process
    that wants the same checkpoint waits for the first. ``device``: default CUDA if there is one; ``weights``:
    a folder for published initial weights. Raises ``DataError`` if the benchmark has no training images.
    """
    images = benchmark.train_images()
    path = checkpoint_path(recipe, images, seed, cache)
    if path.is_file():
        return path
    with locked(path.with_name(f"{path.name}.lock")):
        if path.is_file():  # another process made it while this one waited
            return path
        chosen = torch.device(device if device is not None else "cuda" if torch.cuda.is_available() else "cpu")
        module = initial_module(recipe, benchmark.num_classes, seed, weights, cache)
        trainer = Trainer(recipe, module, images, seed=seed, num_classes=benchmark.num_classes, device=chosen)
        _train(trainer, path, recipe, seed, progress)
        trainer.captured = None  # which refers to the trainer: its memory is free with it
        write(path, trainer.module.state_dict(), _metadata(trainer, recipe, benchmark, seed, images.fingerprint))
        _partial(path).unlink(missing_ok=True)
    return path


def initial_module(
    recipe: Recipe, num_classes: int, seed: int, weights: Path | None = None, cache: Path | None = None
) -> nn.Module:
    """The network before its first step: random weights from ``seed`` alone, or published ones with a new
    classifier. The global random state is left as it was."""
    found = definition(recipe.network)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = found.build(num_classes)
    if recipe.initial == "random":
        return module
    if found.weights is None or found.weights.identity() != recipe.initial:
        raise ConfigError(f"{recipe.network} cannot start from {recipe.initial}: its weights are other ones")
    loaded = found.weights.load(weights, cache)
    own = module.state_dict()
    classifier = {f"{found.head}.weight", f"{found.head}.bias"}
    loaded.state.update({key: own[key] for key in classifier if key in own})
    load_into(module, loaded, f"the network {recipe.network}")
    return module


def _train(
    trainer: Trainer,
    path: Path,
    recipe: Recipe,
    seed: int,
    progress: Callable[[PretrainProgress], None] | None,
) -> None:
    partial, started = _partial(path), time.monotonic()
    if partial.is_file():
        try:
            trainer.load(partial)
        except DataError:  # a damaged partial file costs its steps, not the training
            partial.unlink()
    saved = reported = started
    with deterministic():
        while trainer.step < trainer.total_steps:
            trainer.advance()
            now = time.monotonic()
            last = trainer.step == trainer.total_steps
            if progress is not None and (last or now - reported >= REPORT_SECONDS):
                reported = now
                progress(_progress(trainer, recipe, seed, now - started))
            if not last and now - saved >= SAVE_SECONDS:
                trainer.save(partial)
                saved = time.monotonic()


def _progress(trainer: Trainer, recipe: Recipe, seed: int, seconds: float) -> PretrainProgress:
    return PretrainProgress(
        network=recipe.network,
        benchmark=recipe.benchmark,
        seed=seed,
        epoch=min(trainer.epoch, recipe.epochs - 1),
        epochs=recipe.epochs,
        step=trainer.step,
        total_steps=trainer.total_steps,
        seconds=seconds,
        **trainer.averages(),
    )


def _metadata(trainer: Trainer, recipe: Recipe, benchmark: Benchmark, seed: int, fingerprint: str) -> dict[str, Any]:
    return {
        "recipe": recipe.to_json(),
        "seed": seed,
        "num_classes": benchmark.num_classes,
        "train_images": len(trainer.labels),
        "train_fingerprint": fingerprint,
        "device": str(trainer.device),
        "torch": torch.__version__,
        "history": trainer.history,
        # the three below let the file be used as a `file:` network
        "architecture": recipe.network,
        "mean": list(recipe.mean),
        "std": list(recipe.std),
    }


def training_history(path: Path) -> list[dict[str, float]]:
    """Loss, accuracy and selected share of each epoch, from a finished checkpoint."""
    return read_metadata(path)["history"]


def _partial(path: Path) -> Path:
    return path.with_name(f"{path.stem}.partial{path.suffix}")


@contextmanager
def deterministic() -> Iterator[None]:
    """cuDNN's deterministic algorithms, as in the authors' scripts; the settings are put back afterwards."""
    backend = torch.backends.cudnn
    before = backend.deterministic, backend.benchmark
    backend.deterministic, backend.benchmark = True, False
    try:
        yield
    finally:
        backend.deterministic, backend.benchmark = before


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that dies with the process; others wait for it."""
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
