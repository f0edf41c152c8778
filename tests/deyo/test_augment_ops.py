"""Every batched operation equals Pillow's on uint8 images, pixel by pixel, with another parameter per image."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from torchvision.transforms import functional as vision

from deyo.augment import geometry, local, tables

SIZES = (28, 32, 224)


def make_images(side: int, count: int = 6) -> torch.Tensor:
    """Noise, a smooth ramp, dark, few-valued, constant and gradient images: uint8 [count, 3, side, side]."""
    generator = np.random.default_rng(side)
    ramp = np.linspace(0, 255, side)[None, :, None] * np.linspace(0.3, 1, 3) + np.zeros((side, 1, 1))
    images = [
        generator.integers(0, 256, (side, side, 3)),
        ramp,
        generator.integers(10, 60, (side, side, 3)),
        generator.integers(0, 3, (side, side, 3)) * 100,
        np.full((side, side, 3), 77),
        ramp.transpose(1, 0, 2) * 0.7 + generator.integers(0, 20, (side, side, 3)),
    ]
    array = np.stack(images[:count]).astype(np.uint8)
    return torch.from_numpy(array).permute(0, 3, 1, 2).contiguous()


def pillow(images: torch.Tensor, operation, *parameters) -> torch.Tensor:
    """``operation(image, *its parameters)`` on each image by Pillow."""
    results = []
    for k, image in enumerate(images):
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        results.append(np.array(operation(picture, *(p[k] for p in parameters))))
    return torch.from_numpy(np.stack(results)).permute(0, 3, 1, 2)


def assert_equal(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.dtype == torch.uint8
    difference = (ours.int() - theirs.int()).abs()
    assert difference.max() == 0, f"{(difference > 0).sum()} of {difference.numel()} values differ"


@pytest.fixture(params=SIZES)
def images(request: pytest.FixtureRequest) -> torch.Tensor:
    return make_images(request.param)


def test_autocontrast(images: torch.Tensor) -> None:
    ours = tables.apply_table(images, tables.autocontrast_table(images))
    assert_equal(ours, pillow(images, ImageOps.autocontrast))


def test_equalize(images: torch.Tensor) -> None:
    ours = tables.apply_table(images, tables.equalize_table(images))
    assert_equal(ours, pillow(images, ImageOps.equalize))


def test_equalize_of_nearly_constant_images() -> None:
    images = torch.full((3, 3, 28, 28), 9, dtype=torch.uint8)
    images[1, :, 0, :5] = 200  # fewer than 255 pixels beside the brightest: Pillow leaves the image
    images[2, 0, :20] = 3
    assert_equal(tables.apply_table(images, tables.equalize_table(images)), pillow(images, ImageOps.equalize))


def test_invert(images: torch.Tensor) -> None:
    table = tables.invert_table(len(images), images.device)
    assert_equal(tables.apply_table(images, table), pillow(images, ImageOps.invert))


@pytest.mark.parametrize("thresholds", [[231, 240, 254, 0, 256, 128], [17.07, 0.5, 100.0, 200.2, 255.0, 1.0]])
def test_solarize(images: torch.Tensor, thresholds: list[float]) -> None:
    table = tables.solarize_table(torch.tensor(thresholds))
    assert_equal(tables.apply_table(images, table), pillow(images, ImageOps.solarize, thresholds))


def test_posterize(images: torch.Tensor) -> None:
    bits = [1, 2, 4, 5, 7, 8]
    table = tables.posterize_table(torch.tensor(bits))
    assert_equal(tables.apply_table(images, table), pillow(images, ImageOps.posterize, bits))


def test_solarize_add(images: torch.Tensor) -> None:
    additions = [110 / 30 * 2, 0.0, 110.0, 50.5, 1.0, 73.3]

    def published(image: Image.Image, addition: float) -> Image.Image:
        array = np.clip(np.array(image).astype(int) + addition, 0, 255).astype(np.uint8)
        return ImageOps.solarize(Image.fromarray(array), 128)

    table = tables.solarize_add_table(torch.tensor(additions, dtype=torch.float64))
    assert_equal(tables.apply_table(images, table), pillow(images, published, additions))


FACTORS = [0.22, 0.1, 0.5, 1.0, 1.37, 1.9]


def enhanced(kind):
    return lambda image, factor: kind(image).enhance(factor)


def test_brightness(images: torch.Tensor) -> None:
    table = tables.brightness_table(torch.tensor(FACTORS, dtype=torch.float64))
    theirs = pillow(images, enhanced(ImageEnhance.Brightness), FACTORS)
    assert_equal(tables.apply_table(images, table), theirs)


def test_contrast(images: torch.Tensor) -> None:
    table = tables.contrast_table(images, torch.tensor(FACTORS, dtype=torch.float64))
    assert_equal(tables.apply_table(images, table), pillow(images, enhanced(ImageEnhance.Contrast), FACTORS))


def test_colour(images: torch.Tensor) -> None:
    ours = local.colour(images, torch.tensor(FACTORS, dtype=torch.float64))
    assert_equal(ours, pillow(images, enhanced(ImageEnhance.Color), FACTORS))


def test_sharpness(images: torch.Tensor) -> None:
    ours = local.sharpness(images, torch.tensor(FACTORS, dtype=torch.float64))
    assert_equal(ours, pillow(images, enhanced(ImageEnhance.Sharpness), FACTORS))


def test_cutout(images: torch.Tensor) -> None:
    side = images.shape[-1]
    sizes = [40 / 15, 0.0, 7.5, 40.0, 3.2, 12.0]
    xs = [0.3, side - 0.1, side / 2, 1.0, side / 3, side - 2.5]
    ys = [side - 0.2, 0.0, side / 2.7, 2.0, 5.5, side / 4]

    def published(image: Image.Image, size: float, x: float, y: float) -> Image.Image:
        x0, y0 = int(max(0, x - size / 2)), int(max(0, y - size / 2))
        corners = (x0, y0, min(side, x0 + size), min(side, y0 + size))
        image = image.copy()
        ImageDraw.Draw(image).rectangle(corners, (125, 123, 114))
        return image

    parameters = (torch.tensor(p, dtype=torch.float64) for p in (sizes, xs, ys))
    assert_equal(local.cutout(images, *parameters), pillow(images, published, sizes, xs, ys))


DEGREES = [1, -1, 2, -2, 0, 17]


@pytest.mark.parametrize("bilinear", [True, False])
def test_rotate(images: torch.Tensor, bilinear: bool) -> None:
    side = images.shape[-1]
    degrees = DEGREES if bilinear else [2.0, -2.0, 30.0, -30.0, 0.7, 11.3]
    resample = Image.BILINEAR if bilinear else Image.NEAREST
    fill = (128, 0, 0) if bilinear else (0, 0, 0)
    ours = geometry.affine(images, geometry.rotation(torch.tensor(degrees), side, side), bilinear=bilinear, fill=fill)
    theirs = pillow(images, lambda i, d: i.rotate(d, resample=resample, fillcolor=fill), degrees)
    assert_equal(ours, theirs)


@pytest.mark.parametrize("bilinear", [True, False])
@pytest.mark.parametrize("along_x", [True, False])
def test_shear(images: torch.Tensor, bilinear: bool, along_x: bool) -> None:
    side = images.shape[-1]
    amounts = [0.003, -0.017, 0.03, 0.02, -0.3, 0.1]
    resample = Image.BILINEAR if bilinear else Image.NEAREST

    def published(image: Image.Image, v: float) -> Image.Image:
        matrix = (1, v, 0, 0, 1, 0) if along_x else (1, 0, 0, v, 1, 0)
        return image.transform((side, side), Image.AFFINE, matrix, resample=resample, fillcolor=(9, 8, 7))

    matrix = geometry.shear(torch.tensor(amounts, dtype=torch.float64), along_x=along_x)
    ours = geometry.affine(images, matrix, bilinear=bilinear, fill=(9, 8, 7))
    assert_equal(ours, pillow(images, published, amounts))


@pytest.mark.parametrize("bilinear", [True, False])
@pytest.mark.parametrize("along_x", [True, False])
def test_translate(images: torch.Tensor, bilinear: bool, along_x: bool) -> None:
    side = images.shape[-1]
    offsets = [0, 3, -7, 1, -1, 6] if bilinear else [100 / 15, -100 / 15, 3.3, -0.4, 0.6, 20.0]
    resample = Image.BILINEAR if bilinear else Image.NEAREST

    def published(image: Image.Image, v: float) -> Image.Image:
        matrix = (1, 0, v, 0, 1, 0) if along_x else (1, 0, 0, 0, 1, v)
        return image.transform((side, side), Image.AFFINE, matrix, resample=resample)

    matrix = geometry.translation(torch.tensor(offsets, dtype=torch.float64), along_x=along_x)
    ours = geometry.affine(images, matrix, bilinear=bilinear, fill=(0, 0, 0))
    assert_equal(ours, pillow(images, published, offsets))


def test_resized_crop(images: torch.Tensor) -> None:
    side = images.shape[-1]
    generator = np.random.default_rng(1)
    boxes = [[0, 0, side, side], [0, 0, side // 3, side], [side - 9, side - 8, 9, 8]]
    for _ in range(3):
        height, width = generator.integers(4, side + 1, 2)
        boxes.append([generator.integers(0, side - height + 1), generator.integers(0, side - width + 1), height, width])
    ours = geometry.resized_crop(images, torch.tensor(np.array(boxes)))
    theirs = pillow(images, lambda i, b: vision.resized_crop(i, *map(int, b), size=[side, side]), boxes)
    assert_equal(ours, theirs)


def test_padded_crop_and_flip(images: torch.Tensor) -> None:
    side = images.shape[-1]
    top, left = [-4, 4, 0, 1, -2, 3], [4, -4, 0, 0, 3, -1]

    def published(image: Image.Image, t: int, l: int) -> Image.Image:
        return vision.crop(vision.pad(image, 4), t + 4, l + 4, side, side)

    ours = geometry.padded_crop(images, torch.tensor(top), torch.tensor(left))
    assert_equal(ours, pillow(images, published, top, left))
    chosen = [True, False, True, False, True, False]
    ours = geometry.flip_some(images, torch.tensor(chosen))
    assert_equal(ours, pillow(images, lambda i, c: ImageOps.mirror(i) if c else i, chosen))
