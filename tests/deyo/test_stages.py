"""A further stage of a step that runs although no run has selected anything changes nothing.

A captured step may start it before it is known whether it is needed (``deyo.fast.Decision``).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from parity_cases import network_for, rgb

from deyo.methods import create_method, settings_class
from deyo.methods.base import judge
from deyo.types import MethodContext


def build(name: str, network: str, runs: int) -> Any:
    """A method that selects nothing."""
    context = MethodContext(
        network=network_for(network)[0], seeds=list(range(runs)), batch_size=16, precision="float64"
    )
    method = create_method(name, context, [settings_class(name)(learning_rate=0.01, entropy_margin=1e-6)] * runs)
    if name == "eata":
        source = network_for(network)[2]
        method.measure_fisher([rgb(batch).expand(runs, -1, -1, -1, -1) for batch in source])
    method.coarse = True
    return method


def run_all_stages(method: Any, pixels: torch.Tensor) -> None:
    for _ in method.stages(pixels):
        pass


@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("network", ["network_bn", "network_gn", "network_ln"])
@pytest.mark.parametrize("name", ["eata", "eta", "sar", "deyo"])
def test_an_unneeded_stage_changes_nothing(name: str, network: str, runs: int) -> None:
    stopped, whole = build(name, network, runs), build(name, network, runs)
    whole.runner = run_all_stages
    images = rgb(network_for(network)[1].reshape(-1, 32, 32)[:48]).view(3, 1, 16, 3, 32, 32)
    for pixels in images.expand(-1, runs, -1, -1, -1, -1):
        assert torch.equal(stopped.step(pixels), whole.step(pixels))
        for field in dataclasses.fields(stopped.report):
            expected, found = (getattr(m.report, field.name) for m in (stopped, whole))
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        assert whole.report.skipped.all()
    state = stopped.state_dict()
    for key, value in whole.state_dict().items():
        torch.testing.assert_close(value, state[key], rtol=0, atol=0, equal_nan=True)


def test_sar_counts_nothing_of_a_run_that_could_not_start() -> None:
    """A sample that is not finite keeps a run from starting; company that starts must not change its report."""
    margin = settings_class("sar")(learning_rate=0.01, entropy_margin=10.0)
    images = rgb(network_for("network_bn")[1].reshape(-1, 32, 32)[:16]).view(1, 1, 16, 3, 32, 32)
    reports = []
    for whole in (False, True):
        context = MethodContext(network=network_for("network_bn")[0], seeds=[0], batch_size=16, precision="float64")
        method = create_method("sar", context, [margin])
        method.judge = one_not_finite
        if whole:
            method.runner = run_all_stages
        method.step(images[0])
        reports.append(method.report)
    for field in dataclasses.fields(reports[0]):
        expected, found = (getattr(report, field.name) for report in reports)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def one_not_finite(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    safe, own, finite = judge(logits)
    finite = finite.clone()
    finite[:, 0] = False
    return safe, own, finite
