"""The 7×7 convolution of stride 2 over three channels, with which ResNets begin, in a form that tensor cores take.

Three channels are too few for a GPU's matrix units. Two by two pixels put into channels make it a 4×4 convolution of
stride 1 over 12 channels, with the same products in the sums ("space to depth").
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TILE = 2
CHANNELS = 16
"""12 channels and 4 of zeros: kernels for bfloat16 want a multiple of 8."""


class StemConv2d(nn.Conv2d):
    """An nn.Conv2d(3, C, 7, stride=2, padding=3) with its parameters; images with odd sides run as in nn.Conv2d."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] % TILE or x.shape[-2] % TILE:
            return super().forward(x)
        # Row i of the result sees rows 2i - 3 to 2i + 3: of tiles, and with a row of zeros first, 2i - 4 to 2i + 3.
        packed = space_to_depth(F.pad(x, (4, 2, 4, 2)))
        if x.is_contiguous(memory_format=torch.channels_last):
            packed = packed.contiguous(memory_format=torch.channels_last)
        return F.conv2d(packed, space_to_depth(F.pad(self.weight, (1, 0, 1, 0))), self.bias)


def space_to_depth(x: Tensor) -> Tensor:
    """x [N, 3, H, W] -> [N, 16, H/2, W/2]: the pixels of a tile as channels, then zeros."""
    count, channels, height, width = x.shape
    tiles = x.view(count, channels, height // TILE, TILE, width // TILE, TILE).permute(0, 3, 5, 1, 2, 4)
    packed = tiles.reshape(count, TILE * TILE * channels, height // TILE, width // TILE)
    return F.pad(packed, (0, 0, 0, 0, 0, CHANNELS - packed.shape[1]))


def pack_stem(module: nn.Module) -> None:
    """Make the convolutions of ``module`` that are such a stem ``StemConv2d``s, in place."""
    for child in module.modules():
        if type(child) is nn.Conv2d and _is_stem(child):
            child.__class__ = StemConv2d


def _is_stem(conv: nn.Conv2d) -> bool:
    shape = (conv.kernel_size, conv.stride, conv.padding, conv.dilation)
    plain = conv.groups == 1 and conv.padding_mode == "zeros"
    return plain and conv.in_channels == 3 and shape == ((7, 7), (2, 2), (3, 3), (1, 1))
