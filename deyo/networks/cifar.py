"""ResNets for 32×32 images under the layer names of two published sets of CIFAR-10 weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Norm = Callable[[int], nn.Module]


def pad_shortcut(x: Tensor, channels: int, stride: int) -> Tensor:
    """Option A of He et al. (2016): every ``stride``-th pixel, new channels zero, half on each side."""
    if stride == 1 and x.shape[1] == channels:
        return x
    extra = channels - x.shape[1]
    return F.pad(x[:, :, ::stride, ::stride], (0, 0, 0, 0, extra // 2, extra - extra // 2))


class PostActivationBlock(nn.Module):
    """conv-norm-relu-conv-norm, plus the shortcut, relu."""

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        self.channels, self.stride = channels, stride
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + pad_shortcut(x, self.channels, self.stride))


class CifarResNet(nn.Module):
    """ResNet-(6n+2) of He et al. (2016), Sec. 4.2, with option-A shortcuts and BatchNorm."""

    def __init__(self, depth: int, num_classes: int = 10) -> None:
        super().__init__()
        blocks = (depth - 2) // 6
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(PostActivationBlock, 16, 16, blocks, 1)
        self.layer2 = _stage(PostActivationBlock, 16, 32, blocks, 2)
        self.layer3 = _stage(PostActivationBlock, 32, 64, blocks, 2)
        self.linear = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean(dim=(2, 3)))


class PreActivationBlock(nn.Module):
    """norm-relu-conv-norm-relu-conv, plus the shortcut (average pooling and zero channels)."""

    def __init__(self, inputs: int, channels: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.channels, self.stride = channels, stride
        self.bn1 = norm(inputs)
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.bn2 = norm(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(F.relu(self.bn1(x)))
        out = self.conv2(F.relu(self.bn2(out)))
        if self.stride != 1 or x.shape[1] != self.channels:
            x = F.avg_pool2d(x, self.stride)
            x = torch.cat([x, torch.zeros_like(x[:, : self.channels - x.shape[1]])], dim=1)
        return out + x


class PreActivationResNet(nn.Module):
    """The pre-activation ResNet-(6n+2) with GroupNorm that MEMO and test-time training use on CIFAR-10."""

    def __init__(self, depth: int = 26, num_classes: int = 10, groups: int = 8) -> None:
        super().__init__()
        norm = partial(nn.GroupNorm, groups)
        blocks = (depth - 2) // 6
        block = partial(PreActivationBlock, norm=norm)
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.layer1 = _stage(block, 16, 16, blocks, 1)
        self.layer2 = _stage(block, 16, 32, blocks, 2)
        self.layer3 = _stage(block, 32, 64, blocks, 2)
        self.bn = norm(64)
        self.fc = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.conv1(x))))
        return self.fc(F.relu(self.bn(x)).mean(dim=(2, 3)))


def _stage(block: Callable[..., nn.Module], inputs: int, channels: int, count: int, stride: int) -> nn.Module:
    first = block(inputs, channels, stride)
    return nn.Sequential(first, *(block(channels, channels, 1) for _ in range(count - 1)))
