"""ImageNet-C's corruptions, batched, for square images from 32 pixels up, on CPU or GPU.

The algorithms and constants are those of the published generator (github.com/hendrycks/robustness); each image's
randomness comes from (seed, corruption, severity, image index) alone, so that the same image, seed and severity
give the same result in any batch on any worker: filters add whole numbers, everything else is done element by
element in a fixed order, and levels are cut with a margin against rounding (``filters.to_uint8``).

The package ``imagecorruptions-imaug`` departs from the published generator; here the published one is followed:

- elastic transform: an affine map first, and other constants (the package has neither);
- frost: five photographs, unscaled for ImageNet's constants (the package: six, enlarged by 1.1);
- motion blur: levels rounded, borders repeated (the package: cut, and stopped where small images end);
- impulse noise: follows the seed (the package ignores NumPy's);
- zoom blur and snow: enlargements cut at the centre (the package: at the top left);
- snow: flakes cut to levels before they are smeared (the package: after);
- fog: a map of the next power of two (256 for 224 pixels), as both have it.

Published constants give lengths in pixels and are not scaled with the image, except for elastic transform, whose
constants are fractions of the side. The swap in glass blur is the published one too, which copies (``blur``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from deyo.corruptions import blur, digital, elastic, noise, spatter, weather
from deyo.corruptions.constants import FAMILIES
from deyo.corruptions.draws import Draws
from deyo.corruptions.jpeg import jpeg_round_trip
from deyo.types import ConfigError

__all__ = ["CORRUPTIONS", "EXTRA_CORRUPTIONS", "VERSION", "corrupt", "jpeg_round_trip"]

VERSION = 1  # grows whenever a corruption's pixels change; prepared arrays are then made anew

CORRUPTIONS = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
EXTRA_CORRUPTIONS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")

_FUNCTIONS: dict[str, Callable[[Tensor, Any, Draws], Tensor]] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "defocus_blur": blur.defocus_blur,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "snow": weather.snow,
    "frost": weather.frost,
    "fog": weather.fog,
    "brightness": digital.brightness,
    "contrast": digital.contrast,
    "elastic_transform": elastic.elastic_transform,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
    "speckle_noise": noise.speckle_noise,
    "gaussian_blur": blur.gaussian_blur,
    "spatter": spatter.spatter,
    "saturate": digital.saturate,
}
_CHUNK_PIXELS = {"cpu": 4 * 224 * 224, "cuda": 256 * 224 * 224}


def corrupt(
    images: Tensor, name: str, severity: int, *, seed: int, indices: Tensor, constants: str = "imagenet"
) -> Tensor:
    """Corrupt uint8 images [N, H, W, 3]; returns the same shape on the same device.

    ``indices`` int64 [N] are the images' numbers in their set: image k's randomness hangs on (``seed``, ``name``,
    ``severity``, ``indices[k]``). ``constants`` is a family of ``deyo.corruptions.constants``. Raises
    ``ConfigError`` for an unknown name, severity or family, or images that are not square or under 32 pixels.
    """
    _check(images, name, severity, indices, constants)
    function = _FUNCTIONS[name]
    parameters = FAMILIES[constants][name][severity - 1]
    number = (*CORRUPTIONS, *EXTRA_CORRUPTIONS).index(name)
    draws = Draws.of(seed, number, severity, indices.to(images.device))
    chunk = max(1, _CHUNK_PIXELS.get(images.device.type, 1 << 20) // (images.shape[1] * images.shape[2]))
    parts = zip(images.split(chunk), draws.keys.split(chunk))
    return torch.cat([function(part, parameters, Draws(keys)) for part, keys in parts])


def _check(images: Tensor, name: str, severity: int, indices: Tensor, constants: str) -> None:
    if name not in _FUNCTIONS:
        raise ConfigError(f"no corruption {name!r}; there are: {', '.join(CORRUPTIONS + EXTRA_CORRUPTIONS)}")
    if severity not in (1, 2, 3, 4, 5):
        raise ConfigError(f"{name}: severity is {severity!r}, expected 1, 2, 3, 4 or 5")
    if constants not in FAMILIES:
        raise ConfigError(f"no constants {constants!r}; there are: {', '.join(FAMILIES)}")
    shape = tuple(images.shape)
    if images.dtype != torch.uint8 or len(shape) != 4 or shape[3] != 3 or shape[1] != shape[2] or shape[1] < 32:
        raise ConfigError(
            f"{name}: images are {images.dtype} {shape}, expected torch.uint8 [N, H, H, 3] with H of 32 or more"
        )
    if len(indices) != len(images):
        raise ConfigError(f"{name}: {len(indices)} indices for {len(images)} images")
