"""JPEG and back: Pillow on the CPU; on a GPU the same arithmetic in whole numbers, equal to the bit.

A round trip needs no entropy coding, which is lossless: colour conversion, chroma halved both ways, libjpeg's
"islow" cosine transforms, quantisation, and libjpeg's "fancy" upsampling.
"""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor

_LUMA = """16 11 10 16 24 40 51 61 12 12 14 19 26 58 60 55 14 13 16 24 40 57 69 56 14 17 22 29 51 87 80 62
18 22 37 56 68 109 103 77 24 35 55 64 81 104 113 92 49 64 78 87 103 121 120 101 72 92 95 98 112 100 103 99"""
_CHROMA = """17 18 24 47 99 99 99 99 18 21 26 66 99 99 99 99 24 26 56 99 99 99 99 99 47 66 99 99 99 99 99 99
99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99"""

# Cosines in 2^-13 (ITU-T T.81's transform after Loeffler, Ligtenberg and Moschytz, as in libjpeg).
_C0_298, _C0_390, _C0_541, _C0_765, _C0_899, _C1_175 = 2446, 3196, 4433, 6270, 7373, 9633
_C1_501, _C1_847, _C1_961, _C2_053, _C2_562, _C3_072 = 12299, 15137, 16069, 16819, 20995, 25172


def jpeg_round_trip(images: Tensor, quality: int) -> Tensor:
    """Encode uint8 [N, H, W, 3] as JPEG of ``quality`` (chroma halved, Pillow's default) and decode again."""
    if images.device.type == "cpu":
        return torch.stack([_through_pillow(image, quality) for image in images.numpy()])
    return simulate(images, quality)


def _through_pillow(image: np.ndarray, quality: int) -> Tensor:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality)
    with Image.open(buffer) as decoded:
        return torch.from_numpy(np.array(decoded))


