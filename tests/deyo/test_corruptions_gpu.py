"""The corruptions on a GPU: the same images as on the CPU."""

from __future__ import annotations

import pytest
import torch
from test_corruptions import ALL, available, pictures  # noqa: F401  (a fixture)

from deyo.corruptions import corrupt, jpeg_round_trip

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("severity", [1, 5])
def test_gpu_and_cpu_agree(name, severity, pictures):  # noqa: F811
    available(name)
    indices = torch.arange(6)
    expected = corrupt(pictures, name, severity, seed=3, indices=indices)
    found = corrupt(pictures.cuda(), name, severity, seed=3, indices=indices.cuda()).cpu()
    difference = (found.int() - expected.int()).abs()
    assert difference.max() <= 1
    assert (difference > 0).double().mean() < 1e-4


def test_jpeg_agrees_to_the_bit(pictures):  # noqa: F811
    for quality in (7, 25, 85):
        assert torch.equal(jpeg_round_trip(pictures.cuda(), quality).cpu(), jpeg_round_trip(pictures, quality))
