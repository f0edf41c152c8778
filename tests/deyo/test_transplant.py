"""A captured method that goes on as another group's must be that group's method, to the last bit; what is captured."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from parity_cases import network_for, rgb

from deyo import fast
from deyo import kept as keeping
from deyo.fast import GraphRunner
from deyo.kept import MethodPool, _shaping, renew, transplant
from deyo.methods import create_method, settings_class
from deyo.types import ImageSet, MethodContext, Network


def build(name: str, network: Network, seeds: list[int], **settings: Any) -> Any:
    context = MethodContext(network=network, seeds=seeds, batch_size=16, precision="float64")
    rate = {} if name == "bn-adapt" else {"learning_rate": 0.02}
    method = create_method(name, context, [settings_class(name)(**{**rate, **settings})] * len(seeds))
    if name == "eata":
        method.measure_fisher([rgb(batch).expand(len(seeds), -1, -1, -1, -1) for batch in network_for(network.name)[2]])
    return method


@pytest.mark.parametrize("network", ["network_bn", "network_gn", "network_ln"])
@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("bn-adapt", {}),
        ("tent", {"learning_rate": 0.001, "momentum": 0.5}),
        ("eata", {"entropy_margin": 0.8, "fisher_strength": 10.0}),
        ("sar", {"entropy_margin": 0.9, "reset_constant": 0.9}),
        ("sentry", {"entropy_weight": 0.5}),
        ("deyo", {"entropy_margin": 0.9, "plpd_threshold": 0.05, "filter_entropy": True}),
    ],
)
def test_a_transplanted_method_equals_a_fresh_one(name: str, other: dict[str, Any], network: str) -> None:
    source = network_for(network)[0]
    pixels = rgb(network_for(network)[1].reshape(-1, 32, 32)[:16]).expand(2, -1, -1, -1, -1)
    kept = build(name, source, [0, 1])
    for _ in range(3):
        kept.step(pixels)
    transplant(build(name, source, [5, 6], **other), kept)
    expected = build(name, source, [5, 6], **other)
    for _ in range(3):
        assert torch.equal(kept.step(pixels), expected.step(pixels))
        assert torch.equal(kept.report.passed_both, expected.report.passed_both)
    for key, value in expected.state_dict().items():
        assert torch.equal(torch.nan_to_num(kept.state_dict()[key]), torch.nan_to_num(value)), key


@pytest.mark.parametrize("name", ["bn-adapt", "tent", "eata", "sar", "deyo", "no-adapt"])
def test_a_renewed_method_equals_a_new_one_and_keeps_its_network(name: str) -> None:
    """EATA measures its Fisher matrix on the network that is used again: at its source values, not compiled."""
    source = network_for("network_bn")[0]
    pixels = rgb(network_for("network_bn")[1].reshape(-1, 32, 32)[:16]).expand(2, -1, -1, -1, -1)
    clean = clean_images("network_bn")

    def context(seeds: list[int]) -> MethodContext:
        return MethodContext(network=source, seeds=seeds, batch_size=16, precision="float64", source=clean)

    settings = [settings_class(name)(**({} if name in ("bn-adapt", "no-adapt") else {"learning_rate": 0.02}))] * 2
    kept = create_method(name, context([0, 1]), settings)
    kept.runner = GraphRunner(compile=True)
    network, calls = kept.network, []

    class Compiled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(len(x))
            return network.module(x)

    compiled = Compiled()
    kept.runner.compiled = [(network, "forward_module", network.module, compiled)]
    network.forward_module = compiled
    for _ in range(3):
        fast.run_stages(kept, pixels)
    before = len(calls)
    assert before >= 3
    renew(kept, context([5, 6]), settings)
    assert len(calls) == before
    assert kept.network is network
    assert network.forward_module is compiled
    assert kept.context.seeds == [5, 6]
    expected = create_method(name, context([5, 6]), settings)
    for key, value in expected.state_dict().items():
        assert torch.equal(torch.nan_to_num(kept.state_dict()[key]), torch.nan_to_num(value)), key
    for _ in range(3):
        fast.run_stages(kept, pixels)
        kept.steps += 1
        assert torch.equal(kept.logits, expected.step(pixels))


def clean_images(name: str) -> ImageSet:
    images = rgb(network_for(name)[2].reshape(-1, 32, 32))[0].permute(0, 2, 3, 1).numpy()
    return ImageSet(name="clean", pixels=images, labels=np.zeros(len(images), dtype=np.int64), fingerprint="clean")


def test_settings_that_leave_a_term_out_are_captured_apart() -> None:
    """EATA with a Fisher anchor cannot go on in graphs captured without one."""
    eata = settings_class("eata")
    strengths = {value: _shaping([eata(learning_rate=0.02, fisher_strength=value)]) for value in (0.0, 1.0, 2000.0)}
    assert strengths[1.0] == strengths[2000.0] != strengths[0.0]
    deyo = settings_class("deyo")
    assert _shaping([deyo(learning_rate=0.02)]) == _shaping([deyo(learning_rate=0.01)])
    assert _shaping([deyo(learning_rate=0.02)]) != _shaping([deyo(learning_rate=0.02, patches=2)])


def test_a_short_batch_is_run_plainly_and_never_captured() -> None:
    """A group that resumes at its short last batch must not leave graphs of that size behind."""
    network = network_for("network_bn")[0]
    pixels = rgb(network_for("network_bn")[1].reshape(-1, 32, 32)[:5])
    method, plain = build("tent", network, [0]), build("tent", network, [0])
    method.runner = GraphRunner(compile=False)
    assert torch.equal(method.step(pixels), plain.step(pixels))
    assert torch.equal(method.network.theta, plain.network.theta)
    assert method.runner.pixels is None


@pytest.mark.parametrize("name", ["tent", "eata", "sar", "deyo"])
def test_a_method_goes_with_its_last_holder(name: str) -> None:
    """Without waiting for Python's collector of cycles: a copy of the network goes with it."""
    method = build(name, network_for("network_bn")[0], [0])
    method.step(rgb(network_for("network_bn")[1].reshape(-1, 32, 32)[:16]))
    held = weakref.ref(method)
    gc.disable()
    try:
        del method
        assert held() is None
    finally:
        gc.enable()