def simulate(images: Tensor, quality: int) -> Tensor:
    """``jpeg_round_trip`` in whole numbers, batched, on any device."""
    height, width = images.shape[1:3]
    red, green, blue = images.to(torch.int32).unbind(-1)
    luma = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
    offset = (128 << 16) + 32767
    chroma = torch.stack(
        [
            (-11059 * red - 21709 * green + 32768 * blue + offset) >> 16,
            (32768 * red - 27439 * green - 5329 * blue + offset) >> 16,
        ],
        dim=1,
    )
    luma = _code(luma.unsqueeze(1), _quantiser(_LUMA, quality))[:, 0]
    halved = _code(_halve(chroma), _quantiser(_CHROMA, quality))[..., : -(-height // 2), : -(-width // 2)]
    chroma = _upsample(halved)[..., :height, :width]
    return _to_rgb(luma, *chroma.unbind(1))


def _to_rgb(luma: Tensor, cb: Tensor, cr: Tensor) -> Tensor:
    cb, cr = cb - 128, cr - 128
    red = luma + ((91881 * cr + 32768) >> 16)
    green = luma + ((-22554 * cb - 46802 * cr + 32768) >> 16)
    blue = luma + ((116130 * cb + 32768) >> 16)
    return torch.stack([red, green, blue], dim=-1).clamp(0, 255).to(torch.uint8)


def _quantiser(base: str, quality: int) -> Tensor:
    """The quantisation table of ``quality``, int32 [8, 8]."""
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    table = (np.array(base.split(), dtype=np.int64).reshape(8, 8) * scale + 50) // 100
    return torch.from_numpy(table.clip(1, 255).astype(np.int32))


def _halve(planes: Tensor) -> Tensor:
    """Means of 2x2 pixels, int32 [N, C, ⌈H/2⌉, a multiple of 8]; the rounding alternates by column."""
    height, width = planes.shape[-2:]
    planes = _extend(planes, height + height % 2, width + (-width) % 16)
    sums = planes[..., ::2, ::2] + planes[..., ::2, 1::2] + planes[..., 1::2, ::2] + planes[..., 1::2, 1::2]
    bias = 1 + torch.arange(sums.shape[-1], device=planes.device, dtype=torch.int32) % 2
    return (sums + bias) >> 2


def _extend(planes: Tensor, height: int, width: int) -> Tensor:
    """Repeat the last row and column up to ``height`` and ``width``."""
    rows = torch.arange(height, device=planes.device).clamp(max=planes.shape[-2] - 1)
    columns = torch.arange(width, device=planes.device).clamp(max=planes.shape[-1] - 1)
    return planes.index_select(-2, rows).index_select(-1, columns)


def _upsample(planes: Tensor) -> Tensor:
    """Twice as large, each sample 3/4 of the nearest and 1/4 of the next, both ways (libjpeg's "fancy")."""
    rows = torch.stack([3 * planes + _beside(planes, -2, -1), 3 * planes + _beside(planes, -2, 1)], dim=3)
    rows = rows.flatten(2, 3)
    left = (3 * rows + _beside(rows, -1, -1) + 8) >> 4
    right = (3 * rows + _beside(rows, -1, 1) + 7) >> 4
    return torch.stack([left, right], dim=-1).flatten(-2)


def _beside(planes: Tensor, axis: int, step: int) -> Tensor:
    """Each sample's neighbour along ``axis``; the border's is itself."""
    size = planes.shape[axis]
    places = (torch.arange(size, device=planes.device) + step).clamp(0, size - 1)
    return planes.index_select(planes.dim() + axis, places)


def _code(planes: Tensor, quantiser: Tensor) -> Tensor:
    """Samples int32 [N, C, H, W] through transform, quantisation and back."""
    height, width = planes.shape[-2:]
    padded = _extend(planes, height + (-height) % 8, width + (-width) % 8)
    count, channels, rows, columns = padded.shape
    blocks = padded.view(count, channels, rows // 8, 8, columns // 8, 8).permute(3, 5, 0, 1, 2, 4) - 128
    table = quantiser.to(planes.device).view(8, 8, 1, 1, 1, 1)
    coefficients = _forward(_forward(blocks, axis=1, final=False), axis=0, final=True)
    steps = table * 8  # the transform's results are 8 times the coefficients
    levels = torch.div(coefficients.abs() + steps // 2, steps, rounding_mode="floor") * coefficients.sign() * table
    samples = _inverse(_inverse(levels, axis=0, final=False), axis=1, final=True) + 128
    restored = samples.clamp(0, 255).permute(2, 3, 4, 0, 5, 1).reshape(count, channels, rows, columns)
    return restored[..., :height, :width]


def _descale(values: Tensor, bits: int) -> Tensor:
    return (values + (1 << (bits - 1))) >> bits


def _odd_part(t0: Tensor, t1: Tensor, t2: Tensor, t3: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The rotations that both transforms share."""
    z1, z2, z3, z4 = t0 + t3, t1 + t2, t0 + t2, t1 + t3
    z5 = (z3 + z4) * _C1_175
    z1, z2 = -_C0_899 * z1, -_C2_562 * z2
    z3, z4 = z5 - _C1_961 * z3, z5 - _C0_390 * z4
    return (
        _C0_298 * t0 + z1 + z3,
        _C2_053 * t1 + z2 + z4,
        _C3_072 * t2 + z2 + z3,
        _C1_501 * t3 + z1 + z4,
    )


def _forward(blocks: Tensor, *, axis: int, final: bool) -> Tensor:
    """One pass of the forward transform along ``axis``; the first keeps two more bits, the second drops them."""
    d = blocks.unbind(axis)
    sums, differences = [d[k] + d[7 - k] for k in range(4)], [d[k] - d[7 - k] for k in range(4)]
    even, odd = (sums[0] + sums[3], sums[1] + sums[2]), (sums[1] - sums[2], sums[0] - sums[3])
    bits = 15 if final else 11
    z1 = (odd[0] + odd[1]) * _C0_541
    middle = _descale(z1 + odd[1] * _C0_765, bits), _descale(z1 - odd[0] * _C1_847, bits)
    outer = [even[0] + even[1], even[0] - even[1]]
    outer = [_descale(value, 2) if final else value << 2 for value in outer]
    out7, out5, out3, out1 = (_descale(v, bits) for v in _odd_part(*reversed(differences)))
    return torch.stack([outer[0], out1, middle[0], out3, outer[1], out5, middle[1], out7], dim=axis)


def _inverse(levels: Tensor, *, axis: int, final: bool) -> Tensor:
    """One pass of the inverse transform along ``axis``."""
    i = levels.unbind(axis)
    z1 = (i[2] + i[6]) * _C0_541
    low, high = z1 - i[6] * _C1_847, z1 + i[2] * _C0_765
    first, second = (i[0] + i[4]) << 13, (i[0] - i[4]) << 13
    even = [first + high, second + low, second - low, first - high]
    odd = list(reversed(_odd_part(i[7], i[5], i[3], i[1])))
    bits = 18 if final else 11
    rising = [_descale(e + o, bits) for e, o in zip(even, odd)]
    falling = [_descale(e - o, bits) for e, o in zip(even, odd)]
    return torch.stack([*rising, *reversed(falling)], dim=axis)
