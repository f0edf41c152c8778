"""Streams: the published label-shift orders, and the properties of every scenario."""

from __future__ import annotations

import hashlib
import inspect

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deyo.streams import concatenate, images_for, make_stream, scenario_names, scenario_options
from deyo.streams.label_shift import published_class_order, published_order
from deyo.types import ConfigError, DataError, ImageSet

FROZEN_MILD = [7, 2, 6, 0, 4, 3, 1, 8, 5, 9]
FROZEN_SHIFT = [2, 0, 0, 6, 0, 0, 0, 4, 8, 8, 3, 7, 5, 5, 7, 9, 5, 3, 5, 3]
PUBLISHED_FILES = {
    2022: "99d2a1e1d2eaa157",
    2023: "b989ea84ce6f34b7",
    2024: "d530cd2dbd02e359",
    2025: "eebdb5d8f4f61a19",
}
FIRST_CLASSES = {2022: (492, 905, 506), 2023: (201, 838, 779), 2024: (265, 23, 22), 2025: (104, 956, 654)}


def images(count: int, classes: int, *, name: str = "set/noise/5", groups: bool = False) -> ImageSet:
    labels = np.arange(count) % classes
    pixels = (np.arange(count, dtype=np.uint8) % 251).reshape(count, 1, 1, 1).repeat(3, axis=3)
    return ImageSet(
        name=name, pixels=pixels, labels=labels, groups=labels % 4 if groups else None, fingerprint=f"{name}{count}"
    )


def imagenet_c() -> ImageSet:
    pixels = np.zeros((50_000, 1, 1, 3), dtype=np.uint8)
    return ImageSet(name="imagenet-c/fog/5", pixels=pixels, labels=np.repeat(np.arange(1000), 50), fingerprint="x")


@pytest.mark.parametrize("seed", FIRST_CLASSES)
def test_label_shift_starts_with_the_published_classes(seed: int) -> None:  # golden check 3
    stream = make_stream("label-shift", imagenet_c(), seed=seed, batch_size=64)
    assert len(stream.order) == 100_000
    assert len(stream) == 1563
    for turn, expected in enumerate(FIRST_CLASSES[seed]):
        labels = stream.order[100 * turn : 100 * (turn + 1)] // 50
        assert np.bincount(labels).argmax() == expected
        assert (labels == expected).mean() > 0.97


@pytest.mark.parametrize("seed", PUBLISHED_FILES)
def test_published_orders_are_frozen(seed: int) -> None:  # golden check 3
    """sha256 of the orders as the published files hold them, in float64 (regenerated: methods.md §3.2)."""
    content = published_order(seed, 500_000).astype("<f8").tobytes()
    assert hashlib.sha256(content).hexdigest().startswith(PUBLISHED_FILES[seed])


