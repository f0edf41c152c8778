"""Sizes that no test machine has: the real scheduler and driver against simulated hosts in virtual time."""

from __future__ import annotations

import pytest

from experiments.benchmarks.scheduling import simulate


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
    assert found.ratio < 1.03


@pytest.mark.slow
def test_a_thousand_gpus() -> None:
    found = simulate(1000, 100_000)
    assert (found.commits, found.duplicates) == (100_000, 0)
    assert found.ratio < 1.05
