"""R runs together give the numbers of R runs alone, whatever is mixed; a run without samples stays put."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from parity_cases import network_for, rgb

from deyo.methods import create_method, settings_class
from deyo.types import MethodContext

NETWORKS = ("network_bn", "network_gn", "network_ln")
STEPS = 4


def streams(network: str, runs: int, batch: int) -> list[torch.Tensor]:
    """STEPS batches uint8 [R, B, 3, 32, 32], another order for each run."""
    _, pixels, _ = network_for(network)
    flat = pixels.reshape(-1, 32, 32)
    orders = [np.random.default_rng(r).permutation(len(flat))[: STEPS * batch] for r in range(runs)]
    return [torch.cat([rgb(flat[o[k * batch : (k + 1) * batch]]) for o in orders]) for k in range(STEPS)]


def run(method_name: str, network: str, settings: list[Any], seeds: list[int], feed: list[torch.Tensor]) -> Any:
    context = MethodContext(
        network=network_for(network)[0], seeds=seeds, batch_size=feed[0].shape[1] if feed else 16, precision="float64"
    )
    method = create_method(method_name, context, settings)
    if method_name == "eata":
        source = network_for(network)[2]
        method.measure_fisher([rgb(batch).expand(len(seeds), -1, -1, -1, -1) for batch in source])
    logits = [method.step(pixels) for pixels in feed]
    return method, torch.stack(logits) if logits else None


def assert_same_together_and_alone(name: str, network: str, settings: list[Any], batch: int) -> None:
    seeds = [11 * r + 3 for r in range(len(settings))]
    feed = streams(network, len(settings), batch)
    together, logits = run(name, network, settings, seeds, feed)
    for r in range(len(settings)):
        alone, own = run(name, network, [settings[r]], [seeds[r]], [pixels[r : r + 1] for pixels in feed])
        torch.testing.assert_close(logits[:, r : r + 1], own, rtol=0, atol=1e-9)
        for key, value in alone.state_dict().items():
            if value.dim():
                own = together.state_dict()[key][r : r + 1]
                torch.testing.assert_close(own, value, rtol=0, atol=1e-9, equal_nan=True)
        for field in dataclasses.fields(alone.report):
            mine, theirs = getattr(together.report, field.name)[r], getattr(alone.report, field.name)[0]
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9, equal_nan=True)


def deyo_mixture() -> list[Any]:
    cls = settings_class("deyo")
    return [
        cls(learning_rate=0.01, plpd_threshold=0.1),
        cls(learning_rate=0.02, patches=5, entropy_margin=0.7),
        cls(learning_rate=0.01, transform="pixel", weight_plpd=False),
        cls(learning_rate=0.005, transform="occlusion", filter_entropy=False),
        cls(learning_rate=0.01, filter_plpd=False, weight_plpd=False, loss_normalization="batch"),
        cls(learning_rate=0.01, plpd_threshold=0.999),
    ]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("statistics", ["subset", "batch", "frozen"])
def test_deyo_runs_mix(network: str, statistics: str) -> None:
    settings = [dataclasses.replace(s, plpd_statistics=statistics) for s in deyo_mixture()]
    assert_same_together_and_alone("deyo", network, settings, batch=16)


@pytest.mark.parametrize("network", ["network_gn", "network_ln"])
def test_deyo_at_batch_size_one(network: str) -> None:
    assert_same_together_and_alone("deyo", network, deyo_mixture(), batch=1)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", ["tent", "eata", "sar", "sar-official"])
def test_other_methods_mix(network: str, name: str) -> None:
    cls = settings_class(name)
    margins = {} if name == "tent" else {"entropy_margin": 0.6}
    if name == "sar-official":
        margins |= {"second_forward": "batch", "step_on_empty": True}
    settings = [cls(learning_rate=rate, **margins) for rate in (0.01, 0.02)]
    if margins:
        settings.append(dataclasses.replace(settings[0], entropy_margin=0.05))
    if name.startswith("sar"):  # the second run recovers at every step, the others never
        settings[1] = dataclasses.replace(settings[1], reset_constant=10.0)
    if name == "eata":
        settings[1] = dataclasses.replace(settings[1], fisher_strength=0.0, redundancy_margin=0.9)
    assert_same_together_and_alone(name, network, settings, batch=16)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", ["eata", "sar", "deyo"])
def test_a_run_with_nothing_selected_does_not_move_while_its_neighbour_does(  # golden check 7
    network: str, name: str
) -> None:
    cls = settings_class(name)
    novel = {"redundancy_margin": 2.0} if name == "eata" else {}
    settings = [cls(learning_rate=0.05, entropy_margin=0.9, **novel)] * 2
    feed = streams(network, 2, 16)
    method, _ = run(name, network, settings, [0, 1], feed[:2])  # momentum is not zero from here on
    before = method.state_dict()
    method.entropy_margin = method.entropy_margin * torch.tensor([[0.0], [1.0]])
    method.step(feed[2])
    after = method.state_dict()
    assert method.report.skipped.tolist() == [True, False]
    assert method.report.backwards[0] == 0
    for key in ("theta", "momentum"):
        assert torch.equal(before[key][0], after[key][0])
        assert not torch.equal(before[key][1], after[key][1])


def test_only_sar_official_drifts_on_an_empty_selection() -> None:
    for name, moves in (("sar", False), ("sar-official", True)):
        cls = settings_class(name)
        extra = {"step_on_empty": True} if moves else {}
        feed = streams("network_gn", 1, 16)
        method, _ = run(name, "network_gn", [cls(learning_rate=0.05, entropy_margin=0.9, **extra)], [0], feed[:2])
        before = method.state_dict()
        method.entropy_margin = method.entropy_margin * 0
        method.step(feed[2])
        assert torch.equal(before["theta"], method.state_dict()["theta"]) is not moves


@pytest.mark.parametrize("name", ["sar", "sar-official"])
def test_recovery_resets_one_run_only_and_keeps_momentum(name: str) -> None:
    cls = settings_class(name)
    settings = [cls(learning_rate=0.05, entropy_margin=0.9, reset_constant=c) for c in (10.0, 0.0)]
    method, _ = run(name, "network_gn", settings, [0, 1], streams("network_gn", 2, 16)[:2])
    assert method.report.reset.tolist() == [True, False]
    assert torch.equal(method.network.theta[0], method.network.source_theta[0])
    assert not torch.equal(method.network.theta[1], method.network.source_theta[0])
    assert method.optimizer.buffer[0].abs().sum() > 0


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", ["tent", "eata", "sar", "deyo"])
def test_a_stream_resumes_in_the_middle_with_identical_numbers(network: str, name: str) -> None:
    cls = settings_class(name)
    settings = [cls(learning_rate=0.02)]
    feed = streams(network, 1, 16)
    through, expected = run(name, network, settings, [5], feed)
    first, _ = run(name, network, settings, [5], feed[:2])
    second, _ = run(name, network, settings, [5], [])
    second.load_state_dict(first.state_dict())
    resumed = torch.stack([second.step(pixels) for pixels in feed[2:]])
    assert torch.equal(resumed, expected[2:])
    for key, value in through.state_dict().items():
        assert torch.equal(second.state_dict()[key], value)
