"""Which names of GPUs mean one kind."""

from __future__ import annotations

import pytest

from orchestrator.gpu_kinds import same_kind


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("H100", "NVIDIA H100 80GB HBM3", True),
        ("a100", "NVIDIA A100-SXM4-80GB", True),
        ("NVIDIA GeForce RTX 4090", "RTX 4090", True),
        ("RTX-PRO-6000", "NVIDIA RTX PRO 6000 Blackwell", True),
        ("AMD Instinct MI300X", "AMD-Instinct-MI300X-OAM", True),
        ("L4", "NVIDIA L40S", False),
        ("A100", "NVIDIA A10", False),
        ("H100 PCIe", "NVIDIA H100 80GB HBM3", False),
        ("H100", "", False),
    ],
)
def test_names_of_one_kind(one: str, other: str, same: bool) -> None:
    assert same_kind(one, other) is same
    assert same_kind(other, one) is same
