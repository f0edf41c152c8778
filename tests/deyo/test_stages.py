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
