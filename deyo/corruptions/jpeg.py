"""JPEG and back."""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor


def jpeg_round_trip(images: Tensor, quality: int) -> Tensor:
    """Encode uint8 [N, H, W, 3] as JPEG of ``quality`` (chroma halved, Pillow's default) and decode again."""
    return torch.stack([_through_pillow(image, quality) for image in images.cpu().numpy()]).to(images.device)


def _through_pillow(image: np.ndarray, quality: int) -> Tensor:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality)
    with Image.open(buffer) as decoded:
        return torch.from_numpy(np.array(decoded))
