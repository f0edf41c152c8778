"""EATA's Fisher matrix is measured once for a network and seed, and taken again from what was kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from parity_cases import network_for

from deyo.methods import create_method, settings_class
from deyo.methods.eata import EATA
from deyo.types import ImageSet, MethodContext

SETTINGS = settings_class("eata")(learning_rate=0.01, fisher_size=48)


def source() -> ImageSet:
    grey = network_for("network_bn")[1].reshape(-1, 32, 32)[:96]
    pixels = np.repeat(grey[..., None], 3, axis=-1)
    return ImageSet(name="clean", pixels=pixels, labels=np.zeros(96, dtype=np.int64), fingerprint="clean")


def eata(seeds: tuple[int, ...], kept: dict[Any, torch.Tensor] | None, **changes: Any) -> EATA:
    options = {} if kept is None else {"fisher_kept": kept}
    context = MethodContext(
        network=network_for("network_bn")[0],
        seeds=seeds,
        source=source(),
        options=options,
        **{"batch_size": 16, "precision": "float64"} | changes,
    )
    return create_method("eata", context, [SETTINGS] * len(seeds))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The seeds of every measurement from here on."""
    calls: list[tuple[int, ...]] = []
    measure = EATA.measure_fisher

    def counted(self: EATA, batches: Any) -> None:
        calls.append(tuple(self.context.seeds))
        measure(self, batches)

    monkeypatch.setattr(EATA, "measure_fisher", counted)
    return calls


def test_a_known_matrix_is_not_measured_again(measured: list[tuple[int, ...]]) -> None:
    kept: dict[Any, torch.Tensor] = {}
    fresh = eata((0, 1), None).fisher
    assert fresh.abs().sum() > 0
    assert not torch.equal(fresh[0], fresh[1])
    assert torch.equal(eata((0, 1), kept).fisher, fresh)
    assert torch.equal(eata((1, 0), kept).fisher, fresh.flip(0))
    assert measured == [(0, 1), (0, 1)]


def test_what_the_matrix_depends_on_is_measured_anew(measured: list[tuple[int, ...]]) -> None:
    kept: dict[Any, torch.Tensor] = {}
    eata((0, 1), kept)
    eata((0, 2), kept)  # a new seed
    eata((0,), kept)  # another number of runs side by side: other sums
    eata((0, 1), kept, batch_size=8)
    eata((0, 1), kept, precision="float32")
    assert measured == [(0, 1), (0, 2), (0,), (0, 1), (0, 1)]
    eata((2, 1), kept)
    assert len(measured) == 5
