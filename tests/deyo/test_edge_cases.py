"""Degenerate inputs have a defined behaviour: no crash, no NaN in the weights, the step skipped and counted."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from parity_cases import network_for, rgb
from timm.models.resnet import BasicBlock, ResNet

from deyo.methods import create_method, method_names, settings_class
from deyo.types import MethodContext, Network, NetworkInfo

NETWORKS = ("network_bn", "network_gn", "network_ln")
ADAPTING = ("tent", "eata", "eta", "sar", "sar-official", "sentry", "deyo")
ALL = ("no-adapt", "bn-adapt", "memo", *ADAPTING)


def test_all_methods_are_covered() -> None:
    assert set(ALL) == set(method_names())


def build(name: str, network: Network, *, runs: int = 1, batch: int = 8, **settings: Any) -> Any:
    rate = {} if name in ("no-adapt", "bn-adapt") else {"learning_rate": 0.01}
    views = {"views": 2} if name == "memo" else {}
    context = MethodContext(network=network, seeds=list(range(runs)), batch_size=batch, precision="float64")
    method = create_method(name, context, [settings_class(name)(**rate, **views, **settings)] * runs)
    if name == "eata":
        method.measure_fisher([images("network_gn", 8).expand(runs, -1, -1, -1, -1)])
    return method


def weights(method: Any) -> torch.Tensor:
    """The adapted values [R, P]; MEMO's source, which it must never write to."""
    return method.source if method.name == "memo" else method.network.theta


def images(network: str, count: int) -> torch.Tensor:
    return rgb(network_for(network)[1].reshape(-1, 32, 32)[:count])


def one_by_one_network() -> Network:
    """A BatchNorm network whose last maps are 1×1 for 32-pixel images, as ResNet-18's are for ColoredMNIST's 28."""
    torch.manual_seed(0)
    module = ResNet(BasicBlock, [1, 1, 1, 1], channels=[8, 8, 8, 8], num_classes=2).eval()
    info = NetworkInfo(name="tiny", family="resnet", norm="bn", num_classes=2, image_size=32)
    return Network(info=info, module=module, mean=(0.2,) * 3, std=(0.4,) * 3, num_classes=2, sha256="")


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", ALL)
def test_batch_size_one_and_a_short_last_batch(network: str, name: str) -> None:
    for sizes in ((1, 1, 1), (8, 8, 3)):
        method = build(name, network_for(network)[0], batch=sizes[0])
        for size in sizes:
            assert torch.isfinite(method.step(images(network, size))).all()
            assert method.report.prediction.shape == (1, size)
        assert torch.isfinite(weights(method)).all()


@pytest.mark.parametrize("name", ADAPTING)
def test_one_sample_through_batch_norm_with_one_by_one_maps(name: str) -> None:
    method = build(name, one_by_one_network(), batch=1)
    before = method.state_dict()
    logits = method.step(images("network_bn", 1))
    assert torch.isfinite(logits).all()
    assert method.report.skipped.all()
    for key in ("theta", "momentum"):
        assert torch.equal(method.state_dict()[key], before[key])


@pytest.mark.parametrize("name", ["bn-adapt", "memo"])
def test_one_sample_without_batch_statistics_takes_the_source_s(name: str) -> None:
    """K24: with one value per channel the batch's statistics do not exist. Earlier, larger maps use their own."""
    network = one_by_one_network()
    for layer in network.module.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.running_mean.normal_()
    method = build(name, network, batch=1, **({"prior_strength": -1.0} if name == "memo" else {}))
    first = method.step(images("network_bn", 1))
    assert torch.isfinite(first).all()
    other = method.step(images("network_bn", 2)[:, 1:])
    assert not torch.equal(first, other)  # statistics of the sample itself would give every sample one answer


@pytest.mark.parametrize("name", ["sar", "deyo"])
def test_a_single_selected_sample_on_one_by_one_maps_is_skipped(name: str) -> None:
    method = build(name, one_by_one_network(), entropy_margin=1.0)
    pixels = images("network_bn", 8)
    method.step(pixels)
    entropies = method.report.entropy[0].sort().values
    method.reset()
    before = method.state_dict()
    method.entropy_margin = (entropies[0] + entropies[1]).view(1, 1) / 2
    method.step(pixels)
    assert method.report.passed_entropy.sum() == 1
    assert method.report.skipped.all()
    assert torch.equal(method.state_dict()["theta"], before["theta"])


