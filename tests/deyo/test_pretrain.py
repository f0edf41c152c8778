"""Pretraining: recipes, resuming in the middle, PLPD filtering, checkpoints."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from deyo.networks import load_network, weights_id
from deyo.networks.registry import definition
from deyo.pretrain import PretrainProgress, checkpoint_path, pretrain, read_checkpoint, recipe_for
from deyo.pretrain import captured as captured_module
from deyo.pretrain import run as run_module
from deyo.pretrain.captured import CapturedStep
from deyo.pretrain.checkpoint import read_metadata, write
from deyo.pretrain.recipes import Recipe
from deyo.pretrain.run import initial_module, training_history
from deyo.pretrain.trainer import Trainer, can_capture
from deyo.types import ConfigError, DataError, ImageSet

CPU = torch.device("cpu")


class Stripes:
    """Four classes of striped 16×16 images: learnt in a few steps."""

    name = "stripes"
    num_classes = 4

    def __init__(self, count: int = 96) -> None:
        random = np.random.RandomState(0)
        labels = np.arange(count) % 4
        y, x = np.mgrid[:16, :16]
        waves = np.stack([x % 4 < 2, y % 4 < 2, (x + y) % 4 < 2, (x - y) % 4 < 2])
        pixels = waves[labels] * 150 + random.randint(0, 100, (count, 16, 16))
        self.images_ = ImageSet(
            name="stripes/train",
            pixels=pixels.astype(np.uint8)[..., None].repeat(3, axis=3),
            labels=labels,
            fingerprint="stripes0123456789",
        )

    def train_images(self) -> ImageSet:
        return self.images_


class NoTraining(Stripes):
    def train_images(self) -> ImageSet:
        raise DataError("stripes has no training images")


def test_recipes_are_the_authors() -> None:
    common = (64, 1e-3, 0.9, 1e-4, "constant")
    for network, benchmark, epochs in [
        ("resnet50-bn", "waterbirds", 200),
        ("resnet18-bn", "colored-mnist", 20),
        ("resnet18-bn", "colored-digits", 20),
    ]:
        r = recipe_for(network, benchmark)
        assert (r.batch_size, r.learning_rate, r.momentum, r.weight_decay, r.schedule) == common
        assert r.epochs == epochs
        assert r.plpd_from_epoch is None
    assert recipe_for("resnet50-bn", "waterbirds").mean == (0.485, 0.456, 0.406)
    assert recipe_for("resnet18-bn", "colored-mnist").mean == (0.1307, 0.1307, 0.0)
    assert recipe_for("resnet18-bn", "colored-mnist").std == (0.3081, 0.3081, 0.3081)


def test_recipes_start_where_their_name_says() -> None:
    tag = "torchvision:resnet18@IMAGENET1K_V1"
    assert recipe_for("resnet18-bn", "colored-mnist").initial == "random"
    assert recipe_for("resnet18-bn+pretrained-init", "colored-mnist").initial == tag
    assert recipe_for("resnet18-bn", "waterbirds").initial == tag
    assert recipe_for("resnet18-bn+random-init", "waterbirds").initial == "random"


def test_options_of_a_name_change_the_recipe_and_the_identity() -> None:
    plain = recipe_for("resnet50-bn", "waterbirds")
    filtered = recipe_for("resnet50-bn+plpd", "waterbirds")
    assert (filtered.plpd_from_epoch, filtered.plpd_threshold, filtered.plpd_patches) == (50, 0.2, 4)
    assert recipe_for("resnet50-bn+epochs=8+plpd", "waterbirds").plpd_from_epoch == 2
    assert recipe_for("resnet50-bn+steps=9", "waterbirds").max_steps == 9
    names = ["resnet50-bn", "resnet50-bn+plpd", "resnet50-bn+steps=9", "resnet50-bn+random-init"]
    assert len({weights_id(n, "waterbirds") for n in names}) == 4
    assert weights_id("resnet50-bn", "waterbirds") == f"recipe:{plain.identity()}"
    assert recipe_for("resnet50-bn+pretrained-init", "waterbirds") == plain


def test_networks_that_come_with_their_weights_are_not_pretrained() -> None:
    for name in ("resnet50-bn", "vit-base-ln", "timm:test_resnet.r160_in1k"):
        assert recipe_for(name, "imagenet-c") is None
    assert recipe_for("demo:efficientnet-lite0", "waterbirds") is None
    assert recipe_for("small-resnet-bn", "imagenet-c") is not None
    with pytest.raises(ConfigError, match=r"\+plpd"):
        recipe_for("resnet50-bn+plpd", "imagenet-c")
    with pytest.raises(ConfigError, match="no published weights"):
        recipe_for("small-resnet-bn+pretrained-init", "digits-c")
    with pytest.raises(ConfigError, match="choose one"):
        recipe_for("resnet18-bn+random-init+pretrained-init", "waterbirds")


@pytest.mark.parametrize("name", ["small-resnet-bn", "small-resnet-gn"])
def test_small_networks_learn_and_are_found_again(name: str, tmp_path: Path) -> None:
    seen: list[PretrainProgress] = []
    recipe = recipe_for(name, "stripes")
    path = pretrain(recipe, Stripes(), 0, device=CPU, cache=tmp_path, progress=seen.append)
    assert seen[-1].step == seen[-1].total_steps == 24
    assert seen[-1].accuracy > 0.9
    assert [round(h["selected"]) for h in training_history(path)] == [1] * 12
    modified = path.stat().st_mtime_ns
    assert pretrain(recipe, Stripes(), 0, device=CPU, cache=tmp_path) == path
    assert path.stat().st_mtime_ns == modified
    network = load_network(name, cache=tmp_path, benchmark=Stripes(), pretrain_seed=0)
    assert network.num_classes == 4
    assert network.mean == recipe.mean
    assert not network.module.training
    given = load_network(name, cache=tmp_path / "other", benchmark=Stripes(), pretrain_seed=0, weights=path)
    assert given.sha256 == network.sha256
    assert not (tmp_path / "other").exists()
    as_file = load_network(f"file:{path}")
    assert (as_file.sha256, as_file.mean, as_file.num_classes) == (network.sha256, network.mean, 4)
    assert sorted(p.name for p in path.parent.iterdir()) == sorted([path.name, f"{path.name}.lock"])


def test_seeds_and_recipes_have_checkpoints_of_their_own(tmp_path: Path) -> None:
    short = recipe_for("small-resnet-gn+steps=3", "stripes")
    paths = [pretrain(short, Stripes(), seed, device=CPU, cache=tmp_path) for seed in (0, 1)]
    paths.append(pretrain(recipe_for("small-resnet-gn+steps=4", "stripes"), Stripes(), 0, device=CPU, cache=tmp_path))
    paths.append(pretrain(short, Stripes(), 0, device=CPU, cache=tmp_path / "again"))
    weights = [load_file(p)["fc.weight"] for p in paths]
    assert torch.equal(weights[0], weights[3])
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert checkpoint_path(short, Stripes().train_images(), 0, tmp_path) == paths[0]
    with safe_open(paths[0], "pt") as stream:
        assert json.loads(stream.metadata()["recipe"]) == short.to_json()


def test_global_random_state_is_left_alone(tmp_path: Path) -> None:
    before = torch.random.get_rng_state().clone()
    pretrain(recipe_for("small-resnet-bn+steps=2", "stripes"), Stripes(), 0, device=CPU, cache=tmp_path)
    assert torch.equal(before, torch.random.get_rng_state())


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("name", ["small-resnet-bn", "small-resnet-bn+plpd+epochs=4"])
def test_interrupted_training_goes_on_with_the_same_numbers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_for(name, "stripes")
    whole = pretrain(recipe, Stripes(), 5, device=CPU, cache=tmp_path / "whole")
    monkeypatch.setattr(run_module, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(run_module, "REPORT_SECONDS", 0.0)
    steps: list[int] = []

    def stop(progress: PretrainProgress) -> None:
        steps.append(progress.step)
        if progress.step in (3, 5):  # the second time it has to have gone on, not begun again
            raise Interrupted

    for _ in range(2):
        with pytest.raises(Interrupted):
            pretrain(recipe, Stripes(), 5, device=CPU, cache=tmp_path / "cut", progress=stop)
        steps.append(-1)
    cut = pretrain(recipe, Stripes(), 5, device=CPU, cache=tmp_path / "cut")
    assert steps == [1, 2, 3, -1, 3, -1]
    first, second = load_file(whole), load_file(cut)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[k], second[k]) for k in first)
    assert training_history(whole) == training_history(cut)


def test_a_damaged_partial_file_costs_only_its_steps(tmp_path: Path) -> None:
    recipe = recipe_for("small-resnet-gn+steps=3", "stripes")
    path = checkpoint_path(recipe, Stripes().train_images(), 0, tmp_path)
    path.parent.mkdir(parents=True)
    path.with_name(f"{path.stem}.partial{path.suffix}").write_bytes(b"half")
    assert pretrain(recipe, Stripes(), 0, device=CPU, cache=tmp_path).is_file()


def test_plpd_filter_counts_only_samples_above_the_threshold() -> None:
    recipe = recipe_for("small-resnet-bn+plpd+epochs=4", "stripes")
    benchmark = Stripes()
    trainer = Trainer(
        recipe,
        initial_module(recipe, 4, 0),
        benchmark.train_images(),
        seed=0,
        num_classes=4,
        device=CPU,
    )
    while trainer.epoch < 1:
        trainer.advance()
    assert trainer.history[0]["selected"] == 1.0
    buffers = {k: v.clone() for k, v in trainer.module.named_buffers()}
    x = trainer._batch(torch.arange(32))
    selected = trainer._selected(x)
    assert all(torch.equal(v, buffers[k]) for k, v in trainer.module.named_buffers())
    assert trainer.module.training
    while trainer.step < trainer.total_steps:
        trainer.advance()
    assert selected.dtype == torch.bool
    assert min(h["selected"] for h in trainer.history[1:]) < 1.0


def test_an_empty_selection_moves_nothing() -> None:
    recipe = recipe_for("small-resnet-gn+plpd+epochs=4", "stripes")
    impossible = type(recipe)(**{**vars(recipe), "plpd_from_epoch": 1, "plpd_threshold": 2.0})
    trainer = Trainer(
        impossible, initial_module(recipe, 4, 0), Stripes().train_images(), seed=0, num_classes=4, device=CPU
    )
    while trainer.epoch < 1:
        trainer.advance()
    before = {k: v.clone() for k, v in trainer.module.named_parameters()}
    momentum = [s["momentum_buffer"].clone() for s in trainer.optimizer.state.values()]
    trainer.advance()
    assert all(torch.equal(v, before[k]) for k, v in trainer.module.named_parameters())
    assert all(torch.equal(a, s["momentum_buffer"]) for a, s in zip(momentum, trainer.optimizer.state.values()))


def test_published_initial_weights_get_a_new_classifier(tmp_path: Path) -> None:
    torch.manual_seed(1)
    published = definition("timm:test_resnet.r160_in1k").build(1000).state_dict()
    save_file(published, tmp_path / "test_resnet.r160_in1k.safetensors")
    name = "timm:test_resnet.r160_in1k+steps=1"
    recipe = recipe_for(name, "waterbirds")
    assert recipe.initial == "timm:test_resnet.r160_in1k"
    module = initial_module(recipe, 2, 0, tmp_path, tmp_path / "cache")
    state = module.state_dict()
    assert state["fc.weight"].shape[0] == 2
    assert all(torch.equal(state[k], v) for k, v in published.items() if not k.startswith("fc."))


def test_checkpoints_of_another_recipe_are_refused(tmp_path: Path) -> None:
    recipe = recipe_for("small-resnet-gn+steps=1", "stripes")
    path = pretrain(recipe, Stripes(), 0, device=CPU, cache=tmp_path)
    other = recipe_for("small-resnet-gn+steps=2", "stripes")
    with pytest.raises(DataError, match="differs in max_steps"):
        read_checkpoint(path, definition("small-resnet-gn"), other)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match="delete it to train again"):
        load_network("small-resnet-gn+steps=1", cache=tmp_path, benchmark=Stripes(), pretrain_seed=0)


def test_benchmarks_without_training_images_say_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no training images"):
        load_network("small-resnet-bn", cache=tmp_path, benchmark=NoTraining())
    with pytest.raises(ConfigError, match="pretrained on a benchmark's images"):
        load_network("small-resnet-bn", cache=tmp_path)


def test_who_comes_second_waits_for_the_first(tmp_path: Path) -> None:
    """The lock belongs to an open file, so threads stand for processes here."""
    recipe = recipe_for("small-resnet-gn+steps=6", "stripes")
    path = checkpoint_path(recipe, Stripes().train_images(), 0, tmp_path)
    seen: list[int] = []
    other = threading.Thread(
        target=lambda: pretrain(
            recipe, Stripes(), 0, device=CPU, cache=tmp_path, progress=lambda progress: seen.append(progress.step)
        )
    )
    with run_module.locked(path.with_name(f"{path.name}.lock")):
        other.start()
        other.join(timeout=0.5)
        assert other.is_alive()
        made = pretrain(recipe, Stripes(), 0, device=CPU, cache=tmp_path / "elsewhere")
        path.write_bytes(made.read_bytes())
    other.join(timeout=60)
    assert not other.is_alive()
    assert seen == []  # it trained nothing: the checkpoint made meanwhile was used


def constant(name: str) -> Recipe:
    """A short recipe whose steps can be captured; 100 images leave a short last batch in each epoch."""
    return replace(recipe_for(name, "stripes"), schedule="constant", learning_rate=0.01, batch_size=16, epochs=4)


def trained(
    recipe: Recipe, device: str, *, captured: bool, steps: int | None = None, start: Path | None = None
) -> Trainer:
    module = initial_module(recipe, 4, 0)
    trainer = Trainer(recipe, module, Stripes(100).images_, seed=0, num_classes=4, device=torch.device(device))
    if captured:
        trainer.captured = CapturedStep(trainer._learn)
    else:
        trainer.captured = None
    if start is not None:
        trainer.load(start)
    with run_module.deterministic():
        while trainer.step < (steps or trainer.total_steps):
            trainer.advance()
    return trainer


def assert_equal_training(one: Trainer, other: Trainer) -> None:
    assert one.history == other.history
    state = other.module.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in one.module.state_dict().items())


def test_only_steps_with_a_constant_learning_rate_are_captured() -> None:
    gpu = torch.device("cuda")
    assert can_capture(recipe_for("resnet18-bn", "colored-mnist"), gpu)
    assert not can_capture(recipe_for("resnet18-bn", "colored-mnist"), CPU)
    assert not can_capture(recipe_for("small-resnet-bn", "stripes"), gpu)


@pytest.mark.parametrize("name", ["small-resnet-bn", "small-resnet-bn+plpd"])
def test_captured_steps_are_the_steps_themselves(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a recording is played by calling the step again, on the inputs that the recording knows."""
    recorded: list[int] = []

    def record(step: Callable[[], None]) -> Callable[[], object]:
        recorded.append(1)
        return step

    monkeypatch.setattr(captured_module, "record", record)
    monkeypatch.setattr(captured_module, "warm_up", lambda run, *, calls: [run() for _ in range(calls)])
    recipe = constant(name)
    plain = trained(recipe, "cpu", captured=False)
    played = trained(recipe, "cpu", captured=True)
    assert recorded == [1]
    assert played.captured is not None
    assert played.captured.calls == (24 if name == "small-resnet-bn" else 18)  # of 6 full batches an epoch
    assert_equal_training(plain, played)
    trained(recipe, "cpu", captured=True, steps=5).save(tmp_path / "half.safetensors")
    assert_equal_training(plain, trained(recipe, "cpu", captured=True, start=tmp_path / "half.safetensors"))


