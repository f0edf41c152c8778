"""Agreement with the published implementations: every recorded case, to 1e-9 in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from parity_cases import CASES, load_case, run_case

TOLERANCE = 1e-9


@pytest.mark.parametrize("name", CASES)
def test_case_agrees_with_the_published_code(name: str) -> None:
    case = load_case(name)
    method, logits, selected = run_case(case)
    np.testing.assert_allclose(logits, case.tensors["logits"], rtol=0, atol=TOLERANCE)
    if "selected" in case.tensors:
        np.testing.assert_array_equal(selected, case.tensors["selected"])
    adapted = dict(method.network.named_adapted())
    assert list(adapted) == case.settings["adapted"]
    for tensor, values in adapted.items():
        np.testing.assert_allclose(values[0], case.tensors[f"after.{tensor}"], rtol=0, atol=TOLERANCE, err_msg=tensor)
    for state in ("probability_ema", "entropy_ema"):
        if state in case.tensors:
            own = getattr(method, state)[0].reshape(-1)
            np.testing.assert_allclose(own, case.tensors[state].reshape(-1), rtol=0, atol=TOLERANCE)


def test_all_cases_are_run() -> None:
    files = {p.stem for p in (Path(__file__).parent / "parity").glob("*.safetensors")}
    assert set(CASES) == {f for f in files if not f.startswith("network_")}
    assert len(CASES) == 57
