"""What autograd makes of a network with a run axis: no copies of maps, channels-last gradients at convolutions.

Before BatchNorm gave its results to autograd as no views, this backward had 63 copies, and four gradients were in the
default layout: networks add the shortcut in place. GroupNorm's own kernel turned every map to the default layout.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from timm.models.resnet import Bottleneck, ResNet
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule, Node

from deyo.batch_norm import batch_norm_over_runs
from deyo.model import RunsNetwork
from deyo.norms import NormState, RunBatchNorm, RunGroupNorm
from deyo.relus import InputReLU, look_at_inputs
from deyo.stem import pack_stem
from deyo.types import MethodContext, Network, NetworkInfo

SIDE, BATCH = 64, 3


def group_norm(channels: int, **_: Any) -> nn.Module:
    return nn.GroupNorm(4, channels)


def small_network(norm: str) -> Network:
    layer = {"bn": nn.BatchNorm2d, "gn": group_norm}[norm]
    module = ResNet(Bottleneck, [2, 1, 1, 1], channels=[16, 32, 48, 64], num_classes=10, norm_layer=layer)
    info = NetworkInfo(name="small", family="resnet", norm=norm, num_classes=10, image_size=SIDE)
    return Network(info=info, module=module, mean=(0.5,) * 3, std=(0.5,) * 3, num_classes=10, sha256="0")


def context_of(norm: str, runs: int = 2, precision: str = "float32") -> MethodContext:
    network, seeds = small_network(norm), list(range(runs))
    return MethodContext(
        network=network, seeds=seeds, batch_size=BATCH, device=torch.device("cpu"), precision=precision
    )


@cache
def backward_graph(norm: str, runs: int, precision: str, subset: str) -> GraphModule:
    """The graph that a compiler is given for the backward of one forward, of the network as it is on a GPU."""
    network = RunsNetwork(context_of(norm, runs, precision), subset)
    network.module.to(memory_format=torch.channels_last)
    pack_stem(network.module)
    look_at_inputs(network.module)
    alike(network)
    torch.compiler.reset()  # or the second of two equal networks is not compiled
    torch.compiler.allow_in_graph(batch_norm_over_runs)
    graphs: list[GraphModule] = []

    def keep(graph: GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    backend = aot_autograd(
        fw_compiler=lambda graph, _: make_boxed_func(graph.forward),
        bw_compiler=keep,
        partition_fn=partial(min_cut_rematerialization_partition, compiler="inductor"),
    )
    network.forward_module = torch.compile(network.module, backend=backend, dynamic=False)
    pixels = torch.zeros(runs, BATCH, SIDE, SIDE, 3, dtype=torch.uint8).permute(0, 1, 4, 2, 3)
    x = network.normalize(pixels).flatten(0, 1).contiguous(memory_format=torch.channels_last)
    network(x.view(runs, BATCH, 3, SIDE, SIDE)).sum().backward()
    return graphs[0]


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("runs", [1, 2])
@pytest.mark.parametrize("norm", ["bn", "gn"])
def test_backward_copies_nothing_and_keeps_the_layout(norm: str, runs: int, precision: str) -> None:
    graph, copies, convolutions = backward_graph(norm, runs, precision, "lower").graph, [], 0
    for node in graph.nodes:
        if node.target in (torch.ops.aten.clone.default, torch.ops.aten.copy.default):
            copies += [node.format_node()] if node.meta["val"].dim() >= 4 else []
        if node.target is torch.ops.aten.convolution_backward.default:
            convolutions += 1
            assert is_channels_last(node.args[0].meta["val"]), node.format_node()
    assert convolutions > 15
    assert not copies


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_maps_are_not_viewed_by_run(precision: str) -> None:
    """On a view [R, B, C, H, W] of a map Inductor lays it out anew. Half precision is not widened for the norms."""
    maps = [node for node in backward_graph("bn", 2, precision, "lower").graph.nodes if is_map(node)]
    assert len(maps) > 50
    assert all(node.meta["val"].dim() == 4 for node in maps)
    widened = [node for node in maps if node.target is torch.ops.prims.convert_element_type.default]
    assert not [node for node in widened if node.args[1] == torch.float32]


def is_map(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.dim() >= 4 and value.shape[-1] > 1


def test_forwards_with_and_without_a_mask_share_one_graph() -> None:
    network = RunsNetwork(context_of("bn"), "lower")
    alike(network)
    x = torch.rand(2, BATCH, 3, SIDE, SIDE)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    plain = [network(x), network(x, mask=mask)]
    graphs: list[GraphModule] = []

    def keep(graph: GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    network.forward_module = torch.compile(network.module, backend=keep, dynamic=False)
    compiled = [network(x), network(x, mask=mask)]
    assert len(graphs) == 1
    torch.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(compiled[0][0], compiled[1][0], atol=1e-3)


def test_backward_does_not_read_what_a_relu_gave() -> None:
    """Its results go to convolutions, whose backward is given them and, weights being frozen, does not look."""
    unread = 0
    for node in backward_graph("bn", 2, "bf16", "lower").graph.nodes:
        if node.op == "placeholder" and node.meta["val"].dim() == 4:
            unread += all(is_conv_input(node, user) for user in node.users)
    blocks = 5
    assert unread >= 2 * blocks


def is_conv_input(node: Node, user: Node) -> bool:
    backward = user.target is torch.ops.aten.convolution_backward.default
    return backward and user.args[1] is node and user.args[0] is not node and list(user.args[-1])[1:] == [False, False]


@pytest.mark.parametrize("value", [-1.0, 0.0, 1.0, float("nan"), float("inf")])
def test_an_input_relu_is_a_relu(value: float) -> None:
    own = nn.Sequential(nn.ReLU())
    look_at_inputs(own)
    assert type(own[0]) is InputReLU
    compiled = torch.compile(own, backend="eager")
    found = []
    for function in (compiled, own, nn.ReLU()):
        x = torch.tensor([value, 2.0], requires_grad=True)
        y = function(x)
        found.append((y.detach(), *torch.autograd.grad((y * 3).sum(), x)))
    for one in found[:2]:
        for mine, expected in zip(one, found[2]):
            torch.testing.assert_close(mine, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("norm", ["bn", "gn"])
def test_both_subsets_share_one_graph(norm: str) -> None:
    lower, whole = (backward_graph(norm, 2, "float32", subset).code for subset in ("lower", "all"))
    assert lower == whole


def alike(network: RunsNetwork) -> None:
    """As on a GPU: what is bound already is bound once more."""
    for layer in network.layers.values():
        if layer.weight.dim() == 2:
            layer.bind(nn.Parameter(layer.weight[0].detach()), nn.Parameter(layer.bias[0].detach()))
    network.bind_parameters(alike=True)


@pytest.mark.parametrize("subset", ["lower", "all"])
def test_layers_of_all_subsets_look_alike(subset: str) -> None:
    """Dynamo compiles anew where strides differ: nobody's may hang on how many layers are adapted."""
    network = RunsNetwork(context_of("bn"), subset)
    alike(network)
    every = sum(2 * layer.weight.shape[1] for layer in network.layers.values())
    for layer in network.layers.values():
        for value in (layer.weight, layer.bias):
            assert value.stride() == (every, 1)
            assert value.requires_grad
    network.theta.fill_(7.0)
    for name, layer in network.layers.items():
        assert bool((layer.weight == 7).all()) == (name in network.adapted_names)
    assert network.theta.shape == (2, network.source_theta.shape[1])


