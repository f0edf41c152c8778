"""The packed stem is nn.Conv2d, up to the order of sums."""

from __future__ import annotations

import copy

import pytest
import torch
import torchvision
from timm.models.resnet import BasicBlock
from timm.models.resnet import ResNet as TimmResNet
from torch import nn

from deyo.model import RunsNetwork
from deyo.norms import NormState, RunBatchNorm
from deyo.stem import NormReluPool, StemConv2d, pack_stem
from deyo.types import MethodContext, Network, NetworkInfo


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("height", "width"), [(16, 16), (32, 20), (15, 16), (17, 17)])
def test_outputs_and_gradients_are_those_of_the_plain_convolution(
    height: int, width: int, layout: torch.memory_format
) -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False).double()
    packed = copy.deepcopy(plain)
    pack_stem(nn.Sequential(packed))
    assert type(packed) is StemConv2d
    x = torch.randn(2, 3, height, width, dtype=torch.float64).to(memory_format=layout)
    outcomes = []
    for conv in (plain, packed):
        given = x.clone().requires_grad_(True)
        out = conv(given)
        (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
        assert out.is_contiguous(memory_format=layout)
        outcomes.append((out, given.grad, conv.weight.grad))
    for expected, found in zip(*outcomes):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.Conv2d(3, 8, 7, stride=1, padding=3),
        nn.Conv2d(4, 8, 7, stride=2, padding=3),
        nn.Conv2d(3, 9, 7, stride=2, padding=3, groups=3),
        nn.Conv2d(3, 8, 7, stride=2, padding=3, padding_mode="reflect"),
    ],
)
def test_others_stay_what_they_are(conv: nn.Conv2d) -> None:
    pack_stem(nn.Sequential(conv))
    assert type(conv) is nn.Conv2d


def resnet(kind: str) -> nn.Module:
    """A small ResNet of torchvision's or timm's; some of the stem's channels have negative scales."""
    torch.manual_seed(0)
    if kind == "timm-gn":
        module = TimmResNet(BasicBlock, [1, 1, 1, 1], channels=[8, 8, 8, 8], num_classes=5, norm_layer=group_norm)
    else:
        module = torchvision.models.resnet18(num_classes=5)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d | nn.GroupNorm):
            nn.init.normal_(layer.weight, 0.3, 1)
            nn.init.normal_(layer.bias)
    return module.eval()


def group_norm(channels: int, **options: object) -> nn.Module:
    return nn.GroupNorm(4, channels)


def networks(kind: str, precision: str) -> tuple[RunsNetwork, RunsNetwork]:
    """The same network over two runs without and with the stem's forms."""
    info = NetworkInfo(name=kind, family="resnet", norm=kind[-2:], num_classes=5, image_size=64)
    source = Network(info=info, module=resnet(kind), mean=(0.5,) * 3, std=(0.2,) * 3, num_classes=5, sha256="random")
    context = MethodContext(network=source, seeds=[0, 1], batch_size=4, device=torch.device("cpu"), precision=precision)
    found = []
    for packed in (False, True):
        network = RunsNetwork(context, "lower")
        noise = torch.randn(network.theta.shape, generator=torch.Generator().manual_seed(1), dtype=network.dtype)
        network.theta.add_(0.1 * noise)
        if packed:
            pack_stem(network.module)
            assert isinstance(network.module.maxpool, NormReluPool)
        found.append(network)
    assert found[0].adapted_names == found[1].adapted_names
    return found[0], found[1]


@pytest.mark.parametrize("statistics", ["batch", "running", "record", "masked"])
@pytest.mark.parametrize("kind", ["torchvision-bn", "timm-gn"])
def test_pooling_first_changes_nothing(kind: str, statistics: str) -> None:
    x = torch.randn(2, 4, 3, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    mask = torch.tensor([[True, True, False, True], [True, False, True, True]]) if statistics == "masked" else None
    outcomes = []
    for network in networks(kind, "float64"):
        logits = network(x, mask=mask, statistics="batch" if statistics == "masked" else statistics)
        loss = logits.logsumexp(-1).sum()
        gradient = torch.cat(torch.autograd.grad(loss, network.parameters_adapted), dim=1)
        outcomes.append((logits, gradient))
        if statistics == "record":
            outcomes[-1] += (network(x.flip(1), statistics="replay"),)
    for expected, found in zip(*outcomes):
        assert expected.abs().max() > 0
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_the_pooled_map_is_the_same_to_the_bit() -> None:
    """In half precision too: rounding keeps the order of values."""
    for precision in ("float32", "bf16"):
        plain, packed = networks("torchvision-bn", precision)
        x = torch.randn(8, 3, 32, 32).to(plain.activations)
        maps = []
        for network in (plain, packed):
            network.state.statistics = "batch"
            m = network.module
            relu = m.relu
            maps.append(m.maxpool(relu(m.bn1(nn.functional.conv2d(x, m.conv1.weight, None, 2, 3)))))
        assert torch.equal(*maps)


class ResNet(torchvision.models.ResNet):
    """Somebody's own, of whose forward nothing is known."""


@pytest.mark.parametrize("case", ["no pool", "another's", "deep stem", "adapted convolutions"])
def test_other_stems_stay_what_they_are(case: str) -> None:
    module, frozen = resnet("torchvision-bn"), case != "adapted convolutions"
    if case == "no pool":
        module.maxpool = nn.Identity()
    elif case == "another's":
        module.__class__ = ResNet
    elif case == "deep stem":
        module.conv1 = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64))
    module.bn1 = RunBatchNorm(module.bn1, "bn1", NormState())
    pool = module.maxpool
    pack_stem(module, frozen=frozen)
    assert module.maxpool is pool
    assert type(module.relu) is nn.ReLU
    assert not module.bn1.delayed