def test_a_step_that_cannot_be_captured_goes_on_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def record(step: Callable[[], None]) -> Callable[[], object]:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(captured_module, "record", record)
    monkeypatch.setattr(captured_module, "warm_up", lambda run, *, calls: run())
    recipe = constant("small-resnet-bn")
    assert_equal_training(trained(recipe, "cpu", captured=False), trained(recipe, "cpu", captured=True))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["small-resnet-bn", "small-resnet-gn", "small-resnet-bn+plpd"])
def test_captured_steps_on_a_gpu_give_the_same_bits(name: str, tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    recipe = constant(name)
    plain = trained(recipe, "cuda", captured=False)
    assert_equal_training(plain, trained(recipe, "cuda", captured=True))
    trained(recipe, "cuda", captured=True, steps=5).save(tmp_path / "half.safetensors")
    assert_equal_training(plain, trained(recipe, "cuda", captured=True, start=tmp_path / "half.safetensors"))


@pytest.mark.gpu
def test_pretraining_on_a_gpu_learns_too(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    recipe = recipe_for("small-resnet-bn", "stripes")
    path = pretrain(recipe, Stripes(), 0, device="cuda", cache=tmp_path)
    again = pretrain(recipe, Stripes(), 0, device="cuda", cache=tmp_path / "again")
    assert training_history(path)[-1]["accuracy"] > 0.9
    assert torch.equal(load_file(path)["fc.weight"], load_file(again)["fc.weight"])


def test_equal_weights_and_recipes_are_equal_bytes(tmp_path: Path) -> None:
    tensors = {"b": torch.arange(3.0), "a": torch.ones(2, 2)}
    metadata = {name: {"x": 1} for name in ["recipe", "seed", "history", "step", "classes", "mean"]}
    contents = set()
    for k in range(8):
        write(tmp_path / f"{k}.safetensors", tensors, metadata)
        contents.add((tmp_path / f"{k}.safetensors").read_bytes())
    assert len(contents) == 1
    assert read_metadata(tmp_path / "0.safetensors") == metadata
    restored = load_file(tmp_path / "0.safetensors")
    assert all(torch.equal(restored[name], value) for name, value in tensors.items())
