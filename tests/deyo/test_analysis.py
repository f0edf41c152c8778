"""The paper's analyses on small networks: each against a slow or hand-made reference."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from parity_cases import network_for
from torch import nn

from deyo.analysis import (
    KINDS,
    Scores,
    areas,
    entropy_quartiles,
    grad_cam,
    last_convolution,
    measure_efficiency,
    most_confident,
    risk_curves,
    score_images,
    to_plain,
    transformed_examples,
)
from deyo.methods import create_method, settings_class
from deyo.types import ConfigError, ImageSet, MethodContext, Network, NetworkInfo, Stream


def image_set(name: str, count: int = 48) -> ImageSet:
    """Digits of the parity stream with two made-up groups."""
    grey = network_for(name)[1].reshape(-1, 32, 32)[:count]
    labels = np.arange(count) % 10
    return ImageSet(name="digits", pixels=np.repeat(grey[..., None], 3, axis=3), labels=labels, groups=labels % 2)


def made_scores(**changes) -> Scores:
    """Eight samples of two groups; group 1 is the worse."""
    values = {
        "label": np.array([0, 1, 0, 1, 0, 1, 0, 1]),
        "group": np.array([0, 0, 0, 0, 1, 1, 1, 1]),
        "prediction": np.array([0, 1, 0, 0, 1, 1, 1, 0]),
        "entropy": np.array([0.1, 0.2, 0.6, 0.65, 0.05, 0.3, 0.5, 0.6]),
        "plpd": {"patch": np.array([0.9, 0.1, 0.5, 0.0, 0.0, 0.8, 0.1, 0.3])},
        "num_classes": 2,
        "statistics": "running",
    }
    return Scores(**{**values, **changes})


@pytest.mark.parametrize("name", ["network_bn", "network_ln"])
def test_scores_are_entropy_and_fall_of_the_pseudo_label(name: str) -> None:
    network, images = network_for(name)[0], image_set(name)
    scores = score_images(network, images, batch_size=20, precision="float64", copies=2)
    x = torch.from_numpy(images.pixels).permute(0, 3, 1, 2).float()
    x = ((x / 255 - 0.2) / 0.4).double()
    module = network.module.double()
    try:
        p = module(x).softmax(1)
        occluded = x.clone()
        occluded[:, :, 8:24, 8:24] = x.mean((2, 3), keepdim=True)
        after = module(occluded).softmax(1)
    finally:
        module.float()
    label = p.argmax(1)
    rows = torch.arange(len(x))
    assert np.array_equal(scores.prediction, label.numpy())
    assert scores.entropy == pytest.approx((-(p * p.log()).sum(1)).detach().numpy(), abs=1e-9)
    assert scores.plpd["occlusion"] == pytest.approx((p[rows, label] - after[rows, label]).detach().numpy(), abs=1e-9)
    assert set(scores.plpd) == set(KINDS)
    assert all(np.isfinite(v).all() and v.max() <= 1 and v.min() > -1 for v in scores.plpd.values())
    assert (scores.correct == (scores.prediction == images.labels)).all()


def test_running_statistics_do_not_depend_on_batches_and_batch_statistics_do() -> None:
    network, images = network_for("network_bn")[0], image_set("network_bn")

    def entropies(statistics: str, size: int) -> np.ndarray:
        return score_images(
            network, images, kinds=("patch",), statistics=statistics, batch_size=size, precision="float64"
        ).entropy

    assert entropies("running", 48) == pytest.approx(entropies("running", 7), abs=1e-9)
    assert np.abs(entropies("batch", 48) - entropies("batch", 7)).max() > 1e-3
    assert np.abs(entropies("batch", 48) - entropies("running", 48)).max() > 1e-3


def test_scores_are_the_same_for_a_seed_in_any_batch_size() -> None:
    network, images = network_for("network_gn")[0], image_set("network_gn")
    one, two = (score_images(network, images, batch_size=size, precision="float64", copies=2) for size in (48, 5))
    other = score_images(network, images, seed=1, precision="float64", copies=2)
    for kind in KINDS:
        assert one.plpd[kind] == pytest.approx(two.plpd[kind], abs=1e-9)
    assert np.abs(one.plpd["patch"] - other.plpd["patch"]).max() > 1e-6
    assert one.plpd["occlusion"] == pytest.approx(other.plpd["occlusion"], abs=1e-9)


def test_unknown_names_are_refused() -> None:
    network, images = network_for("network_gn")[0], image_set("network_gn", 4)
    with pytest.raises(ConfigError, match="choose among augmix, pixel, patch, occlusion"):
        score_images(network, images, kinds=("blur",))
    with pytest.raises(ConfigError, match="choose one of running, batch"):
        score_images(network, images, statistics="train")


def test_risk_curves_of_the_worst_group() -> None:
    scores = made_scores()
    assert scores.worst_group() == 1
    entropy, patch = risk_curves(scores, group=1)
    # Within group 1 only sample 5 is right: second by entropy, first by PLPD.
    assert entropy.risk == pytest.approx([1, 1 / 2, 2 / 3, 3 / 4])
    assert patch.risk == pytest.approx([0, 1 / 2, 2 / 3, 3 / 4])
    assert entropy.aurc == pytest.approx(np.mean([1, 1 / 2, 2 / 3, 3 / 4]))
    assert patch.excess_aurc == pytest.approx(0)
    assert [c.score for c in risk_curves(scores, names=("patch",))] == ["patch"]
    assert len(risk_curves(scores)[0].coverage) == 8


def test_groups_that_are_not_there_are_named() -> None:
    with pytest.raises(ValueError, match="group 5 has no images: the groups present are"):
        risk_curves(made_scores(), group=5)
    with pytest.raises(ValueError, match="no groups"):
        made_scores(group=np.full(8, -1)).worst_group()


def test_entropy_quartiles() -> None:
    quartiles = entropy_quartiles(made_scores())
    assert quartiles.images.tolist() == [2, 2, 2, 2]
    # by entropy: 4 (wrong), 0 | 1, 5 | 6 (wrong), 2 | 7 (wrong), 3 (wrong); 2 and 7 tie at 0.6
    assert quartiles.accuracy.tolist() == [0.5, 1.0, 0.5, 0.0]
    assert quartiles.edges[[0, 4]].tolist() == [0.05, 0.65]
    assert math.isnan(entropy_quartiles(made_scores(group=np.array([0, *[1] * 7])), group=0).accuracy[3])


def test_areas() -> None:
    result = areas(made_scores(), entropy_margin=0.5, plpd_threshold=0.2)  # τ_Ent = 0.3466
    assert result.area.tolist() == [4, 3, 2, 1, 3, 4, 1, 2]
    assert result.images.tolist() == [2, 2, 2, 2]
    assert result.share.sum() == pytest.approx(1)
    assert result.accuracy.tolist() == [0, 0.5, 0.5, 1]
    empty = areas(made_scores(), plpd_threshold=2.0)
    assert np.isnan(empty.accuracy[[1, 3]]).all()


def test_most_confident_right_and_wrong() -> None:
    right, wrong = most_confident(made_scores(), count=2)
    assert right.tolist() == [0, 1]
    assert wrong.tolist() == [4, 6]


def corner_network() -> Network:
    """Class 0 counts bright pixels on the left, class 1 on the right, through one plain convolution."""

    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 3, 1)
            self.layer4 = nn.Conv2d(3, 2, 1, bias=False)
            nn.init.eye_(self.stem.weight.data.view(3, 3))
            nn.init.zeros_(self.stem.bias)
            nn.init.constant_(self.layer4.weight, 1 / 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            maps = self.layer4(self.stem(x))
            left, right = maps[..., : x.shape[-1] // 2], maps[..., x.shape[-1] // 2 :]
            return torch.stack((left.mean((1, 2, 3)), right.mean((1, 2, 3))), dim=1)

    info = NetworkInfo(name="halves", family="resnet", norm="bn", num_classes=2, image_size=8)
    return Network(info=info, module=Halves().eval(), mean=(0.0,) * 3, std=(1.0,) * 3, num_classes=2, sha256="x")


def test_grad_cam_shows_where_the_class_comes_from() -> None:
    pixels = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    pixels[0, :, 2:4, 1:3] = 255
    pixels[1, :, 5:7, 6:8] = 200
    result = grad_cam(corner_network(), pixels)
    assert result.layer == "layer4"
    assert result.target.tolist() == [0, 1]
    assert result.heat.shape == (2, 8, 8)
    assert np.array_equal(result.heat[0] > 0.5, pixels[0, 0].numpy() > 0)
    assert np.array_equal(result.heat[1] > 0.5, pixels[1, 0].numpy() > 0)
    assert grad_cam(corner_network(), pixels[:1], target=torch.tensor([1])).target.tolist() == [1]


def test_grad_cam_of_real_networks_leaves_them_alone() -> None:
    network = network_for("network_bn")[0]
    pixels = torch.from_numpy(image_set("network_bn", 4).pixels).permute(0, 3, 1, 2)
    for statistics in ("running", "batch"):
        heat = grad_cam(network, pixels, statistics=statistics).heat
        assert heat.shape == (4, 32, 32)
        assert heat.min() >= 0
        assert heat.max() <= 1
    assert not any(m._forward_hooks for m in network.module.modules())
    assert all(p.grad is None for p in network.module.parameters())
    with pytest.raises(ConfigError, match="convolutional network"):
        last_convolution(network_for("network_ln")[0].module)
    with pytest.raises(ConfigError, match="no layer 'layer9'"):
        grad_cam(network, pixels, layer="layer9")


def test_transforms_side_by_side_are_the_same_pixels() -> None:
    image = torch.randint(0, 256, (3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    views = transformed_examples(image, patches=4, seed=3)
    assert set(views) == {"original", "pixel", "patch", "occlusion", "augmix"}
    original = image.permute(1, 2, 0).numpy()
    assert np.array_equal(views["original"], original)
    for kind in ("pixel", "patch"):
        assert not np.array_equal(views[kind], original)
        assert np.array_equal(np.sort(views[kind].reshape(-1, 3), axis=0), np.sort(original.reshape(-1, 3), axis=0))
    assert np.array_equal(views["occlusion"][:8], original[:8])
    assert np.ptp(views["occlusion"][8:24, 8:24], axis=(0, 1)).tolist() == [0, 0, 0]
    assert np.array_equal(views["patch"], transformed_examples(image, patches=4, seed=3)["patch"])


def test_efficiency_counts_samples_by_the_papers_rules() -> None:
    network, images = network_for("network_gn")[0], image_set("network_gn", 40)
    context = MethodContext(network=network, seeds=[0], batch_size=16)
    method = create_method("deyo", context, [settings_class("deyo")(learning_rate=0.001, entropy_margin=0.6)])
    stream = Stream(images=images, order=np.arange(40), batch_size=16, scenario="mild", seed=0, digest="d")
    certain = selected = 0
    reference = create_method("deyo", context, method.settings)
    for start in range(0, 40, 16):
        pixels = torch.from_numpy(images.pixels[start : start + 16]).permute(0, 3, 1, 2).unsqueeze(0)
        reference.step(pixels)
        certain += int(reference.report.passed_entropy.sum())
        selected += int(reference.report.passed_both.sum())
    result = measure_efficiency(method, stream)
    assert (result.method, result.images) == ("deyo", 40)
    assert (result.forwards, result.backwards) == (40 + certain, selected)
    assert 0 < selected < certain < 40
    assert result.seconds > 0
    assert result.images_per_second > 0
    later = measure_efficiency(create_method("deyo", context, method.settings), stream, warmup=1)
    assert later.images == 24


def test_results_are_plain_json() -> None:
    scores = made_scores()
    results = [risk_curves(scores), entropy_quartiles(scores), areas(scores, plpd_threshold=2.0)]
    plain = json.loads(json.dumps(to_plain(results), allow_nan=False))
    assert plain[0][0]["score"] == "entropy"
    assert plain[2]["accuracy"][1] is None