def test_a_capture_that_fails_leaves_the_state_and_the_next_step_captures_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method = build("tent", network_for("network_gn")[0], [0])
    before = {name: value.clone() for name, value in method.state_dict().items()}
    pixels = rgb(network_for("network_gn")[1].reshape(-1, 32, 32)[:16])

    def full(run: Any) -> None:
        run()
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(fast, "warm_up", full)
    runner = GraphRunner(compile=False)
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            runner._capture(method, pixels)
        assert runner.pixels is None
        assert not runner.segments
    assert all(torch.equal(before[name], value) for name, value in method.state_dict().items())


def test_whether_a_method_is_compiled_hangs_on_its_own_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "can_accelerate", lambda method: True)
    monkeypatch.setattr(keeping, "can_accelerate", lambda method: True)
    network, pool = network_for("network_gn")[0], MethodPool()
    context = MethodContext(network=network, seeds=[0], batch_size=16, precision="float64")
    settings = [settings_class("tent")(learning_rate=0.02)]

    def get(compile: bool) -> Any:
        return pool.get("tent", context, settings, key="n", compile=compile)

    plain, compiled = get(False), get(True)
    assert not plain.runner.compile
    assert compiled.runner.compile
    assert get(False) is plain
    assert get(True) is compiled


def test_methods_of_two_shapes_are_kept_and_those_of_one_share_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fast, keeping):
        monkeypatch.setattr(module, "can_accelerate", lambda method: True)
    network, pool = network_for("network_gn")[0], MethodPool()

    def get(name: str, batch: int = 16, **more: Any) -> Any:
        context = MethodContext(network=network, seeds=[0], batch_size=batch, precision="float64")
        settings = settings_class(name)(**({"learning_rate": 0.02} | more))
        return pool.get(name, context, [settings], key="n", compile=False)

    tent, deyo, other = get("tent"), get("deyo"), get("tent", 8)
    assert tent.runner.memory is deyo.runner.memory is not other.runner.memory
    assert get("tent") is tent
    assert get("deyo") is deyo
    assert len(pool) == 3
    get("tent", 4)
    assert len(pool) == 3  # of three shapes, the one that was used longest ago went
    assert get("deyo") is deyo
    for patches in range(2, 2 + keeping.METHODS_OF_A_SHAPE):
        get("deyo", patches=patches)
    assert len(pool) == 1 + keeping.METHODS_OF_A_SHAPE
    assert get("tent") is not tent


def test_memory_of_graphs_is_renewed_after_a_capture_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    method = build("tent", network_for("network_gn")[0], [0])
    pixels = rgb(network_for("network_gn")[1].reshape(-1, 32, 32)[:16])

    def fail() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(fast, "warm_up", lambda run: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", fail)
    handles = iter(range(10))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    runner = GraphRunner(compile=False)
    before = runner.memory.handle
    with pytest.raises(torch.OutOfMemoryError):
        runner._capture(method, pixels)
    assert runner.memory.handle != before


def test_one_memo_is_kept_and_memory_without_graphs_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fast, keeping):
        monkeypatch.setattr(module, "can_accelerate", lambda method: True)
    handles = iter(range(10))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    network, pool = network_for("network_gn")[0], MethodPool()
    context = MethodContext(network=network, seeds=[0], batch_size=16, precision="float64")
    tent = pool.get("tent", context, [settings_class("tent")(learning_rate=0.02)], key="n", compile=False)
    memory = tent.runner.memory.handle
    first, second = (
        pool.get("memo", context, [settings_class("memo")(learning_rate=0.02, views=views)], key="n", compile=False)
        for views in (2, 4)
    )
    assert first is not second
    assert len(pool) == 2
    assert tent.runner.memory.handle != memory  # no graph was there to keep the old one
