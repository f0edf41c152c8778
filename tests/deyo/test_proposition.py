"""Proposition 1: one SGD step on a sample moves the class-mean logit gap exactly as the proposition says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deyo.analysis.proposition import (
    binary_entropy,
    gap,
    gap_changes,
    make_factors,
    run_experiment,
    train_classifier,
)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), rate=st.sampled_from([1e-3, 0.1, 2.0]), scale=st.sampled_from([0.1, 1.0, 4.0]))
def test_the_sign_agrees_for_every_sample(seed: int, rate: float, scale: float) -> None:
    """For any linear classifier, not only a trained one."""
    factors = make_factors(60, train=False, seed=seed)
    theta = scale * torch.randn(16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    changes = gap_changes(theta, factors, rate=rate)
    moved = changes.change.abs() > 1e-12  # of a saturated sample the gradient, and so C', vanishes in rounding
    assert moved.float().mean() > 0.5
    assert torch.equal(changes.change[moved].sign(), changes.score[moved].sign())


def test_the_size_is_the_proofs() -> None:
    """change = C'·score with C' = η·|log((1−p)/p)·p(1−p)| (proof of the proposition)."""
    factors = make_factors(50, train=False, seed=1)
    theta = train_classifier(make_factors(200, train=True, seed=2))
    changes = gap_changes(theta, factors, rate=0.05)
    logit = factors.values @ theta
    p = logit.sigmoid()
    constant = 0.05 * (logit * p * (1 - p)).abs()
    torch.testing.assert_close(changes.change, constant * changes.score, rtol=1e-9, atol=1e-12)


def test_entropy_of_a_coin_and_of_certainty() -> None:
    values = binary_entropy(torch.tensor([0.0, 40.0, -40.0], dtype=torch.float64))
    assert values.tolist() == pytest.approx([0.6931471805599453, 0, 0], abs=1e-12)


def test_the_world_correlates_as_named() -> None:
    for train in (True, False):
        factors = make_factors(4000, train=train, seed=0)
        difference = {
            name: float(factors.mean_difference[[b == name for b in factors.blocks]].mean())
            for name in set(factors.blocks)
        }
        assert difference["pp"] > 0.5 > -0.5 > difference["nn"]
        assert (difference["pn"] > 0.5) == train
        assert (difference["np"] < -0.5) == train
        assert factors.block("pp").shape == (4000, 4)


def test_experiment_low_entropy_does_not_tell_harmful_samples_and_the_score_does() -> None:
    experiment = run_experiment(seed=0)
    changes = experiment.changes
    by_entropy = changes.entropy.argsort().chunk(4)
    # A quarter and more of the most certain samples bring the classes closer together.
    assert changes.harmful[by_entropy[0]].double().mean() > 0.25
    final = {name: float(t.gap[-1]) for name, t in experiment.trajectories.items()}
    assert final["harmless"] > final["low-entropy"]
    assert final["harmless"] > final["all"]
    start = {float(t.gap[0]) for t in experiment.trajectories.values()}
    assert len(start) == 1
    # TRAP factors are what makes a sample harmful.
    assert changes.trap[changes.harmful].mean() < changes.trap[~changes.harmful].mean()
    again = run_experiment(seed=0)
    assert torch.equal(again.changes.change, changes.change)


def test_gap_of_a_classifier_that_separates_is_positive() -> None:
    source = make_factors(300, train=True, seed=4)
    assert gap(train_classifier(source), source) > 1
