"""Frost's photographs: read from the installed package ``imagecorruptions-imaug``, which is not imported."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from deyo.types import DataError

PHOTOGRAPHIC = "frost"
"""The corruption that is made with photographs."""

# The published generator draws from the first five of its six photographs.
_FILES = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")


def frost_folder() -> Path:
    """The folder of the photographs. Raises ``DataError`` with the line to type where it is not installed."""
    spec = find_spec("imagecorruptions")  # finds the package without running it (it would load OpenCV)
    for place in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(place) / "frost"
        if all((folder / name).is_file() for name in _FILES):
            return folder
    raise DataError(
        "frost needs the photographs of the package imagecorruptions-imaug, which is not installed. Type: "
        "pip install --no-deps imagecorruptions-imaug"
    )


@lru_cache
def frost_photographs(scale: float, size: int) -> tuple[Tensor, ...]:
    """The photographs shrunk to ``scale``, but not under ``size`` pixels a side: uint8 [H, W, 3] each."""
    return tuple(_resized(frost_folder() / name, scale, size) for name in _FILES)


def _resized(file: Path, scale: float, size: int) -> Tensor:
    with Image.open(file) as opened:
        photograph = torch.from_numpy(np.array(opened.convert("RGB")))
    height, width = photograph.shape[:2]
    scale = max(scale, size / min(height, width))
    if scale == 1.0:
        return photograph
    # OpenCV's linear resize: sampled between pixel centres, without smoothing first.
    target = [max(size, round(side * scale)) for side in (height, width)]
    planes = photograph.permute(2, 0, 1).unsqueeze(0).to(torch.float32)
    resized = functional.interpolate(planes, size=target, mode="bilinear", align_corners=False)
    return resized.round().clamp(0, 255).to(torch.uint8)[0].permute(1, 2, 0).contiguous()
