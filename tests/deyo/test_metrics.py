"""RunMetrics against counts made by hand, and risk-coverage against a slow reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deyo.confidence import aurc, confidence_order, excess_aurc, optimal_aurc, risk_coverage
from deyo.metrics import RunMetrics
from deyo.types import StepRecord
from orchestrator.schema import RUNS


def make_record(step: int, label, prediction, *, group=None, domain=None, entropy=None, plpd=None, **kwargs):
    """A record of one run from flat lists."""

    def row(values, default, dtype):
        values = [default] * len(label) if values is None else values
        return np.array([values], dtype=dtype)

    return StepRecord(
        step=step,
        index=np.arange(len(label))[None],
        label=row(label, 0, np.int64),
        group=row(group, -1, np.int64),
        domain=row(domain, -1, np.int64),
        prediction=row(prediction, 0, np.int64),
        entropy=row(entropy, 0.5, np.float32),
        plpd=row(plpd, math.nan, np.float32),
        passed_entropy=row(kwargs.get("passed_entropy"), True, bool),
        passed_both=row(kwargs.get("passed_both"), True, bool),
        forwards=np.array([kwargs.get("forwards", len(label))]),
        backwards=np.array([kwargs.get("backwards", 0)]),
        skipped=np.array([kwargs.get("skipped", False)]),
        reset=np.array([kwargs.get("reset", False)]),
    )


def test_three_averages_of_an_erm_profile() -> None:  # golden check 16
    """The example of methods.md §3.7 (99/77/65/91 % on Waterbirds' groups): the means differ by 13 points."""
    sizes, accuracy = (2255, 2255, 642, 642), (0.99, 0.77, 0.65, 0.91)
    metrics = RunMetrics(2, ("LL", "LS", "SL", "SS"), train_group_sizes=(3498, 184, 56, 1057))
    for group, (size, share) in enumerate(zip(sizes, accuracy)):
        right = round(size * share)
        label = group // 2
        prediction = [label] * right + [1 - label] * (size - right)
        metrics.update(make_record(group, [label] * size, prediction, group=[group] * size))
    row = metrics.summary()
    assert row["images"] == sum(g["images"] for g in row["group_accuracies"]) == 5794
    assert row["average_accuracy"] == pytest.approx(0.830, abs=5e-4)
    assert row["accuracy"] == pytest.approx(0.858, abs=5e-4)
    assert row["adjusted_accuracy"] == pytest.approx(0.960, abs=5e-4)
    assert row["worst_group_accuracy"] == pytest.approx(0.65, abs=1e-3)


def test_counts_and_means_are_sums_over_steps() -> None:
    metrics = RunMetrics(3, domain_names=("fog", "snow"))
    first = {"domain": [0, 0, 1], "entropy": [0.1, 0.2, 0.3], "plpd": [0.5, math.nan, -0.5]}
    metrics.update(make_record(0, [0, 1, 2], [0, 1, 1], **first, passed_both=[1, 0, 0], forwards=5, backwards=1))
    metrics.update(make_record(1, [2], [2], domain=[1], entropy=[math.nan], skipped=True, reset=True))
    row = metrics.summary()
    assert row["accuracy"] == pytest.approx(0.75)
    assert row["domain_accuracies"] == [
        {"name": "fog", "images": 2, "correct": 2},
        {"name": "snow", "images": 2, "correct": 1},
    ]
    assert (row["selected_entropy"], row["selected"]) == (4, 2)
    assert (row["forwards"], row["backwards"]) == (6, 1)
    assert (row["skipped_steps"], row["resets"], row["nan_steps"]) == (1, 1, 1)
    assert row["mean_entropy"] == pytest.approx(0.2)
    assert row["mean_plpd"] == pytest.approx(0.0)
    assert row["group_accuracies"] == []
    assert row["average_accuracy"] is row["worst_group_accuracy"] is row["adjusted_accuracy"] is None


def test_summary_names_only_columns_of_the_store() -> None:
    metrics = RunMetrics(2)
    metrics.update(make_record(0, [0, 1], [0, 0]))
    assert set(metrics.summary()) <= set(RUNS.names)


def test_an_empty_stream_has_no_numbers() -> None:
    row = RunMetrics(2, ("a", "b")).summary()
    assert row["images"] == 0
    assert row["accuracy"] is row["aurc"] is row["mean_entropy"] is row["average_accuracy"] is None
    assert row["collapsed"] is False


def test_each_run_reads_its_own_row() -> None:
    record = make_record(0, [0, 1], [0, 1])
    both = {
        name: np.concatenate([value, value]) if isinstance(value, np.ndarray) else value
        for name, value in vars(record).items()
    }
    both["prediction"] = np.array([[0, 1], [1, 0]])
    metrics = RunMetrics(2)
    metrics.update(StepRecord(**both), run=1)
    assert metrics.summary()["accuracy"] == 0.0


def test_stale_tail_drops_the_last_batches_of_groups_only() -> None:
    fresh, stale = RunMetrics(2, ("a", "b")), RunMetrics(2, ("a", "b"), stale_interval=2)
    for step in range(3):
        right = step < 2
        record = make_record(step, [0, 1], [0, 1] if right else [1, 0], group=[0, 1])
        fresh.update(record)
        stale.update(record)
    assert fresh.summary()["worst_group_accuracy"] == pytest.approx(2 / 3)
    assert stale.summary()["worst_group_accuracy"] == 1.0
    assert stale.summary()["accuracy"] == fresh.summary()["accuracy"]


@pytest.mark.parametrize("num_classes", [2, 10, 1000])
def test_collapse_follows_the_number_of_classes(num_classes: int) -> None:
    label = np.tile(np.arange(num_classes), 2000 // num_classes).tolist()

    def collapsed(prediction) -> bool:
        metrics = RunMetrics(num_classes)
        metrics.update(make_record(0, label, prediction))
        return metrics.summary()["collapsed"]

    assert not collapsed(label)
    assert collapsed([0] * len(label))
    # 5 % of the images still get their own class: the constant answer is what counts.
    lucky = np.random.default_rng(0).random(len(label))
    assert collapsed([y if u < 0.05 else 0 for y, u in zip(label, lucky)])
    assert not collapsed([y if u < 0.7 else 0 for y, u in zip(label, lucky)])


def test_label_shift_is_not_collapse() -> None:
    label = np.repeat(np.arange(10), 100).tolist()
    metrics = RunMetrics(10)
    metrics.update(make_record(0, label, label))
    assert not metrics.summary()["collapsed"]


def test_state_goes_on_with_identical_numbers() -> None:
    generator = np.random.default_rng(0)
    records = [
        make_record(
            step,
            generator.integers(0, 4, 8).tolist(),
            generator.integers(0, 4, 8).tolist(),
            group=generator.integers(0, 2, 8).tolist(),
            entropy=generator.random(8).tolist(),
        )
        for step in range(6)
    ]
    whole, head = RunMetrics(4, ("a", "b"), stale_interval=4), RunMetrics(4, ("a", "b"), stale_interval=4)
    for record in records:
        whole.update(record)
    for record in records[:3]:
        head.update(record)
    tail = RunMetrics(4, ("a", "b"), stale_interval=4)
    tail.load_state_dict(head.state_dict())
    for record in records[3:]:
        tail.update(record)
    assert tail.summary() == whole.summary()


def slow_aurc(confidence: list[float], correct: list[bool]) -> float:
    order = sorted(range(len(correct)), key=lambda k: (-confidence[k], k))
    risks = [sum(not correct[i] for i in order[: k + 1]) / (k + 1) for k in range(len(order))]
    return sum(risks) / len(risks)


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=40))
def test_aurc_equals_its_definition_with_ties(samples: list[tuple[int, bool]]) -> None:
    confidence = np.array([c for c, _ in samples], dtype=float)
    correct = np.array([r for _, r in samples])
    value = aurc(confidence, correct)
    assert value == pytest.approx(slow_aurc(confidence.tolist(), correct.tolist()))
    assert excess_aurc(confidence, correct) >= -1e-12
    assert aurc(correct.astype(float), correct) == optimal_aurc(correct)


def test_risk_coverage_by_hand() -> None:
    coverage, risk = risk_coverage(np.array([0.1, 0.9, 0.5, 0.5]), np.array([True, True, False, True]))
    assert coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert risk == pytest.approx([0, 1 / 2, 1 / 3, 1 / 4])


def test_ties_are_stable_and_nan_comes_last() -> None:
    assert confidence_order(np.array([math.nan, 1.0, 2.0, 1.0])).tolist() == [2, 1, 3, 0]


def test_a_group_without_a_name_is_an_error() -> None:
    metrics = RunMetrics(2, ("a",))
    metrics.update(make_record(0, [0, 1], [0, 1], group=[0, 1]))
    with pytest.raises(ValueError, match="holds group 1, but only 1 are named"):
        metrics.summary()


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="3 confidences for 2 samples"):
        risk_coverage(np.zeros(3), np.zeros(2, dtype=bool))
