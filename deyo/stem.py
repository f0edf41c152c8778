"""How ResNets begin (convolution, norm layer, ReLU, max pool), in forms that cost a GPU less.

The 7×7 convolution of stride 2 over three channels: three are too few for a GPU's matrix units. Two by two pixels put
into channels make it a 4×4 convolution of stride 1 over 12 channels, with the same products in the sums ("space to
depth").

The norm layer's results and their gradients are the largest maps of the network. Normalising by channel and ReLU keep
the order of values (or turn it round, by the scale's sign), so that the pool may come first: the same bits from maps of
a quarter of the size. Nothing before the norm layer is adapted, so that no gradient has to pass the pool.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deyo.batch_norm import by_sample, over_map
from deyo.norms import RunBatchNorm, RunGroupNorm, widened

_RESNETS = ("torchvision.models.resnet", "timm.models.resnet")

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


class NormReluPool(nn.Module):
    """The max pool after ``norm`` (which is ``delayed``) and a ReLU: it does the work of all three.

    x [R·B, C, H, W] -> [R·B, C, H', W'].
    """

    def __init__(self, norm: RunBatchNorm | RunGroupNorm, pool: nn.MaxPool2d) -> None:
        super().__init__()
        self.pool = pool
        self._norm = (norm,)  # its place, and so its name, in the network is where it was

    def forward(self, x: Tensor) -> Tensor:
        (norm,) = self._norm
        scale, shift = (over_map(by_sample(values, len(x)), x) for values in norm.coefficients(x))
        best = widened(torch.where(scale >= 0, self.pool(x), -self.pool(-x)))
        return (best * scale + shift).to(x.dtype).relu()


def space_to_depth(x: Tensor) -> Tensor:
    """x [N, 3, H, W] -> [N, 16, H/2, W/2]: the pixels of a tile as channels, then zeros."""
    count, channels, height, width = x.shape
    tiles = x.view(count, channels, height // TILE, TILE, width // TILE, TILE).permute(0, 3, 5, 1, 2, 4)
    packed = tiles.reshape(count, TILE * TILE * channels, height // TILE, width // TILE)
    return F.pad(packed, (0, 0, 0, 0, 0, CHANNELS - packed.shape[1]))


def pack_stem(module: nn.Module, *, frozen: bool = True) -> None:
    """Make the convolutions of ``module`` that are such a stem ``StemConv2d``s, in place.

    Its norm layers have a run axis already. Where the convolutions are ``frozen``, pool before the ReLU too: else the
    gradient of the pool's input needs more memory than that saves.
    """
    for child in module.modules():
        if type(child) is nn.Conv2d and _is_stem(child):
            child.__class__ = StemConv2d
    if frozen:
        pool_first(module)


def pool_first(module: nn.Module) -> None:
    """Where ``module`` is a torchvision or timm ResNet that begins with a norm layer, a ReLU and a max pool."""
    norm, pool = getattr(module, "bn1", None), getattr(module, "maxpool", None)
    name = next((n for n in ("relu", "act1") if type(getattr(module, n, None)) is nn.ReLU), None)
    known = type(module).__name__ == "ResNet" and type(module).__module__ in _RESNETS
    begins_so = known and type(module.conv1) in (nn.Conv2d, StemConv2d) and type(norm) in (RunBatchNorm, RunGroupNorm)
    if not begins_so or name is None or type(pool) is not nn.MaxPool2d or pool.return_indices:
        return
    if not all(isinstance(extra, nn.Identity) for extra in (norm.drop, norm.act)):
        return
    norm.delayed = True
    setattr(module, name, nn.Identity())
    module.maxpool = NormReluPool(norm, pool)


def _is_stem(conv: nn.Conv2d) -> bool:
    shape = (conv.kernel_size, conv.stride, conv.padding, conv.dilation)
    plain = conv.groups == 1 and conv.padding_mode == "zeros"
    return plain and conv.in_channels == 3 and shape == ((7, 7), (2, 2), (3, 3), (1, 1))
