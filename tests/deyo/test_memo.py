"""MEMO against its published procedure written out plainly, and what must hold for an episodic method."""

from __future__ import annotations

import copy
import inspect
import io
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from parity_cases import network_for, rgb
from PIL import Image
from torch import nn

from deyo.augment import augmix, content_keys
from deyo.corruptions import corrupt
from deyo.methods import create_method, method_lockstep, resolve_settings, settings_class
from deyo.methods.memo import marginal_entropy
from deyo.networks import load_network
from deyo.types import ConfigError, MethodContext, Network, NetworkInfo

Settings = settings_class("memo")
NETWORKS = ("network_bn", "network_gn", "network_ln")


def make(network: Network, settings, *, seeds=(1,), **context):
    context = {"precision": "float64", "batch_size": 4, **context}
    return create_method("memo", MethodContext(network=network, seeds=list(seeds), **context), settings)


def use_prior(module: nn.Module, prior: float) -> None:
    """MEMO's BatchNorm as published, set on this module's layers alone (and not failing for a single value)."""

    def forward(self: nn.BatchNorm2d, x: torch.Tensor) -> torch.Tensor:
        mean, var = torch.zeros_like(self.running_mean), torch.ones_like(self.running_var)
        if x[:, 0].numel() == 1:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0, self.eps)
        F.batch_norm(x, mean, var, None, None, True, 1.0, self.eps)
        mean = prior * self.running_mean + (1 - prior) * mean
        var = prior * self.running_var + (1 - prior) * var
        return F.batch_norm(x, mean, var, self.weight, self.bias, False, 0, self.eps)

    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.forward = forward.__get__(layer)


def published(network: Network, pixels: torch.Tensor, settings, seed: int) -> torch.Tensor:
    """Logits [B, C] by the published loop: load, step on the views, predict, image by image."""
    answers = []
    keys = content_keys(torch.tensor([seed]), pixels.unsqueeze(0))[0]
    for k, image in enumerate(pixels):
        module = copy.deepcopy(network.module).double()
        use_prior(module, settings.prior)
        kind = torch.optim.SGD if settings.optimizer == "sgd" else torch.optim.AdamW
        optimizer = kind(module.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
        views = augmix(
            image.unsqueeze(0),
            copies=settings.views,
            keys=keys[k : k + 1],
            mean=network.mean,
            std=network.std,
            dtype=torch.float64,
        ).squeeze(1)
        for _ in range(settings.steps):
            optimizer.zero_grad()
            logits = module(views)
            logits = logits - logits.logsumexp(-1, keepdim=True)
            mean = logits.logsumexp(0) - np.log(len(logits))
            (-(mean * mean.exp()).sum()).backward()
            optimizer.step()
        x = ((image.float() / 255 - 0.2) / 0.4).double()
        with torch.no_grad():
            answers.append(module(x.unsqueeze(0))[0])
    return torch.stack(answers)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    "settings",
    [
        Settings(views=6, learning_rate=0.05),
        Settings(views=4, learning_rate=1e-3, optimizer="adamw", weight_decay=0.01, steps=2, prior_strength=4),
    ],
    ids=["sgd", "adamw"],
)
@pytest.mark.parametrize("together", [1, 3])
def test_agrees_with_the_published_loop(name: str, settings, together: int) -> None:
    network, stream, _ = network_for(name)
    pixels = rgb(stream[0][:3])
    method = make(network, [settings], options={"memo_images_at_once": together})
    logits = method.step(pixels)
    torch.testing.assert_close(logits[0], published(network, pixels[0], settings, 1), rtol=0, atol=1e-9)
    assert method.report.forwards.tolist() == [3 * (settings.views * settings.steps + 1)]
    assert method.report.backwards.tolist() == [3 * settings.views * settings.steps]


@pytest.mark.parametrize("name", NETWORKS)
def test_source_weights_and_classes_stay_bit_by_bit(name: str) -> None:  # golden check 11
    network, stream, _ = network_for(name)
    own = {k: v.clone() for k, v in network.module.state_dict().items()}
    source_code = inspect.getsource(nn.BatchNorm2d.forward)
    method = make(network, [Settings(views=4, learning_rate=0.5)])
    before = {k: v.clone() for k, v in method.module.state_dict().items()}
    method.step(rgb(stream[0][:2]))
    method.reset()
    assert all(torch.equal(v, before[k]) for k, v in method.module.state_dict().items())
    assert all(torch.equal(v, own[k]) for k, v in network.module.state_dict().items())
    assert inspect.getsource(nn.BatchNorm2d.forward) == source_code
    assert type(next(m for m in network.module.modules() if "Norm" in type(m).__name__)).__module__ in (
        "torch.nn.modules.batchnorm",
        "torch.nn.modules.normalization",
        "timm.layers.norm",
    )


