"""How an image file becomes a square of pixels: on Pillow images, as torchvision does on them.

torchvision takes over a second to import, so it is loaded with the first image.
"""

from __future__ import annotations

from collections.abc import Callable

from PIL import Image

Transform = Callable[[Image.Image], Image.Image]


def center_crop(size: int) -> Transform:
    """The middle ``size`` pixels, without resizing (ImageNet-C)."""
    return lambda image: _center_crop(image, size)


def resize_and_crop(resize: int, size: int) -> Transform:
    """The shorter side to ``resize`` (bilinear), then the middle ``size`` pixels (clean ImageNet: 256, 224)."""
    return lambda image: _center_crop(_resize(image, resize), size)


def squash(size: int) -> Transform:
    """Both sides to ``size`` (Pillow's default filter, bicubic), whatever the shape (the authors' Waterbirds)."""
    return lambda image: image.resize((size, size))


def squash_and_crop(resize: int, size: int) -> Transform:
    """Both sides to ``resize`` (bilinear), then the middle ``size`` pixels (group_DRO's Waterbirds)."""
    return lambda image: _center_crop(_resize(image, [resize, resize]), size)


def _center_crop(image: Image.Image, size: int) -> Image.Image:
    from torchvision.transforms import functional

    return functional.center_crop(image, [size, size])


def _resize(image: Image.Image, size: int | list[int]) -> Image.Image:
    from torchvision.transforms import InterpolationMode, functional

    return functional.resize(image, size, InterpolationMode.BILINEAR)
