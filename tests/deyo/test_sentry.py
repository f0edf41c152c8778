"""SENTRY's port against its published step written out plainly, and its queue, votes and degenerate cases."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from parity_cases import network_for, rgb
from torch import nn

from deyo.augment import randaugment, step_keys
from deyo.methods import create_method, resolve_settings, settings_class
from deyo.model import norm_names
from deyo.types import ConfigError, MethodContext, Network, NetworkInfo

Settings = settings_class("sentry")
NETWORKS = ("network_bn", "network_gn", "network_ln")


def make(network: Network, settings, *, seeds=(1,), **context):
    context = {"precision": "float64", "batch_size": 16, **context}
    return create_method("sentry", MethodContext(network=network, seeds=list(seeds), **context), settings)


def batches(name: str, count: int, size: int, run: int = 0) -> list[torch.Tensor]:
    _, stream, _ = network_for(name)
    flat = stream.reshape(-1, 32, 32)
    order = np.random.default_rng(run).permutation(len(flat))
    return [rgb(flat[order[k * size : (k + 1) * size]]) for k in range(count)]


class Published:
    """The original step (target part), on a plain copy of the network with torch's own SGD."""

    def __init__(self, network: Network, settings, seed: int) -> None:
        self.network, self.settings, self.seed = network, settings, seed
        self.module = copy.deepcopy(network.module).double().eval().requires_grad_(False)
        for layer in self.module.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.track_running_stats, layer.running_mean, layer.running_var = False, None, None
        if settings.parameters == "all":
            self.adapted = list(self.module.parameters())
        else:
            layers = [self.module.get_submodule(n) for n in norm_names(network.module, settings.adapted)]
            self.adapted = [p for layer in layers for p in (layer.weight, layer.bias)]
        for parameter in self.adapted:
            parameter.requires_grad_(True)
        self.optimizer = torch.optim.SGD(self.adapted, lr=settings.learning_rate, momentum=settings.momentum)
        self.queue, self.pointer, self.steps = torch.zeros(settings.queue_length), 0, 0
        self.consistent_ever = False

    def step(self, pixels: torch.Tensor) -> torch.Tensor:
        s, size, network = self.settings, len(pixels), self.network
        x = ((pixels.float() / 255 - 0.2) / 0.4).double()
        clean = self.module(x)
        label = clean.argmax(1)
        for value in label:
            self.queue[self.pointer] = value + 1
            self.pointer = (self.pointer + 1) % s.queue_length
        share = torch.bincount(self.queue.long(), minlength=network.num_classes + 1).double()[1:] / s.queue_length
        loss = s.information_weight * (clean.softmax(1) * (share + 1e-12).log()).sum(1).mean()

        keys = step_keys(torch.tensor([self.seed]), self.steps, size)[0]
        views = randaugment(
            pixels,
            copies=s.committee,
            keys=keys,
            mean=network.mean,
            std=network.std,
            magnitude=s.magnitude,
            operations=s.operations,
            dtype=torch.float64,
        )
        self.votes_needed = s.committee // 2 + 1
        positive, negative = torch.zeros_like(clean), torch.zeros_like(clean)
        agreed, disagreed = torch.zeros(size), torch.zeros(size)
        for view in views:
            logits = self.module(view)
            same = logits.argmax(1) == label
            agreed += same
            disagreed += ~same
            positive[same], negative[~same] = logits[same], logits[~same]
        self.consistent = agreed >= self.votes_needed
        self.consistent_ever = self.consistent_ever or bool(self.consistent.any())
        for sign, logits, votes in ((1, positive, agreed), (-1, negative, disagreed)):
            mask = votes >= self.votes_needed
            if mask.any():
                p = logits[mask].softmax(1)
                entropy = -(p * (p + 1e-12).log()).sum(1).mean()
                loss = loss + sign * s.entropy_weight * mask.double().mean() * entropy
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        return clean.detach()


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("parameters", ["norm", "all"])
def test_agrees_with_the_published_step(name: str, parameters: str) -> None:
    settings = Settings(learning_rate=0.01, adapted="all", queue_length=40, parameters=parameters)
    network = network_for(name)[0]
    method, reference = make(network, [settings]), Published(network, settings, 1)
    for pixels in batches(name, 4, 16):  # 64 predictions: the queue of 40 wraps
        logits = method.step(pixels)
        torch.testing.assert_close(logits[0], reference.step(pixels[0]), rtol=0, atol=1e-9)
    adapted = torch.cat([p.detach().flatten() for p in reference.adapted])
    torch.testing.assert_close(method.network.theta[0], adapted, rtol=0, atol=1e-9)
    assert method.queue[0].tolist() == reference.queue.long().tolist()
    report = method.report
    assert report.forwards.tolist() == [16 * 4]
    assert report.backwards.tolist() == [16 * 2]  # of three views, two always agree on something
    assert torch.equal(report.passed_both[0], reference.consistent)
    assert reference.consistent_ever


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("parameters", ["norm", "all"])
def test_runs_together_equal_runs_alone(name: str, parameters: str) -> None:
    variants = [
        Settings(learning_rate=0.02, adapted="all", parameters=parameters),
        Settings(learning_rate=0.005, momentum=0.5, adapted="all", magnitude=9.0, parameters=parameters),
        Settings(learning_rate=0.01, adapted="all", information_weight=0.0, entropy_weight=2.0, parameters=parameters),
    ]
    network = network_for(name)[0]
    feeds = [batches(name, 3, 8, run) for run in range(3)]
    together = make(network, variants, seeds=(1, 2, 3))
    logits = [together.step(torch.cat(parts)) for parts in zip(*feeds)]
    for run in range(3):
        alone = make(network, [variants[run]], seeds=(run + 1,))
        for step, pixels in enumerate(feeds[run]):
            torch.testing.assert_close(alone.step(pixels)[0], logits[step][run], rtol=0, atol=1e-9)
        torch.testing.assert_close(alone.network.theta[0], together.network.theta[run], rtol=0, atol=1e-9)


