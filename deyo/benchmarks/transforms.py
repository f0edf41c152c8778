"""How an image file becomes a square of pixels: on Pillow images, as torchvision does on them."""

from __future__ import annotations

from collections.abc import Callable

from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as tv

Transform = Callable[[Image.Image], Image.Image]


def center_crop(size: int) -> Transform:
    """The middle ``size`` pixels, without resizing (ImageNet-C)."""
    return lambda image: tv.center_crop(image, [size, size])


def resize_and_crop(resize: int, size: int) -> Transform:
    """The shorter side to ``resize`` (bilinear), then the middle ``size`` pixels (clean ImageNet: 256, 224)."""
    return lambda image: tv.center_crop(tv.resize(image, resize, InterpolationMode.BILINEAR), [size, size])


def squash(size: int) -> Transform:
    """Both sides to ``size`` (Pillow's default filter, bicubic), whatever the shape (the authors' Waterbirds)."""
    return lambda image: image.resize((size, size))


def squash_and_crop(resize: int, size: int) -> Transform:
    """Both sides to ``resize`` (bilinear), then the middle ``size`` pixels (group_DRO's Waterbirds)."""
    return lambda image: tv.center_crop(tv.resize(image, [resize, resize], InterpolationMode.BILINEAR), [size, size])
