"""How an image file becomes a square of pixels: on Pillow images, bit for bit as torchvision does on them.

Written out here because importing torchvision (and with it PyTorch) takes seconds, which no process that decodes
has to spend. Every transform is a ``partial`` of a function of this module, so that it can be sent to one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from PIL import Image

Transform = Callable[[Image.Image], Image.Image]


def center_crop(size: int) -> Transform:
    """The middle ``size`` pixels, without resizing (ImageNet-C)."""
    return partial(_center_crop, size=size)


def resize_and_crop(resize: int, size: int) -> Transform:
    """The shorter side to ``resize`` (bilinear), then the middle ``size`` pixels (clean ImageNet: 256, 224)."""
    return partial(_resize_and_crop, resize=resize, size=size)


def squash(size: int) -> Transform:
    """Both sides to ``size`` (Pillow's default filter, bicubic), whatever the shape (the authors' Waterbirds)."""
    return partial(_squash, size=size)


def squash_and_crop(resize: int, size: int) -> Transform:
    """Both sides to ``resize`` (bilinear), then the middle ``size`` pixels (group_DRO's Waterbirds)."""
    return partial(_squash_and_crop, resize=resize, size=size)


def is_own(transform: Transform) -> bool:
    """Whether ``transform`` is one of this module's: any process that has this package can do it."""
    return isinstance(transform, partial) and transform.func in _OWN


def _center_crop(image: Image.Image, size: int) -> Image.Image:
    left, top = (_margin(side, size) for side in image.size)
    return image.crop((left, top, left + size, top + size))


def _margin(side: int, size: int) -> int:
    """Pixels before the middle ``size`` of ``side``; negative where black is put there."""
    return -((size - side) // 2) if size > side else round((side - size) / 2)


def _resize_and_crop(image: Image.Image, resize: int, size: int) -> Image.Image:
    width, height = image.size
    if width <= height:
        sides = resize, int(resize * height / width)
    else:
        sides = int(resize * width / height), resize
    return _center_crop(_bilinear(image, sides), size)


def _squash(image: Image.Image, size: int) -> Image.Image:
    return image.resize((size, size))


def _squash_and_crop(image: Image.Image, resize: int, size: int) -> Image.Image:
    return _center_crop(_bilinear(image, (resize, resize)), size)


def _bilinear(image: Image.Image, sides: tuple[int, int]) -> Image.Image:
    return image if image.size == sides else image.resize(sides, Image.Resampling.BILINEAR)


_OWN = (_center_crop, _resize_and_crop, _squash, _squash_and_crop)