@pytest.mark.parametrize("parameters", ["norm", "all"])
def test_resumes_in_the_middle_with_identical_numbers(parameters: str) -> None:
    network = network_for("network_bn")[0]
    settings = [Settings(learning_rate=0.02, adapted="all", queue_length=40, parameters=parameters)]
    feed = batches("network_bn", 5, 12)
    through = make(network, settings)
    expected = [through.step(pixels) for pixels in feed]
    first, second = make(network, settings), make(network, settings)
    for pixels in feed[:2]:
        first.step(pixels)
    second.load_state_dict(first.state_dict())
    for pixels, logits in zip(feed[2:], expected[2:]):
        assert torch.equal(second.step(pixels), logits)


@pytest.mark.parametrize("parameters", ["norm", "all"])
def test_reset_goes_back_to_the_source(parameters: str) -> None:
    network = network_for("network_gn")[0]
    method = make(network, [Settings(learning_rate=0.05, adapted="all", parameters=parameters)])
    feed = batches("network_gn", 1, 8)
    method.step(feed[0])
    assert not torch.equal(method.network.theta, method.network.source_theta)
    method.reset()
    assert torch.equal(method.network.theta, method.network.source_theta)
    assert not method.optimizer.buffer.any()
    assert not method.queue.any()
    assert method.pointer.tolist() == [0]


def test_a_short_last_batch_goes_on_as_the_published_step_does() -> None:
    network = network_for("network_bn")[0]
    settings = Settings(learning_rate=0.01, adapted="all")
    method, reference = make(network, [settings]), Published(network, settings, 1)
    whole, short = batches("network_bn", 2, 16)
    for pixels in (whole, short[:, :5], whole):
        torch.testing.assert_close(method.step(pixels)[0], reference.step(pixels[0]), rtol=0, atol=1e-9)