def test_label_shift_statistics_are_the_published_ones() -> None:
    order = published_order(2024, 500_000)
    majority = np.repeat(published_class_order(2024, 500_000), 100)
    assert len(np.unique(order)) == pytest.approx(43_300, abs=150)
    assert (order // 50 != majority).mean() == pytest.approx(0.002, abs=0.0005)


def test_label_shift_equals_the_recipe_written_step_by_step() -> None:
    """The authors' loop, one NumPy draw a step, on the first three classes' turns."""
    probabilities = np.full(1000, 1 / (500_000 + 999))
    state = np.random.RandomState(2022)
    expected = []
    for major in FIRST_CLASSES[2023]:
        p = probabilities.copy()
        p[major] *= 500_000
        expected += [int(state.choice(1000, 1, p=p)[0]) for _ in range(100)]
    assert (published_order(2023, 500_000)[:300] // 50).tolist() == expected


def test_label_shift_ratio_decides_the_class_order() -> None:
    assert not np.array_equal(published_class_order(2022, 1000), published_class_order(2022, 500_000))
    assert sorted(published_class_order(2022, 5000)) == list(range(1000))


def test_seed_2021_is_refused_where_its_file_cannot_be_reproduced() -> None:
    with pytest.raises(ConfigError, match="2022, 2023, 2024, 2025"):
        make_stream("label-shift", imagenet_c(), seed=2021, batch_size=64)
    assert len(make_stream("label-shift", images(40, 4), seed=2021, batch_size=8).order) == 80


def test_label_shift_scales_to_a_small_set() -> None:
    stream = make_stream("label-shift", images(200, 10), seed=0, batch_size=16)
    labels = stream.images.labels[stream.order]
    assert len(labels) == 400
    turns = labels.reshape(10, 40)
    majors = [np.bincount(turn).argmax() for turn in turns]
    assert sorted(majors) == list(range(10))
    assert (turns == np.array(majors)[:, None]).mean() > 0.99


def test_label_shift_at_ratio_one_is_no_shift() -> None:
    stream = make_stream("label-shift", images(5000, 10), seed=0, batch_size=16, imbalance_ratio=1)
    turns = stream.images.labels[stream.order].reshape(10, -1)
    counts = np.stack([np.bincount(turn, minlength=10) for turn in turns])
    assert counts.max() < 150  # 100 are expected of each class in each turn of 1000


def test_reduced_label_shift_keeps_every_class() -> None:
    stream = make_stream("label-shift", images(200, 10), seed=0, batch_size=16, max_images=50)
    turns = stream.images.labels[stream.order].reshape(10, 5)
    assert len({int(np.bincount(turn).argmax()) for turn in turns}) == 10
    few = make_stream("label-shift", images(200, 10), seed=0, batch_size=2, max_images=6)
    assert len(few.order) == 6


def test_label_shift_without_repetition_on_imagenet_r_and_visda() -> None:
    for name in ("imagenet-r/renditions", "visda-2021/test"):
        stream = make_stream("label-shift", images(97, 7, name=name), seed=1, batch_size=8)
        assert sorted(stream.order) == list(range(97))
        labels = stream.images.labels[stream.order]
        assert (np.diff(labels) != 0).sum() == 6  # seven runs of one class each
    overruled = make_stream(
        "label-shift", images(97, 7, name="imagenet-r/x"), seed=1, batch_size=8, each_image_once=False
    )
    assert len(overruled.order) == round(2 * 97 / 7) * 7
    assert len(np.unique(overruled.order)) < 97


@pytest.mark.parametrize("scenario", ["mild", "biased"])
def test_shuffled_scenarios_show_every_image_once(scenario: str) -> None:
    stream = make_stream(scenario, images(130, 4, groups=True), seed=3, batch_size=64)
    assert sorted(stream.order) == list(range(130))
    assert stream.order.dtype == np.int64
    assert len(stream) == 3


def test_order_depends_on_seed_and_condition_alone() -> None:  # golden check 15
    """``make_stream`` is not told the method; and the global generators, which methods may have moved, are unused."""
    state = np.random.get_state()[1].copy(), torch.random.get_rng_state().clone()
    first = make_stream("mild", images(100, 4), seed=0, batch_size=64)
    assert "method" not in inspect.signature(make_stream).parameters
    assert np.array_equal(first.order, make_stream("mild", images(100, 4), seed=0, batch_size=5).order)
    assert first.digest == make_stream("mild", images(100, 4), seed=0, batch_size=64).digest
    for other in (
        make_stream("mild", images(100, 4), seed=1, batch_size=64),
        make_stream("mild", images(100, 4, name="set/fog/5"), seed=0, batch_size=64),
    ):
        assert not np.array_equal(first.order, other.order)
        assert first.digest != other.digest
    assert np.array_equal(np.random.get_state()[1], state[0])  # no global generator was touched
    assert torch.equal(torch.random.get_rng_state(), state[1])


def test_orders_are_frozen() -> None:
    """These numbers may never change: results are compared across versions by them."""
    assert make_stream("mild", images(10, 2), seed=0, batch_size=4).order.tolist() == FROZEN_MILD
    assert make_stream("label-shift", images(10, 2), seed=0, batch_size=4).order.tolist() == FROZEN_SHIFT


def test_batch_size_1_refuses_other_sizes() -> None:
    assert len(make_stream("batch-size-1", images(9, 3), seed=0, batch_size=1)) == 9
    with pytest.raises(ConfigError, match="batch_size 1, not 64"):
        make_stream("batch-size-1", images(9, 3), seed=0, batch_size=64)


class TwoCorruptions:
    name = "toy"
    corruptions = ("fog", "snow")

    def images(self, corruption: str | None = None, severity: int | None = None) -> ImageSet:
        count = {"fog": 10, "snow": 14}[corruption or ""]
        found = images(count, 2, name=f"toy/{corruption}/{severity}")
        return ImageSet(**{**vars(found), "pixels": found.pixels + (100 if corruption == "snow" else 0)})


def test_mixed_shuffles_all_corruptions_and_names_them() -> None:
    found = images_for(TwoCorruptions(), "mixed", None, 3, ())
    stream = make_stream("mixed", found, seed=0, batch_size=8)
    assert sorted(stream.order) == list(range(24))
    assert found.domain_names == ("fog", "snow")
    domains = found.domains[stream.order]
    assert 0 < domains[:10].sum() < 10
    pixels = found.pixels[stream.order][:, 0, 0, 0]
    assert np.array_equal(pixels >= 100, domains == 1)
    assert stream.reset_at == ()


def test_continual_goes_through_the_corruptions_in_order() -> None:
    found = images_for(TwoCorruptions(), "continual", None, 3, ("snow", "fog"))
    stream = make_stream("continual", found, seed=0, batch_size=4)
    assert found.domains[stream.order].tolist() == [0] * 14 + [1] * 10
    assert stream.order[:14].tolist() != list(range(14))
    assert stream.reset_at == ()
    reset = make_stream("continual", found, seed=0, batch_size=4, reset_each=True)
    assert reset.reset_at == (12,)  # the batch that holds the first image of fog
    assert np.array_equal(reset.order, stream.order)
    assert reset.digest != stream.digest


def test_reduced_continual_keeps_every_corruption_in_whole_batches() -> None:
    found = images_for(TwoCorruptions(), "continual", None, 3)
    stream = make_stream("continual", found, seed=0, batch_size=4, max_images=18, reset_each=True)
    assert found.domains[stream.order].tolist() == [0] * 8 + [1] * 8
    assert stream.reset_at == (8,)


def test_concatenation_checks_what_it_is_given() -> None:
    one = images(4, 2)
    other = ImageSet(name="big", pixels=np.zeros((2, 2, 2, 3), np.uint8), labels=np.zeros(2, np.int64))
    with pytest.raises(DataError, match="different sizes"):
        concatenate([one, other], ["a", "b"])
    with pytest.raises(DataError):
        concatenate([], [])
    again = concatenate([one, one], ["a", "b"])
    assert again.fingerprint != concatenate([one, one], ["a", "c"]).fingerprint
    assert len(again) == 8


@pytest.mark.parametrize(
    ("scenario", "options", "words"),
    [
        ("mild", {"imbalance_ratio": 5}, "no option 'imbalance_ratio'"),
        ("label-shift", {"imbalance_ratio": 0.5}, "at least 1"),
        ("label-shift", {"imbalance_ratio": float("nan")}, "at least 1"),
        ("label-shift", {"imbalance_ratio": True}, "at least 1"),
        ("label-shift", {"each_image_once": 1}, "true or false"),
        ("continual", {"reset_each": None}, "true or false"),
        ("lable-shift", {}, "label-shift"),
    ],
)
def test_wrong_options_are_named(scenario: str, options: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        scenario_options(scenario, options)


def test_options_are_filled_in_and_can_be_given_back() -> None:
    for scenario in scenario_names():
        resolved = scenario_options(scenario)
        assert scenario_options(scenario, resolved) == resolved
    for infinite in (float("inf"), ".inf", "inf", 500_000, 500_000.0):
        assert scenario_options("label-shift", {"imbalance_ratio": infinite})["imbalance_ratio"] == 500_000


@pytest.mark.parametrize("scenario", ["mixed", "continual", "biased"])
def test_unfit_images_are_refused(scenario: str) -> None:
    with pytest.raises(ConfigError, match="set/noise/5"):
        make_stream(scenario, images(8, 2), seed=0, batch_size=4)


@settings(max_examples=60, deadline=None)
@given(
    scenario=st.sampled_from(["mild", "biased", "label-shift", "batch-size-1"]),
    count=st.integers(1, 60),
    classes=st.integers(1, 9),
    seed=st.integers(0, 2**40),
    limit=st.one_of(st.none(), st.integers(1, 80)),
)
def test_streams_stay_within_their_images_and_limit(
    scenario: str, count: int, classes: int, seed: int, limit: int | None
) -> None:
    found = images(count, classes, groups=True)
    batch_size = 1 if scenario == "batch-size-1" else 7
    stream = make_stream(scenario, found, seed=seed, batch_size=batch_size, max_images=limit)
    assert len(stream.order) >= 1
    assert stream.order.min() >= 0
    assert stream.order.max() < count
    if limit is not None:
        assert len(stream.order) <= limit
