"""AugMix and RandAugment: the same draws give what the published Pillow code gives; keys decide everything."""

from __future__ import annotations

import importlib
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from torchvision.transforms import functional as vision

from deyo.augment import augmix, content_keys, draw_augmix, draw_randaugment, randaugment, step_keys
from deyo.augment.augmix import NOTHING, OPERATIONS
from deyo.augment.randaugment import NAMES

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def make_pixels(count: int, side: int, seed: int = 0) -> torch.Tensor:
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 256, (count, 3, side // 4, side // 4), dtype=np.uint8)
    noise = generator.integers(0, 20, (count, 3, side, side), dtype=np.uint8)
    return torch.from_numpy(coarse.repeat(4, 2).repeat(4, 3) // 2 + noise)


def to_picture(image: torch.Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).numpy())


def to_normalised(picture: Image.Image) -> torch.Tensor:
    return vision.normalize(vision.to_tensor(picture), MEAN, STD)


def augmix_operation(picture: Image.Image, name: str, v: float) -> Image.Image:
    """One operation of the published chain, its strength already drawn."""
    size, bilinear = picture.size, {"resample": Image.BILINEAR, "fillcolor": 128}

    def affine(*matrix: float) -> Image.Image:
        return picture.transform(size, Image.AFFINE, matrix, **bilinear)

    return {
        "autocontrast": lambda: ImageOps.autocontrast(picture),
        "equalize": lambda: ImageOps.equalize(picture),
        "rotate": lambda: picture.rotate(v, **bilinear),
        "solarize": lambda: ImageOps.solarize(picture, int(v)),
        "shear_x": lambda: affine(1, v, 0, 0, 1, 0),
        "shear_y": lambda: affine(1, 0, 0, v, 1, 0),
        "translate_x": lambda: affine(1, 0, v, 0, 1, 0),
        "translate_y": lambda: affine(1, 0, 0, 0, 1, v),
        "posterize": lambda: ImageOps.posterize(picture, int(v)),
    }[name]()


def published_augmix(image: torch.Tensor, draws, k: int) -> torch.Tensor:
    """View k by the published procedure, image by image in Pillow."""
    picture, side = to_picture(image), image.shape[-1]
    if draws.box is not None:
        picture = vision.resized_crop(picture, *draws.box[k].tolist(), size=[side, side])
    else:
        top, left = draws.offset[k].tolist()
        picture = vision.crop(vision.pad(picture, 8), top + 8, left + 8, side, side)
    picture = ImageOps.mirror(picture) if draws.flip[k] else picture
    mixed = torch.zeros(3, side, side)
    for chain in range(3):
        changed = picture
        for number, v in zip(draws.operation[k, chain].tolist(), draws.strength[k, chain].tolist()):
            if number != NOTHING:
                changed = augmix_operation(changed, OPERATIONS[number], v)
        mixed += draws.weights[k, chain] * to_normalised(changed)
    return draws.share[k] * to_normalised(picture) + (1 - draws.share[k]) * mixed


@pytest.mark.parametrize(("side", "copies"), [(28, 24), (32, 24), (112, 12)])
def test_augmix_equals_the_published_chain(side: int, copies: int) -> None:
    pixels, keys = make_pixels(2, side), torch.tensor([3, 4])
    views = augmix(pixels, copies=copies, keys=keys, mean=MEAN, std=STD)
    assert views.shape == (copies, 2, 3, side, side)
    draws = draw_augmix(keys, copies=copies, side=side)
    for copy in range(copies):
        for image in range(2):
            theirs = published_augmix(pixels[image], draws, copy * 2 + image)
            torch.testing.assert_close(views[copy, image], theirs, atol=2e-6, rtol=0)
    given = augmix(pixels, copies=copies, mean=MEAN, std=STD, draws=draws)
    assert torch.equal(given, views)


def test_augmix_levels_are_those_of_the_fact_sheet() -> None:
    draws = draw_augmix(torch.arange(400), copies=4, side=224)
    strengths = {name: draws.strength[draws.operation == number].tolist() for number, name in enumerate(OPERATIONS)}
    assert set(strengths["rotate"]) == {-2, -1, 1, 2}  # 0° is dropped: it is the image itself
    assert (min(strengths["solarize"]), max(strengths["solarize"])) == (231, 254)
    assert 0.029 < max(strengths["shear_x"]) <= 0.03
    assert set(strengths["translate_y"]) == {*range(-7, 0), *range(1, 8)}
    assert set(strengths["posterize"]) == {4}
    assert draws.weights.sum(1).sub(1).abs().max() < 1e-6
    lengths = (draws.operation != NOTHING).sum(-1)
    assert int(lengths.max()) == 3


def test_augmix_draws_are_spread_as_stated() -> None:
    draws = draw_augmix(torch.arange(2000), copies=4, side=224)
    first = Counter(draws.operation[:, :, 0].flatten().tolist())
    plain = [first[OPERATIONS.index(n)] for n in ("autocontrast", "equalize", "solarize", "posterize")]
    expected = draws.operation[:, :, 0].numel() / 9
    assert all(abs(count / expected - 1) < 0.08 for count in plain)
    assert draws.share.mean() == pytest.approx(0.5, abs=0.02)
    assert draws.weights.mean(0) == pytest.approx([1 / 3] * 3, abs=0.02)
    assert draws.weights.var(0) == pytest.approx([1 / 18] * 3, abs=0.005)  # Dirichlet(1, 1, 1)
    assert draws.flip.float().mean() == pytest.approx(0.5, abs=0.03)
    area = (draws.box[:, 2] * draws.box[:, 3]).double() / 224**2
    assert area.mean() == pytest.approx(0.5, abs=0.03)
    assert 0.07 < area.min() < 0.1


def test_small_images_shift_by_the_padding_of_their_code() -> None:
    for side, padding in ((28, 2), (32, 4)):
        offsets = draw_augmix(torch.arange(300), copies=4, side=side).offset
        assert (int(offsets.min()), int(offsets.max())) == (-padding, padding)


def randaugment_operation(picture: Image.Image, name: str, v: float, x: float, y: float) -> Image.Image:
    """One operation of the published RandAugment, its value, sign and cutout centre already drawn."""
    side = picture.size[0]

    def affine(*matrix: float) -> Image.Image:
        return picture.transform(picture.size, Image.AFFINE, matrix)

    def solarize_add() -> Image.Image:
        array = np.clip(np.array(picture).astype(int) + v, 0, 255).astype(np.uint8)
        return ImageOps.solarize(Image.fromarray(array), 128)

    def cutout() -> Image.Image:
        x0, y0 = int(max(0, x * side - v / 2)), int(max(0, y * side - v / 2))
        copy = picture.copy()
        ImageDraw.Draw(copy).rectangle((x0, y0, min(side, x0 + v), min(side, y0 + v)), (125, 123, 114))
        return copy

    return {
        "autocontrast": lambda: ImageOps.autocontrast(picture),
        "equalize": lambda: ImageOps.equalize(picture),
        "invert": lambda: ImageOps.invert(picture),
        "rotate": lambda: picture.rotate(v),
        "posterize": lambda: ImageOps.posterize(picture, max(1, int(v))),
        "solarize": lambda: ImageOps.solarize(picture, v),
        "solarize_add": solarize_add,
        "colour": lambda: ImageEnhance.Color(picture).enhance(v),
        "contrast": lambda: ImageEnhance.Contrast(picture).enhance(v),
        "brightness": lambda: ImageEnhance.Brightness(picture).enhance(v),
        "sharpness": lambda: ImageEnhance.Sharpness(picture).enhance(v),
        "shear_x": lambda: affine(1, v, 0, 0, 1, 0),
        "shear_y": lambda: affine(1, 0, 0, v, 1, 0),
        "cutout": cutout,
        "translate_x": lambda: affine(1, 0, v, 0, 1, 0),
        "translate_y": lambda: affine(1, 0, 0, 0, 1, v),
    }[name]()


@pytest.mark.parametrize(("side", "magnitude"), [(28, 2.0), (32, 9.0), (112, 2.0), (112, 30.0)])
def test_randaugment_equals_the_published_code(side: int, magnitude: float) -> None:
    pixels, keys, copies = make_pixels(3, side), torch.tensor([7, 8, 9]), 16
    views = randaugment(pixels, copies=copies, keys=keys, mean=MEAN, std=STD, magnitude=magnitude)
    draws = draw_randaugment(keys, copies=copies, magnitude=magnitude)
    assert {NAMES[k] for k in draws.operation.flatten().tolist()} == set(NAMES)
    for copy in range(copies):
        for image in range(3):
            k = copy * 3 + image
            picture = to_picture(pixels[image])
            for step in range(3):
                parameters = (draws.value, draws.centre_x, draws.centre_y)
                name = NAMES[draws.operation[k, step]]
                picture = randaugment_operation(picture, name, *(float(p[k, step]) for p in parameters))
            torch.testing.assert_close(views[copy, image], to_normalised(picture), atol=1e-6, rtol=0)


def test_randaugment_levels_are_those_of_the_fact_sheet() -> None:
    draws = draw_randaugment(torch.arange(300), copies=3)
    value = {name: draws.value[draws.operation == k].abs().unique().tolist() for k, name in enumerate(NAMES)}
    assert value["solarize"] == pytest.approx([17.0667], abs=1e-3)
    assert value["posterize"] == pytest.approx([0.2667], abs=1e-3)
    assert value["brightness"] == value["colour"] == value["contrast"] == pytest.approx([0.22])
    assert value["rotate"] == pytest.approx([2.0])
    assert value["translate_x"] == pytest.approx([20 / 3])


def test_randaugment_takes_a_magnitude_for_each_image() -> None:
    pixels, keys = make_pixels(2, 28), torch.tensor([1, 2])
    both = randaugment(pixels, copies=5, keys=keys, mean=MEAN, std=STD, magnitude=torch.tensor([2.0, 20.0]))
    for image, magnitude in enumerate((2.0, 20.0)):
        alone = randaugment(
            pixels[image : image + 1],
            copies=5,
            keys=keys[image : image + 1],
            mean=MEAN,
            std=STD,
            magnitude=magnitude,
        )
        assert torch.equal(both[:, image : image + 1], alone)


@pytest.mark.parametrize("views_of", [augmix, randaugment])
def test_views_depend_on_image_and_key_only(views_of) -> None:
    """The same in any batch and order; the global generators are neither read nor moved."""
    pixels, keys = make_pixels(5, 32), torch.arange(5) * 17
    state = torch.random.get_rng_state()
    whole = views_of(pixels, copies=3, keys=keys, mean=MEAN, std=STD)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(1)
    some = torch.tensor([4, 1])
    part = views_of(pixels[some], copies=3, keys=keys[some], mean=MEAN, std=STD)
    assert torch.equal(part, whole[:, some])
    other = views_of(pixels, copies=3, keys=keys + 1, mean=MEAN, std=STD)
    assert not torch.equal(other, whole)


def test_many_views_are_made_in_blocks_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels, keys = make_pixels(3, 28), torch.arange(3)
    whole = augmix(pixels, copies=8, keys=keys, mean=MEAN, std=STD)
    monkeypatch.setattr(importlib.import_module("deyo.augment.augmix"), "_VIEWS_AT_ONCE", 7)
    assert torch.equal(augmix(pixels, copies=8, keys=keys, mean=MEAN, std=STD), whole)


@pytest.mark.parametrize("views_of", [augmix, randaugment])
def test_no_images_give_no_views(views_of) -> None:
    empty = torch.zeros(0, 3, 28, 28, dtype=torch.uint8)
    views = views_of(empty, copies=2, keys=torch.zeros(0, dtype=torch.int64), mean=MEAN, std=STD)
    assert views.shape == (2, 0, 3, 28, 28)


@pytest.mark.parametrize("views_of", [augmix, randaugment])
def test_keys_or_draws_not_neither(views_of) -> None:
    with pytest.raises(ValueError, match="either keys or draws"):
        views_of(make_pixels(1, 28), copies=1, mean=MEAN, std=STD)


def test_wrong_input_is_refused() -> None:
    with pytest.raises(ValueError, match="square images"):
        augmix(make_pixels(1, 28)[..., :20], copies=1, keys=torch.zeros(1, dtype=torch.int64), mean=MEAN, std=STD)
    with pytest.raises(ValueError, match=r"0\.\.30, got 31"):
        draw_randaugment(torch.zeros(1, dtype=torch.int64), copies=1, magnitude=31)


def test_content_keys_follow_the_picture_not_its_place() -> None:
    pixels = make_pixels(4, 28).unsqueeze(0)
    keys = content_keys(torch.tensor([5]), pixels)
    moved = content_keys(torch.tensor([5]), pixels[:, [2, 0]])
    assert torch.equal(moved, keys[:, [2, 0]])
    assert len(keys.unique()) == 4
    assert not torch.equal(content_keys(torch.tensor([6]), pixels), keys)


def test_step_keys_differ_by_run_step_and_place() -> None:
    seeds = torch.tensor([1, 2])
    keys = torch.stack([step_keys(seeds, step, 3) for step in range(4)])
    assert keys.shape == (4, 2, 3)
    assert len(keys.unique()) == 24


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("views_of", [augmix, randaugment])
def test_gpu_views_equal_those_of_the_cpu(views_of) -> None:
    pixels, keys = make_pixels(4, 224), torch.arange(4)
    cpu = views_of(pixels, copies=8, keys=keys, mean=MEAN, std=STD)
    gpu = views_of(pixels.cuda(), copies=8, keys=keys.cuda(), mean=MEAN, std=STD).cpu()
    # A fused multiply-add may move a truncated value by one of 255 steps, for very few pixels.
    difference = (gpu - cpu).abs()
    assert difference.max() < 2 / 255 / min(STD)
    assert (difference > 1e-4).float().mean() < 1e-3