def test_two_methods_in_one_process_do_not_touch_each_other() -> None:
    network, stream, _ = network_for("network_bn")
    pixels = rgb(stream[0][:8])
    tent = settings_class("tent")(learning_rate=0.01)
    context = MethodContext(network=network, seeds=[0], batch_size=8, precision="float64")
    alone = create_method("tent", context, [tent])
    expected = [alone.step(pixels) for _ in range(2)]
    beside = create_method("tent", context, [tent])
    memo = make(network, [Settings(views=2)])
    for logits in expected:
        memo.step(pixels[:, :2])
        assert torch.equal(beside.step(pixels), logits)


def test_an_image_gets_one_answer_in_any_batch_and_order() -> None:
    """So mild, label-shifted and one-by-one streams agree on every image."""
    network, stream, _ = network_for("network_bn")
    pixels = rgb(stream[0][:9])
    settings = [Settings(views=4, learning_rate=0.05)]
    whole = make(network, settings).step(pixels)
    one_by_one = make(network, settings)
    for k in (3, 0, 8):
        logits = one_by_one.step(pixels[:, k : k + 1])
        torch.testing.assert_close(logits[0, 0], whole[0, k], rtol=0, atol=1e-9)


def test_images_side_by_side_or_one_after_the_other() -> None:
    network, stream, _ = network_for("network_ln")
    pixels = rgb(stream[0][:5])
    logits = [
        make(network, [Settings(views=4, learning_rate=0.05)], options={"memo_images_at_once": together}).step(pixels)
        for together in (1, 2, 5)
    ]
    torch.testing.assert_close(logits[1], logits[0], rtol=0, atol=1e-9)
    torch.testing.assert_close(logits[2], logits[0], rtol=0, atol=1e-9)


def test_runs_side_by_side_equal_runs_alone() -> None:
    network, stream, _ = network_for("network_bn")
    settings = [Settings(views=4, learning_rate=0.05), Settings(views=6, learning_rate=0.01, prior_strength=2)]
    pixels = torch.cat([rgb(stream[0][:3]), rgb(stream[1][:3])])
    together = make(network, settings, seeds=(1, 2))
    logits = together.step(pixels)
    for run in range(2):
        alone = make(network, [settings[run]], seeds=(run + 1,))
        torch.testing.assert_close(alone.step(pixels[run : run + 1])[0], logits[run], rtol=0, atol=1e-9)
        assert together.report.forwards[run] == alone.report.forwards[0]
    assert method_lockstep("memo")


@pytest.mark.parametrize("name", NETWORKS)
def test_bf16_runs_and_stays_near_float32(name: str) -> None:
    network, stream, _ = network_for(name)
    settings = [Settings(views=4, learning_rate=1e-3)]
    exact, coarse = (make(network, settings, precision=p).step(rgb(stream[0][:4])) for p in ("float32", "bf16"))
    assert coarse.dtype == torch.float32
    assert (exact - coarse).abs().mean() < 0.1 * exact.abs().mean()
    assert not torch.equal(exact, coarse)


