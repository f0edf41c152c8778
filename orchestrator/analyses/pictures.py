"""Small pictures as text, so that a run's row can hold what its figure shows."""

from __future__ import annotations

import base64
import io

import numpy as np

LOSSLESS_SIDE = 64
QUALITY = 92


def encoded(image: np.ndarray) -> str:
    """uint8 [H, W] or [H, W, 3] as base64: PNG up to ``LOSSLESS_SIDE`` pixels, else JPEG without chroma subsampling."""
    from PIL import Image

    out = io.BytesIO()
    picture = Image.fromarray(np.ascontiguousarray(image))
    if max(image.shape[:2]) <= LOSSLESS_SIDE:
        picture.save(out, "PNG", optimize=True)
    else:
        picture.save(out, "JPEG", quality=QUALITY, subsampling=0)
    return base64.b64encode(out.getvalue()).decode()


def decoded(text: str) -> np.ndarray:
    """The array of ``encoded``: uint8 [H, W] or [H, W, 3]."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))
