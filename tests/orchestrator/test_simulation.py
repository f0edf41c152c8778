"""Sizes that no test machine has: the real scheduler and driver against simulated hosts in virtual time."""

from __future__ import annotations

import random

import pytest

from experiments.benchmarks.recorded import cards, failures_per_hour, run_seconds
from experiments.benchmarks.scheduling import mixed, simulate


@pytest.mark.parametrize("seed", [0, 1])
def test_hosts_join_and_die_and_every_run_is_committed_once(seed: int) -> None:
    found = simulate(80, 4000, seed=seed)
    assert found.commits == 4000
    assert found.duplicates == 0
    assert found.attempts > 4000  # something was lost and done again
    assert found.ratio < 1.05


def test_an_undisturbed_sweep_is_close_to_the_bound() -> None:
    found = simulate(16, 1600, trouble=False)
    assert (found.commits, found.attempts) == (1600, 1600)
    assert found.ratio < 1.04


def test_cards_of_nine_kinds_end_together() -> None:
    found = simulate(160, 16_000, kind="mixed")
    assert (found.commits, found.duplicates) == (16_000, 0)
    assert found.attempts > 16_000
    assert found.ratio < 1.05


def test_mixed_hosts_differ_as_recorded() -> None:
    executor = mixed(1000, 3600.0, random.Random(0), trouble=True, seed=0)
    executor.poll(0.0)
    speeds = executor.speed.values()
    assert max(speeds) / min(speeds) == pytest.approx(2260 / 349, rel=0.01)
    assert {card.name for card in executor.kinds} == {card.name for card in cards()}
    assert {card.memory_bytes for card in cards()} == {int(gb * 1e9) for gb in (16, 24, 40, 48, 80, 141)}


def test_recorded_losses_add_up_to_the_published_ones() -> None:
    a_day_of_all = 24 * (16_384 * failures_per_hour("worker") + 16_384 / 8 * failures_per_hour("host"))
    assert 54 * a_day_of_all == pytest.approx(419)


def test_a_run_takes_as_long_as_its_method_and_network_were_recorded_to() -> None:
    seconds = run_seconds()
    assert len(seconds) == 15
    assert seconds["deyo", "vit-base-ln"] == pytest.approx(50_000 / 1188)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["alike", "mixed"])
def test_a_thousand_gpus(kind: str) -> None:
    found = simulate(1000, 100_000, kind=kind)
    assert (found.commits, found.duplicates) == (100_000, 0)
    assert found.ratio < 1.05
