"""Golden checks of methods.md §7 that need no ImageNet; each test of one says so: `grep -rn "golden check 7" tests`.

Here: 1, 4, 5, 6, 8, 9, 10, 13. Elsewhere: 3 and 15 (test_streams.py), 7 (test_lockstep.py), 11 (test_memo.py),
14 (test_benchmarks_files.py, test_benchmarks_colored_mnist.py, test_benchmarks_data.py), 16 (test_metrics.py).
2 (anchors) and 12 (counts of selected samples) need ImageNet-C.
"""

from __future__ import annotations

import math

import pytest
import timm
import torch
import torchvision
from parity_cases import network_for, rgb

from deyo.losses import entropy
from deyo.methods import create_method, settings_class
from deyo.model import RunsNetwork, norm_names
from deyo.transforms import destroy, draw
from deyo.types import ConfigError, MethodContext, Network, NetworkInfo

COUNTS = {
    "resnet50": (53_120, 30_592),
    "resnet18": (9_600, 4_480),
    "vit_base_patch16_224": (38_400, 27_648),
}


def build(name: str) -> torch.nn.Module:
    if name.startswith("vit"):
        return timm.create_model(name)
    return getattr(torchvision.models, name)()


def as_network(module: torch.nn.Module) -> Network:
    info = NetworkInfo(name="n", family="resnet", norm="bn", num_classes=1000, image_size=224)
    return Network(info=info, module=module, mean=(0.5,) * 3, std=(0.5,) * 3, num_classes=1000, sha256="")


@pytest.mark.parametrize("name", COUNTS)
def test_adapted_scalars(name: str) -> None:  # golden check 1
    module = build(name)
    for subset, expected in zip(("all", "lower"), COUNTS[name]):
        network = RunsNetwork(MethodContext(network=as_network(module), seeds=[0], batch_size=1), subset)
        assert network.theta.shape == (1, expected)


def test_gn_resnet50_counts() -> None:
    module = timm.create_model("resnet50_gn")
    for subset, expected in zip(("all", "lower"), COUNTS["resnet50"]):
        network = RunsNetwork(MethodContext(network=as_network(module), seeds=[0], batch_size=1), subset)
        assert network.theta.shape[1] == expected


def test_wrappers_do_not_change_the_subset() -> None:
    module = network_for("network_ln")[0].module
    compiled = torch.compile(module)  # nothing is compiled until a forward
    for wrapped in (torch.nn.DataParallel(module), compiled, torch.nn.DataParallel(compiled)):
        for subset in ("all", "lower"):
            assert norm_names(wrapped, subset) == norm_names(module, subset)


def test_an_unknown_subset_is_refused() -> None:
    with pytest.raises(ConfigError, match="lower"):
        norm_names(torch.nn.Linear(2, 2), "upper")


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (torch.nn.BatchNorm2d(3, track_running_stats=False), "BatchNorm without running statistics"),
        (torch.nn.LayerNorm((3, 8)), "LayerNorm over 2 axes"),
    ],
)
def test_norm_layers_without_a_run_axis_are_named(layer: torch.nn.Module, words: str) -> None:
    context = MethodContext(network=as_network(torch.nn.Sequential(layer)), seeds=[0], batch_size=1)
    with pytest.raises(ConfigError, match=f"layer '0' is a {words}"):
        RunsNetwork(context, "all")


@pytest.mark.parametrize(("size", "patches"), [(32, 2), (32, 4), (224, 4), (28, 4)])
def test_patch_shuffle_keeps_each_channels_pixels(size: int, patches: int) -> None:  # golden check 4
    x = torch.randn(6, 3, size, size, generator=torch.Generator().manual_seed(0))
    order = draw("patch", torch.tensor([7]), 0, batch=6, size=size, patches=patches)
    shuffled = destroy(x, "patch", order[0], patches=patches)
    assert torch.equal(shuffled.flatten(2).sort(-1).values, x.flatten(2).sort(-1).values)
    assert not torch.equal(shuffled, x)
    assert len({tuple(row) for row in order[0].tolist()}) > 1


@pytest.mark.parametrize("patches", [2, 3, 4, 5, 6, 7])
def test_patch_shuffle_with_the_identity_order_keeps_the_image_where_p_divides_the_side(patches: int) -> None:
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    order = torch.arange(patches**2).expand(2, -1)
    same = torch.equal(destroy(x, "patch", order, patches=patches), x)
    assert same == (32 % patches == 0)


def test_pixel_shuffle_is_the_same_for_the_whole_batch_and_all_channels() -> None:
    x = torch.arange(32 * 32, dtype=torch.float32).view(1, 1, 32, 32).expand(4, 3, 32, 32)
    shuffled = destroy(x, "pixel", draw("pixel", torch.tensor([1]), 0, batch=4, size=32, patches=4)[0])
    assert (shuffled == shuffled[:1, :1]).all()
    assert torch.equal(shuffled[0, 0].flatten().sort().values, x[0, 0].flatten())