def is_channels_last(value: Tensor) -> bool:
    return value.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("side", [1, 5])
def test_group_norm_by_channel_is_group_norm(side: int, runs: int, adapted: bool) -> None:
    torch.manual_seed(0)
    layer = RunGroupNorm(nn.GroupNorm(4, 12).double(), "gn", NormState(runs=runs))
    shape = (runs, 12) if adapted else (12,)
    values = [nn.Parameter(torch.randn(shape, dtype=torch.float64)) for _ in range(2)]
    layer.bind(*values)
    x = (100 + torch.randn(runs * 2, 12, side, side, dtype=torch.float64)).requires_grad_(True)
    weights = torch.randn_like(x)
    plain, own = (
        torch.autograd.grad((f(x) * weights).sum(), (x, *values), retain_graph=True)
        for f in (layer.normalize, layer.by_channel)
    )
    torch.testing.assert_close(layer.by_channel(x), layer.normalize(x), rtol=0, atol=1e-9)
    for expected, found in zip(plain, own):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_batch_norm_run_by_run_is_batch_norm_over_runs(dtype: torch.dtype, adapted: bool) -> None:
    torch.manual_seed(0)
    layer = RunBatchNorm(nn.BatchNorm2d(6).to(torch.promote_types(dtype, torch.float32)), "bn", NormState(runs=3))
    values = [nn.Parameter(torch.randn((3, 6) if adapted else (6,), dtype=layer.weight.dtype)) for _ in range(2)]
    layer.bind(*values)
    x = (2 + torch.randn(12, 6, 5, 5, dtype=dtype)).contiguous(memory_format=torch.channels_last).requires_grad_(True)
    assert layer.run_by_run(x).is_contiguous(memory_format=torch.channels_last)
    weights, tolerance = torch.randn_like(x), 1e-9 if dtype is torch.float64 else 2e-2
    found = []
    for function in (layer.normalize, layer.run_by_run):
        y = function(x)
        found.append((y, *torch.autograd.grad((y * weights).sum(), (x, *values))))
    for expected, own in zip(*found):
        torch.testing.assert_close(own, expected, rtol=tolerance, atol=tolerance)