class Poisoned(nn.Module):
    """A network whose answer to bright images is NaN."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bright = x.mean((1, 2, 3), keepdim=True).flatten(1) > 1.0
        return torch.where(bright, math.nan, self.module(x))


@pytest.mark.parametrize("together", [1, 3])
def test_an_image_that_is_not_finite_is_not_stepped_on(together: int) -> None:
    network, stream, _ = network_for("network_gn")
    poisoned = Network(**{**vars(network), "module": Poisoned(network.module)})
    pixels = rgb(stream[0][:3]).clone()
    pixels[0, 1] = 255
    settings = [Settings(views=4, learning_rate=0.05)]
    method = make(poisoned, settings, options={"memo_images_at_once": together})
    logits = method.step(pixels)
    report = method.report
    assert report.passed_both.tolist() == [[True, False, True]]
    assert report.entropy.isnan().tolist() == [[False, True, False]]
    assert report.skipped.tolist() == [False]
    assert report.backwards.tolist() == [2 * 4]
    torch.testing.assert_close(logits[:, [0, 2]], make(network, settings).step(pixels)[:, [0, 2]], rtol=0, atol=1e-9)
    method.step(pixels[:, 1:2])
    assert method.report.skipped.tolist() == [True]


def test_a_single_value_per_channel_falls_back_to_the_source_statistics() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 28), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 3)).eval()
    info = NetworkInfo(name="tiny", family="resnet", norm="bn", num_classes=3, image_size=28)
    network = Network(info=info, module=module, mean=(0.5,) * 3, std=(0.5,) * 3, num_classes=3, sha256="tiny")
    pixels = torch.randint(0, 256, (1, 1, 3, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    logits = make(network, [Settings(views=4, learning_rate=0.0)]).step(pixels)
    x = ((pixels[0].float() / 255 - 0.5) / 0.5).double()
    torch.testing.assert_close(logits[0], copy.deepcopy(module).double()(x), rtol=0, atol=1e-12)


def test_classes_that_are_masked_out_take_no_part() -> None:
    network, stream, _ = network_for("network_bn")
    columns = np.array([1, 4, 7])
    logits = make(network, [Settings(views=2)], class_columns=columns).step(rgb(stream[0][:2]))
    assert logits.shape == (1, 2, 3)


def test_state_is_the_step_count() -> None:
    network, stream, _ = network_for("network_gn")
    method = make(network, [Settings(views=2)])
    method.step(rgb(stream[0][:2]))
    other = make(network, [Settings(views=2)])
    other.load_state_dict(method.state_dict())
    assert int(other.steps) == 1


def test_marginal_entropy_of_certain_and_split_views() -> None:
    certain = torch.tensor([[200.0, 0.0], [200.0, 0.0]])
    split = torch.tensor([[200.0, 0.0], [0.0, 200.0]])
    assert marginal_entropy(certain).item() == 0.0
    assert marginal_entropy(split).item() == pytest.approx(math.log(2))
    assert torch.isfinite(marginal_entropy(torch.tensor([[1e30, -1e30, 0.0]])))


@pytest.mark.parametrize(
    ("family", "benchmark", "expected"),
    [
        ("resnet", "imagenet-c", (64, "sgd", 2.5e-4, 0.0)),
        ("vit", "imagenet-c", (64, "adamw", 1e-5, 0.01)),
        ("resnet", "colored-mnist", (32, "sgd", 5e-3, 0.0)),
    ],
)
def test_defaults_are_those_of_the_published_scripts(family: str, benchmark: str, expected: tuple) -> None:
    info = NetworkInfo(name="x", family=family, norm="bn", num_classes=None, image_size=None)
    s = resolve_settings("memo", {}, info=info, batch_size=64, num_classes=10, benchmark=benchmark, scenario="mild")
    assert (s.views, s.optimizer, s.learning_rate, s.weight_decay) == expected
    assert s.prior == pytest.approx(16 / 17)


def test_impossible_settings_are_refused() -> None:
    info = NetworkInfo(name="x", family="resnet", norm="bn", num_classes=10, image_size=32)
    with pytest.raises(ConfigError, match=r"memo\.views is 0: write a number at least 1"):
        resolve_settings(
            "memo", {"views": 0}, info=info, batch_size=1, num_classes=10, benchmark="digits-c", scenario="mild"
        )
    with pytest.raises(ConfigError, match="1 settings for 2 runs"):
        make(network_for("network_gn")[0], [Settings()], seeds=(1, 2))


@pytest.mark.data
@pytest.mark.skipif("DEYO_TEST_DATA" not in os.environ, reason="DEYO_TEST_DATA does not name the real data")
def test_memo_helps_its_own_network_on_real_images() -> None:
    """The GroupNorm network of MEMO's authors on CIFAR-10 (JPEG copies) under contrast at severity 4."""
    from pyarrow import parquet

    root, count = Path(os.environ["DEYO_TEST_DATA"]), 48
    table = parquet.read_table(root / "cifar10_jpeg" / "test.parquet").slice(0, count)
    pictures = [Image.open(io.BytesIO(data)).convert("RGB") for data in table["image"].to_pylist()]
    clean = torch.from_numpy(np.stack([np.array(picture) for picture in pictures]))
    label = torch.tensor(table["label"].to_pylist())
    pixels = corrupt(clean, "contrast", 4, seed=0, indices=torch.arange(count)).permute(0, 3, 1, 2).unsqueeze(0)
    network = load_network(f"file:{root}/weights/cifar10_resnet26_gn_memo.safetensors@cifar-resnet26-gn")
    memo = make(network, [Settings(views=32, learning_rate=5e-3)], precision="float32")
    none = create_method("no-adapt", memo.context, [settings_class("no-adapt")()])
    accuracy = [float((m.step(pixels)[0].argmax(1) == label).float().mean()) for m in (none, memo)]
    assert accuracy[1] > accuracy[0] + 0.1


def test_graphs_of_settings_that_are_no_longer_wanted_are_let_go() -> None:
    network = network_for("network_gn")[0]
    pixels = rgb(network_for("network_gn")[1].reshape(-1, 32, 32)[:2])
    kept = make(network, [Settings(views=2, learning_rate=0.1)])
    kept.wrap = lambda function, compilable: function
    for rate in (0.2, 0.3, 0.3):
        kept.step(pixels)
        fresh = make(network, [Settings(views=2, learning_rate=rate)])
        assert kept.adopt(fresh) == (kept.settings[0] not in [s for s, _ in kept.wrapped])
        assert all(settings.learning_rate == rate for settings, _ in kept.wrapped)
        assert torch.equal(kept.step(pixels), fresh.step(pixels))
        assert [settings.learning_rate for settings, _ in kept.wrapped] == [rate]


def test_only_whole_blocks_of_images_go_through_what_is_made_fast() -> None:
    network = network_for("network_gn")[0]
    pixels = rgb(network_for("network_gn")[1].reshape(-1, 32, 32)[:5])
    plain = make(network, [Settings(views=2)], options={"memo_images_at_once": 2})
    fast = make(network, [Settings(views=2)], options={"memo_images_at_once": 2})
    seen: list[int] = []

    def wrap(function, compilable):
        assert not compilable
        return lambda *inputs: seen.append(len(inputs[0])) or function(*inputs)

    fast.wrap = wrap
    assert torch.equal(fast.step(pixels), plain.step(pixels))
    assert seen == [2, 2]
