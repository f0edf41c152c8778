"""Mean, std and what is left out of them; paired intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tables_fakes import CORRUPTIONS, config, grid, sweep

from deyo.types import ConfigError
from orchestrator.tables.intervals import excludes_zero, interval, mean_difference, used
from orchestrator.tables.metrics import metric
from orchestrator.tables.statistics import mean_std, summarise

ACCURACY = metric("accuracy")
numbers = st.floats(-1e3, 1e3, allow_nan=False)


@given(st.lists(numbers, min_size=2, max_size=30), st.sampled_from([0, 1]))
def test_mean_std_is_numpys(values, ddof):
    mean, std = mean_std(values, ddof)
    assert mean == pytest.approx(np.mean(values), abs=1e-9)
    assert std == pytest.approx(np.std(values, ddof=ddof), abs=1e-9)


def test_std_needs_two_values():
    assert mean_std([]) == (None, None)
    assert mean_std([3.0]) == (3.0, None)
    assert mean_std([3.0], ddof=0) == (3.0, None)


def test_std_default_is_of_a_sample():
    data = sweep(grid(seed=[0, 1, 2]), lambda c: 0.1 * c.seed)
    assert summarise(data.entries, ACCURACY).std == pytest.approx(10.0)
    assert summarise(data.entries, ACCURACY, ddof=0).std == pytest.approx(math.sqrt(200 / 3))


def test_failed_missing_and_nan_are_counted_not_dropped():
    accuracies = {0: 0.5, 1: 0.6, 2: None, 3: math.nan, 4: 0.7}
    data = sweep(grid(seed=range(5)), lambda c: accuracies[c.seed], failed=[4])
    summary = summarise(data.entries, ACCURACY)
    assert (summary.n, summary.expected) == (2, 5)
    assert summary.mean == pytest.approx(55.0)
    assert [r[0] for r in summary.missing] == [2]
    assert [r[0] for r in summary.nan] == [3]
    assert [r[0] for r in summary.failed] == [4]
    assert {r[0] for r in summary.values} == {0, 1}


@given(st.lists(st.sampled_from(["done", "missing", "failed", "nan"]), min_size=1, max_size=8))
def test_every_seed_is_accounted_for(fates):
    values = {"done": 0.5, "missing": None, "failed": 0.5, "nan": math.nan}
    data = sweep(
        grid(seed=range(len(fates))),
        lambda c: values[fates[c.seed]],
        failed=[i for i, f in enumerate(fates) if f == "failed"],
    )
    s = summarise(data.entries, ACCURACY)
    assert s.expected == len(fates)
    assert s.n + len(s.missing) + len(s.failed) + len(s.nan) + len(s.absent) == s.expected
    assert s.n == fates.count("done")
    assert s.complete == (fates.count("done") == len(fates))


def test_collapsed_runs_are_in_the_mean_and_named():
    data = sweep(
        grid(seed=[0, 1, 2]),
        lambda c: 0.01 if c.seed == 2 else 0.6,
        extra=lambda c: {"collapsed": c.seed == 2},
    )
    summary = summarise(data.entries, ACCURACY)
    assert summary.n == 3
    assert [r[0] for r in summary.collapsed] == [2]
    assert summary.median == pytest.approx(60.0)
    assert summary.mean == pytest.approx((60 + 60 + 1) / 3)


def test_average_needs_all_its_corruptions():
    data = sweep(
        grid(corruption=CORRUPTIONS, seed=[0, 1]),
        lambda c: None if (c.corruption, c.seed) == ("contrast", 1) else 0.2 * (1 + CORRUPTIONS.index(c.corruption)),
    )
    summary = summarise(data.entries, ACCURACY)
    assert (summary.n, summary.expected) == (1, 2)
    assert summary.mean == pytest.approx(40.0)


def test_average_weighted_by_images():
    sizes = {"gaussian_noise": 3000, "contrast": 1000}
    data = sweep(
        grid(corruption=sizes, seed=[0]),
        lambda c: 0.8 if c.corruption == "contrast" else 0.4,
        extra=lambda c: {"images": sizes[c.corruption]},
    )
    assert summarise(data.entries, ACCURACY).mean == pytest.approx(60.0)
    assert summarise(data.entries, ACCURACY, weighted=True).mean == pytest.approx(50.0)


def test_runs_that_fall_together_are_refused_with_the_difference():
    two = [config(settings={"plpd_threshold": t}, label="deyo") for t in (0.2, 0.3)]
    data = sweep(two, lambda c: 0.5)
    with pytest.raises(ConfigError, match=r"settings\.plpd_threshold: 0\.2 and 0\.3.*--where"):
        summarise(data.entries, ACCURACY)


def test_absent_metric_is_not_missing():
    data = sweep(grid(seed=[0, 1]), lambda c: 0.5)
    summary = summarise(data.entries, metric("worst_group_accuracy"))
    assert summary.mean is None
    assert len(summary.absent) == 2


def test_unknown_metric_names_the_nearest():
    with pytest.raises(ConfigError, match="accuracy"):
        metric("acuracy")


pairs = st.dictionaries(st.tuples(st.integers(0, 4), st.integers(0, 5)), numbers, min_size=1, max_size=30)


@given(pairs, st.sampled_from(["t", "bootstrap"]))
def test_interval_holds_a_finite_mean_and_flips_with_sign(differences, kind):
    found = interval(differences, kind)
    mirrored = interval({k: -v for k, v in differences.items()}, kind)
    mean = mean_difference(differences)
    if len({s for s, _ in differences}) < 2 and len({c for _, c in differences}) < 2:
        assert found is None
        return
    assert found[0] <= found[1]
    assert mirrored == pytest.approx((-found[1], -found[0]), abs=1e-6 + 1e-9 * abs(mean))
    if kind == "t":
        assert found[0] - 1e-9 <= mean <= found[1] + 1e-9


@given(st.lists(numbers, min_size=2, max_size=12))
def test_interval_over_seeds_is_the_paired_t_interval(differences):
    low, high = interval({(seed, "one"): d for seed, d in enumerate(differences)})
    error = stats.sem(differences)
    expected = stats.t.interval(0.95, len(differences) - 1, loc=np.mean(differences), scale=error) if error else None
    if expected:
        assert (low, high) == pytest.approx(expected, abs=1e-6)
    else:
        assert low == high == pytest.approx(np.mean(differences))


def test_t_takes_the_corruptions_as_given_and_bootstrap_as_a_sample():
    """Seeds that agree on each of three corruptions: sure of these three, not of a fourth."""
    by_condition = {"a": 3.0, "b": 0.1, "c": -1.0}
    differences = {(seed, c): d + 0.01 * seed for seed in range(3) for c, d in by_condition.items()}
    low, high = interval(differences)
    assert low > 0
    assert (low, high) == pytest.approx(stats.t.interval(0.95, 2, loc=0.71, scale=stats.sem([0.70, 0.71, 0.72])))
    assert interval(differences, "bootstrap")[0] < 0


def test_one_seed_is_judged_over_its_corruptions():
    differences = {(0, c): d for c, d in zip("abcd", (1.0, 1.2, 0.9, 1.1))}
    expected = stats.t.interval(0.95, 3, loc=1.05, scale=stats.sem([1.0, 1.2, 0.9, 1.1]))
    assert interval(differences) == pytest.approx(expected)


def test_a_seed_that_lacks_a_corruption_does_not_shift_the_mean():
    differences = {(s, c): {"easy": 1.0, "hard": 9.0}[c] for s in (0, 1, 2) for c in ("easy", "hard")}
    del differences[2, "easy"]
    assert mean_difference(differences) == pytest.approx(5.0)
    assert len(used(differences)) == 4


def test_what_is_distinguishable():
    assert excludes_zero((0.1, 0.4))
    assert excludes_zero((-0.4, -0.1))
    assert not excludes_zero((-0.1, 0.4))
    assert not excludes_zero((0.0, 0.0))
    assert not excludes_zero(None)