class PoisonedHead(torch.nn.Module):
    """A network whose logits for dark images are NaN or infinite."""

    def __init__(self, inner: torch.nn.Module, value: float) -> None:
        super().__init__()
        self.inner = inner
        self.value = value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dark = x.flatten(1).mean(1, keepdim=True) < -0.45
        return torch.where(dark, self.value, self.inner(x))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", ALL)
def test_non_finite_logits_never_reach_the_weights(name: str, network: str, value: float) -> None:
    source = network_for(network)[0]
    module = PoisonedHead(source.module, value).eval()
    poisoned = Network(info=source.info, module=module, mean=source.mean, std=source.std, num_classes=10, sha256="")
    filters = name in ("eata", "eta", "sar", "sar-official", "deyo")
    method = build(name, poisoned, runs=2, **({"entropy_margin": 0.99} if filters else {}))
    bad = torch.cat([images(network, 8), images(network, 8)])
    bad[0, :2] = 0
    method.step(bad)
    for key, tensor in method.state_dict().items():
        assert torch.isfinite(tensor).all() or key == "entropy_ema"
    assert not method.report.passed_entropy[0, :2].any()
    assert method.report.entropy[0, :2].isnan().all()
    if name in ("tent", "sentry"):
        assert method.report.skipped.tolist() == [True, False]
    method.step(torch.zeros_like(bad))
    assert torch.isfinite(weights(method)).all()
    if name not in ("no-adapt", "bn-adapt"):
        assert method.report.skipped.all()


@pytest.mark.parametrize("name", ALL)
def test_constant_predictions_do_not_crash(name: str) -> None:
    source = network_for("network_gn")[0]
    module = copy.deepcopy(source.module)
    with torch.no_grad():
        module.fc.weight.zero_()
        module.fc.bias.copy_(torch.nn.functional.one_hot(torch.tensor(3), 10) * 50.0)
    method = build(name, dataclasses.replace(source, module=module))
    for _ in range(3):
        logits = method.step(images("network_gn", 8))
    assert (logits.argmax(-1) == 3).all()
    for key, tensor in method.state_dict().items():
        assert torch.isfinite(tensor).all() or key == "entropy_ema"


def test_two_methods_in_one_process_do_not_touch_each_other_or_the_network() -> None:
    network = network_for("network_bn")[0]
    before = {k: v.clone() for k, v in network.module.state_dict().items()}
    alone = build("deyo", network)
    expected = [alone.step(images("network_bn", 8)) for _ in range(3)]
    one, other = build("deyo", network), build("tent", network)
    for k in range(3):
        other.step(images("network_bn", 8))
        assert torch.equal(one.step(images("network_bn", 8)), expected[k])
    assert all(torch.equal(v, before[k]) for k, v in network.module.state_dict().items())
    assert type(network.module.bn1) is torch.nn.modules.batchnorm.BatchNorm2d


@pytest.mark.parametrize("name", ALL)
def test_reset_goes_back_to_the_source(name: str) -> None:
    method = build(name, network_for("network_gn")[0])
    pixels = images("network_gn", 8)
    first = method.step(pixels)
    method.step(pixels)
    method.reset()
    assert torch.equal(method.step(pixels), first)


@pytest.mark.parametrize("name", ["deyo", "eata"])
@pytest.mark.parametrize("network", ["network_bn", "network_gn"])
def test_entropy_filter_over_augmix_copies(name: str, network: str) -> None:
    plain, copied = build(name, network_for(network)[0]), build(name, network_for(network)[0], entropy_copies=4)
    pixels = images(network, 8)
    assert torch.equal(plain.step(pixels), copied.step(pixels))  # the predictions are those of the clean image
    assert torch.equal(plain.report.entropy, copied.report.entropy)
    assert torch.isfinite(copied.network.theta).all()


def test_augmix_copies_as_the_destroyed_image_mix_with_other_transforms() -> None:
    cls = settings_class("deyo")
    mixed = [
        cls(learning_rate=0.01, transform="augmix", copies=4, filter_entropy=False),
        cls(learning_rate=0.01, filter_entropy=False),
    ]
    network = network_for("network_gn")[0]
    context = MethodContext(network=network, seeds=[5, 6], batch_size=8, precision="float64")
    together = create_method("deyo", context, mixed)
    pixels = images("network_gn", 8)
    together.step(torch.cat([pixels, pixels]))
    for r, seed in enumerate((5, 6)):
        context = MethodContext(network=network, seeds=[seed], batch_size=8, precision="float64")
        alone = create_method("deyo", context, [mixed[r]])
        alone.step(pixels)
        torch.testing.assert_close(together.report.plpd[r], alone.report.plpd[0], rtol=0, atol=1e-12)
    assert not torch.allclose(together.report.plpd[0], together.report.plpd[1])