def test_batches_larger_than_the_queue_keep_the_latest() -> None:
    network = network_for("network_gn")[0]
    settings = Settings(learning_rate=0.0, adapted="all", queue_length=5)
    method = make(network, [settings])
    pixels = batches("network_gn", 1, 13)[0]
    label = method.step(pixels)[0].argmax(-1)
    # Sample k goes to place k mod 5, later ones over earlier ones.
    assert method.queue[0].tolist() == [int(label[k]) + 1 for k in (10, 11, 12, 8, 9)]
    assert method.pointer.tolist() == [3]


@pytest.mark.parametrize("name", NETWORKS)
def test_batch_size_one_has_a_defined_answer(name: str) -> None:
    """Under BatchNorm with 1×1 maps (this network's last stage) nothing can be learnt from one image."""
    method = make(network_for(name)[0], [Settings(learning_rate=0.02, adapted="all")], batch_size=1)
    before = method.network.theta.clone()
    for pixels in batches(name, 3, 1):
        assert torch.isfinite(method.step(pixels)).all()
    stepped = name != "network_bn"
    assert method.report.skipped.tolist() == [not stepped]
    assert torch.equal(method.network.theta, before) is not stepped
    assert torch.isfinite(method.network.theta).all()


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("parameters", ["norm", "all"])
def test_bf16_runs_and_stays_near_float32(name: str, parameters: str) -> None:
    network = network_for(name)[0]
    settings = [Settings(learning_rate=1e-3, adapted="all", parameters=parameters)]
    exact, coarse = (make(network, settings, precision=p) for p in ("float32", "bf16"))
    for pixels in batches(name, 2, 16):
        logits = exact.step(pixels), coarse.step(pixels)
        assert logits[1].dtype == torch.float32
        assert (logits[0] - logits[1]).abs().mean() < 0.1 * logits[0].abs().mean()
    assert torch.isfinite(coarse.network.theta).all()
    assert not torch.equal(coarse.network.theta, coarse.network.source_theta)


class Poisoned(nn.Module):
    """A network whose answer to bright images is NaN."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.mean((1, 2, 3)).unsqueeze(1) > 1.9, math.nan, self.module(x))


def test_a_batch_that_is_not_finite_moves_neither_weights_nor_momentum() -> None:
    network = network_for("network_gn")[0]
    poisoned = Network(**{**vars(network), "module": Poisoned(network.module)})
    settings = [Settings(learning_rate=0.05, adapted="all")] * 2
    method = make(poisoned, settings, seeds=(1, 2))
    feed = [torch.cat([p, p]) for p in batches("network_gn", 2, 8)]
    method.step(feed[0])
    before = method.state_dict()
    feed[1] = feed[1].clone()
    feed[1][0, 3] = 255
    logits = method.step(feed[1])
    assert logits.isnan().any(-1).nonzero().tolist() == [[0, 3]]
    after = method.state_dict()
    assert method.report.skipped.tolist() == [True, False]
    for key in ("theta", "momentum"):
        assert torch.equal(after[key][0], before[key][0])
        assert not torch.equal(after[key][1], before[key][1])
    assert (after["queue"] > 0).sum(1).tolist() == [15, 16]


def test_defaults_follow_the_other_methods() -> None:
    info = NetworkInfo(name="resnet18-bn", family="resnet", norm="bn", num_classes=2, image_size=28)
    s = resolve_settings(
        "sentry", {}, info=info, batch_size=64, num_classes=2, benchmark="colored-mnist", scenario="biased"
    )
    assert (s.learning_rate, s.adapted, s.parameters) == (pytest.approx(1.25e-3), "lower", "norm")
    assert (s.committee, s.operations, s.magnitude, s.queue_length) == (3, 3, 2.0, 256)


def test_impossible_settings_are_refused() -> None:
    info = NetworkInfo(name="x", family="resnet", norm="bn", num_classes=10, image_size=32)
    for wrong in ({"committee": 0}, {"magnitude": 31.0}):
        with pytest.raises(ConfigError, match="sentry"):
            resolve_settings(
                "sentry", wrong, info=info, batch_size=8, num_classes=10, benchmark="digits-c", scenario="mild"
            )