def test_occlusion_leaves_the_border_and_fills_the_centre_with_the_mean() -> None:
    x = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    occluded = destroy(x, "occlusion", None)
    inside = torch.zeros(224, 224, dtype=torch.bool)
    inside[56:168, 56:168] = True
    assert torch.equal(occluded[..., ~inside], x[..., ~inside])
    torch.testing.assert_close(
        occluded[..., inside], x.mean((2, 3)).unsqueeze(-1).expand(-1, -1, 112 * 112), rtol=0, atol=0
    )


@pytest.mark.parametrize("kind", ["patch", "pixel"])
def test_draws_do_not_depend_on_neighbouring_runs_or_on_the_device(kind: str) -> None:
    seeds = torch.tensor([3, 4, 5])
    options = {"batch": 5, "size": 8, "patches": 4}
    together = draw(kind, seeds, torch.tensor(9), **options)
    for r in range(3):
        assert torch.equal(together[r], draw(kind, seeds[r : r + 1], 9, **options)[0])
    assert not torch.equal(together[0], draw(kind, seeds[:1], 10, **options)[0])


def method_on(network: str, name: str, **settings: object) -> tuple[object, torch.Tensor]:
    context = MethodContext(network=network_for(network)[0], seeds=[0], batch_size=32, precision="float64")
    method = create_method(name, context, [settings_class(name)(learning_rate=0.01, **settings)])
    if name == "eata":
        method.measure_fisher([rgb(batch) for batch in network_for(network)[2]])
    return method, rgb(network_for(network)[1][0])


@pytest.mark.parametrize("network", ["network_gn", "network_ln"])
def test_plpd_is_in_range_and_zero_for_the_identity(network: str) -> None:  # golden check 5
    method, pixels = method_on(network, "deyo", filter_entropy=False)
    method.step(pixels)
    plpd = method.report.plpd
    assert ((plpd > -1) & (plpd <= 1)).all()
    method, pixels = method_on(network, "deyo", filter_entropy=False)
    method.draw_indices = lambda kind, patches, batch, size: torch.arange(patches**2).expand(1, batch, -1)
    method.step(pixels)
    assert (method.report.plpd == 0).all()
    assert method.report.skipped.all()


def test_weight_is_two_at_the_reference() -> None:  # golden check 6
    method, _ = method_on("network_gn", "deyo")
    own = torch.full((1, 1), 0.4 * math.log(10), dtype=torch.float64)
    torch.testing.assert_close(method._weights(own, torch.zeros_like(own)), torch.full_like(own, 2.0))
    assert method._weights(own + 1, torch.zeros_like(own)) < 2


@pytest.mark.parametrize("name", ["tent", "eata", "sar", "sar-official", "deyo"])
@pytest.mark.parametrize("network", ["network_bn", "network_gn", "network_ln"])
def test_returned_logits_are_those_of_the_network_before_the_step(network: str, name: str) -> None:  # golden check 8
    method, pixels = method_on(network, name)
    method.step(pixels)
    plain = method.network(method.network.normalize(pixels)).detach()
    assert torch.equal(method.step(pixels), plain)


def test_sam_restores_the_weights_exactly_at_learning_rate_zero() -> None:  # golden check 9
    method, pixels = method_on("network_gn", "sar", entropy_margin=0.9)
    method.optimizer.learning_rate.zero_()
    before = method.network.theta.clone()
    method.step(pixels)
    assert method.report.backwards > 0
    assert torch.equal(method.network.theta, before)


def test_eata_first_batch_has_no_redundancy_filter() -> None:  # golden check 10
    method, pixels = method_on("network_gn", "eata", redundancy_margin=1e-9, fisher_strength=0.0, entropy_margin=0.9)
    method.step(pixels)
    assert torch.equal(method.report.passed_entropy, method.report.passed_both)
    assert method.report.passed_both.any()
    first = method.probability_ema.clone()
    torch.testing.assert_close(first.sum(), torch.tensor(1.0, dtype=torch.float64))
    method.step(pixels)
    assert not method.report.passed_both.any()
    assert torch.equal(method.probability_ema, first)


@pytest.mark.parametrize("network", ["network_bn", "network_gn", "network_ln"])
def test_ablation_0000_is_tent_bit_for_bit(network: str) -> None:  # golden check 13
    off = dict.fromkeys(("filter_entropy", "filter_plpd", "weight_entropy", "weight_plpd"), False)
    deyo, pixels = method_on(network, "deyo", **off)
    tent, _ = method_on(network, "tent")
    for _ in range(3):
        assert torch.equal(deyo.step(pixels), tent.step(pixels))
    assert torch.equal(deyo.network.theta, tent.network.theta)


def test_entropy_of_a_uniform_prediction() -> None:
    assert entropy(torch.zeros(2, 2, dtype=torch.float64))[0] == pytest.approx(math.log(2))
