"""The fast path (CUDA graphs, compiled network) gives the plain path's numbers. Needs a GPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from parity_cases import (
    CASES,
    batches,
    build_method,
    load_case,
    method_name,
    method_settings,
    network_for,
    recorded_permutation,
    rgb,
)

from deyo.fast import accelerate
from deyo.methods import create_method, settings_class
from deyo.transforms import draw
from deyo.types import MethodContext

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

FEW = (
    "deyo_bn",
    "deyo_gn",
    "deyo_ln",
    "deyo_pixel_bn",
    "deyo_patch5_ln",
    "tent_bn",
    "eata_gn",
    "sar_bn",
    "sar_full_ln",
)

# A ReLU's input of about 0 changes its sign in the one, rounding adds up over 64 steps of gradients of 40 in the other:
# on a CPU, without graphs, float32 departs from the recorded float64 by the same 7e-4 and 3e-4.
BEYOND_FLOAT32 = ("deyo_patch5_bn", "deyo_bs1_gn")
DISTURBED = 6


def run_on_gpu(name: str, precision: str, *, fast: bool, compile: bool = False) -> tuple[object, np.ndarray]:
    case = load_case(name)
    network, pixels, source = network_for(case.settings["network"])
    device = torch.device("cuda")
    context = MethodContext(
        network=network, seeds=(0,), batch_size=case.settings["batch_size"], precision=precision, device=device
    )
    method = create_method(method_name(case), context, [method_settings(case)])
    if case.settings.get("fisher_alpha"):
        method.measure_fisher([rgb(batch).to(device) for batch in source])
    drawn = "permutation" in case.tensors and case.settings.get("aug_type") != "occ"
    if drawn:
        static = recorded_permutation(case, 0).to(device)
        method.draw_indices = lambda *_: static
    if fast:
        accelerate(method, compile=compile)
    logits = []
    for step, batch in enumerate(batches(case, pixels)):
        if drawn:
            static.copy_(recorded_permutation(case, step))
        logits.append(method.step(batch.to(device))[0].cpu().numpy().copy())
    return method, np.stack(logits)


@pytest.mark.parametrize("name", CASES)
def test_float64_without_graphs(name: str) -> None:
    _, logits = run_on_gpu(name, "float64", fast=False)
    np.testing.assert_allclose(logits, load_case(name).tensors["logits"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_float32_with_graphs(name: str) -> None:
    _, logits = run_on_gpu(name, "float32", fast=True)
    recorded, allowed = load_case(name).tensors["logits"], 1e-4
    if name in BEYOND_FLOAT32:
        allowed = spread(name, "float32", np.max)
    np.testing.assert_allclose(logits, recorded, rtol=1e-4, atol=allowed)


def spread(name: str, precision: str, over: Callable[[np.ndarray], float]) -> float:
    """How far this precision on a CPU departs from the recorded logits, its weights disturbed by up to its epsilon.

    ``over`` says of all departures of one sequence of steps how far that is; the farthest of some sequences counts.
    """
    case, found = load_case(name), 0.0
    pixels = network_for(case.settings["network"])[1]
    for seed in range(DISTURBED):
        method = build_method(case, precision=precision)
        generator = torch.Generator().manual_seed(seed)
        for weight in method.network.module.parameters():
            bits = torch.randint(-1, 2, weight.shape, generator=generator)
            weight.data *= (1 + torch.finfo(weight.dtype).eps * bits).to(weight.dtype)
        steps = [method.step(batch)[0].numpy() for batch in batches(case, pixels)]
        found = max(found, float(over(np.abs(np.stack(steps) - case.tensors["logits"]))))
    return found


@pytest.mark.parametrize("name", FEW)
def test_float32_with_graphs_of_the_compiled_network(name: str) -> None:
    method, logits = run_on_gpu(name, "float32", fast=True, compile=True)
    np.testing.assert_allclose(logits, load_case(name).tensors["logits"], rtol=1e-4, atol=1e-4)
    assert len(method.runner.segments) >= 1


@pytest.mark.parametrize("name", ["deyo_bn", "deyo_ln", "sar_full_ln"])
def test_bf16_with_graphs_of_the_compiled_network_departs_no_farther_than_bf16(name: str) -> None:
    _, logits = run_on_gpu(name, "bf16", fast=True, compile=True)
    assert np.abs(logits - load_case(name).tensors["logits"]).mean() <= spread(name, "bf16", np.mean)


def test_permutations_on_cpu_and_gpu_are_equal() -> None:
    options = {"batch": 7, "size": 32, "patches": 4}
    for kind in ("patch", "pixel"):
        cpu = draw(kind, torch.tensor([1, 2]), 3, **options)
        assert torch.equal(cpu, draw(kind, torch.tensor([1, 2], device="cuda"), 3, **options).cpu())


@pytest.mark.parametrize("patches", [4, 5])
def test_the_compiled_draw_is_the_plain_one(patches: int) -> None:
    options = {"batch": 7, "size": 32, "patches": patches}
    seeds, step = torch.tensor([1, 2], device="cuda"), torch.tensor(3, device="cuda")
    compiled = torch.compile(draw, dynamic=False)
    for kind in ("patch", "pixel"):
        assert torch.equal(compiled(kind, seeds, step, **options), draw(kind, seeds, step, **options))


def test_stages_that_are_started_unasked_change_nothing() -> None:
    """Steps that select everything and nothing in turns: the graphs run ahead, the plain path waits."""
    case = load_case("deyo_bn")
    network, pixels, _ = network_for(case.settings["network"])
    context = MethodContext(
        network=network,
        seeds=(0,),
        batch_size=case.settings["batch_size"],
        precision="float64",
        device=torch.device("cuda"),
    )
    settings = [settings_class("deyo")(learning_rate=0.01, plpd_threshold=-1.0)]
    plain, ahead = create_method("deyo", context, settings), create_method("deyo", context, settings)
    accelerate(ahead, compile=False)
    for step, batch in enumerate(batches(case, pixels)):
        for method in (plain, ahead):
            method.entropy_margin.fill_(100.0 if step % 4 < 2 else 0.0)
            method.step(batch.cuda())
        assert torch.equal(plain.report.skipped, ahead.report.skipped)
        torch.testing.assert_close(plain.network.theta, ahead.network.theta, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("together", "compile"), [(1, False), (1, True), (3, False)])
def test_memo_episodes_as_graphs_are_the_plain_ones(together: int, compile: bool) -> None:
    case = load_case("deyo_bn")
    network, pixels, _ = network_for(case.settings["network"])
    context = MethodContext(
        network=network,
        seeds=(0,),
        batch_size=6,
        precision="float32",
        device=torch.device("cuda"),
        options={"memo_images_at_once": together},
    )
    settings = [settings_class("memo")(views=8, learning_rate=0.01)]
    plain, graphs = create_method("memo", context, settings), create_method("memo", context, settings)
    accelerate(graphs, compile=compile)
    for few in (pixels[0, :6], pixels[1, :6]):
        batch = rgb(few).cuda()
        torch.testing.assert_close(graphs.step(batch), plain.step(batch), rtol=1e-4, atol=1e-4)
