"""Each image once: the records are those of runs that predict their own batches, with fewer forwards."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parity_cases import network_for

from deyo.arriving import Arriving
from deyo.loop import adapt
from deyo.methods import create_method, settings_class
from deyo.methods.no_adapt import NoAdapt
from deyo.once import FirstNeeds, Predicted
from deyo.types import ImageSet, MethodContext, StepRecord, Stream

IMAGES = 85


def image_set(first: int = 0) -> ImageSet:
    grey = network_for("network_bn")[1].reshape(-1, 32, 32)[first : first + IMAGES]
    pixels = np.repeat(grey[..., None], 3, axis=-1)
    labels = np.arange(IMAGES) % 10
    return ImageSet(name="digits", pixels=pixels, labels=labels, groups=labels % 2)


def stream(images: ImageSet, order: np.ndarray, batch: int = 16) -> Stream:
    return Stream(images=images, order=order, batch_size=batch, scenario="mild", seed=0, digest="d")


def shuffled(images: ImageSet, seed: int, batch: int = 16) -> Stream:
    return stream(images, np.random.default_rng(seed).permutation(IMAGES), batch)


def method(runs: int, name: str = "no-adapt", batch: int = 16) -> object:
    network = network_for("network_gn")[0]
    context = MethodContext(network=network, seeds=range(runs), batch_size=batch, precision="float64")
    return create_method(name, context, [settings_class(name)()] * runs)


def own_batches(streams: Sequence[Stream]) -> list[StepRecord]:
    """What runs give that predict batch after batch of their own."""
    plain = method(len(streams), batch=streams[0].batch_size)
    plain.order_free = False
    return list(adapt(plain, streams))


def check_equal(found: Sequence[StepRecord], expected: Sequence[StepRecord]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.entropy, other.entropy, rtol=1e-12)
        for field in dataclasses.fields(one):
            if field.name != "entropy":
                np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name), strict=True)


@pytest.mark.parametrize("block", [1, 3, 64])
def test_the_records_are_those_of_runs_that_predict_their_own_batches(block: int) -> None:
    images, other = image_set(), image_set(IMAGES)
    streams = [shuffled(images, 0), shuffled(images, 1), shuffled(other, 2), shuffled(images, 3)]
    shared = method(4)
    check_equal(list(adapt(shared, streams, block=block)), own_batches(streams))
    assert int(shared.steps) == -(-2 * IMAGES // (4 * 16))  # of the 6 batches of 64 that four runs have


def test_the_middle_of_streams_predicts_what_is_left_alone() -> None:
    images = image_set()
    streams = [shuffled(images, seed) for seed in range(3)]
    late = method(3)
    check_equal(list(adapt(late, streams, start_step=5)), own_batches(streams)[5:])
    assert int(late.steps) == 1
    assert list(adapt(method(3), streams, start_step=6)) == []


def test_images_that_are_visited_again_and_last_batches_without_a_new_image() -> None:
    images = image_set()
    there_and_back = np.concatenate([np.arange(40), np.arange(40)[::-1]])
    streams = [stream(images, there_and_back), stream(images, np.roll(there_and_back, 7))]
    shared = method(2)
    check_equal(list(adapt(shared, streams)), own_batches(streams))
    assert int(shared.steps) == 2


def test_batch_size_one() -> None:
    images = image_set()
    streams = [shuffled(images, seed, batch=1) for seed in range(5)]
    shared = method(5, batch=1)
    check_equal(list(adapt(shared, streams)), own_batches(streams))
    assert int(shared.steps) == IMAGES / 5


@pytest.mark.parametrize("arrives_after", [0, 1, 3])
def test_images_on_the_device_on_their_way_and_on_the_host(arrives_after: int) -> None:
    host, late, here = image_set(), image_set(IMAGES), image_set(2 * IMAGES)
    arriving = Arriving(late.pixels, torch.device("cpu"), start=False)
    sets = [
        host,
        dataclasses.replace(late, pixels=arriving),
        dataclasses.replace(here, pixels=torch.from_numpy(here.pixels)),
    ]
    expected = own_batches([shuffled(images, seed) for seed, images in enumerate([host, late, here])])
    found = []
    for record in adapt(method(3), [shuffled(images, seed) for seed, images in enumerate(sets)], block=1):
        if record.step == arrives_after:
            arriving.copy()
        found.append(record)
    check_equal(found, expected)


def test_a_method_whose_predictions_depend_on_the_batch_is_given_every_batch() -> None:
    images = image_set()
    own = method(3, "bn-adapt")
    list(adapt(own, [shuffled(images, seed) for seed in range(3)]))
    assert int(own.steps) == 6


def test_what_is_built_on_a_class_that_is_order_free_is_not_so_by_itself() -> None:
    context = MethodContext(network=network_for("network_bn")[0], seeds=range(2), batch_size=16, precision="float64")
    own = type("LooksAtItsBatch", (NoAdapt,), {"statistics": "batch"})(context, [NoAdapt.Settings()] * 2)
    images = image_set()
    list(adapt(own, [shuffled(images, seed) for seed in range(2)]))
    assert int(own.steps) == 6


def test_the_last_images_do_not_hand_out_all_steps_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch that completes the last image of many runs makes most steps ready."""
    images = image_set()
    asked: list[range] = []
    whole = Predicted.reports
    monkeypatch.setattr(Predicted, "reports", lambda self, steps: asked.append(steps) or whole(self, steps))
    streams = [shuffled(images, seed, batch=1) for seed in range(8)]
    check_equal(list(adapt(method(8, batch=1), streams, block=4)), own_batches(streams))
    assert max(len(steps) for steps in asked) == 4
    assert [step for steps in asked for step in steps] == list(range(IMAGES))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 40), st.integers(0, 2**31), st.integers(0, 3))
def test_no_step_is_handed_out_before_its_images(runs: int, batch: int, length: int, seed: int, start: int) -> None:
    draw = np.random.default_rng(seed)
    sets = [image_set(), image_set(IMAGES)]
    streams = [stream(sets[draw.integers(2)], draw.integers(0, IMAGES, length), batch) for _ in range(runs)]
    start = min(start, len(streams[0]) - 1)
    plan = FirstNeeds(streams, start)
    known: set[tuple[int, int]] = set()
    done = start
    for k in range(len(plan)):
        stretches = plan.stretches(k)
        assert sum(stop - first for _, first, stop in stretches) == runs * batch
        new = [(source, int(row)) for source, first, stop in stretches for row in plan.rows[first:stop]]
        assert not known & set(new)
        known |= set(new)
        ready = plan.done_with(k + 1)
        for step in range(done, ready):
            for source, one in zip(plan.sources, streams):
                assert {(source, int(i)) for i in one.order[step * batch : (step + 1) * batch]} <= known
        done = ready
    assert done == len(streams[0])
    visited = {(s, int(i)) for s, one in zip(plan.sources, streams) for i in one.order[start * batch :]}
    assert known == visited
