"""The loop: every position once and in order, reports in blocks, resets, resuming, R streams at once."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from parity_cases import network_for

from deyo.arriving import Arriving
from deyo.loop import adapt
from deyo.methods import create_method, settings_class
from deyo.types import ConfigError, ImageSet, MethodContext, Stream


def image_set() -> ImageSet:
    grey = network_for("network_bn")[1].reshape(-1, 32, 32)[:100]
    pixels = np.repeat(grey[..., None], 3, axis=-1)
    labels = np.arange(100) % 10
    return ImageSet(name="digits", pixels=pixels, labels=labels, groups=labels % 2, fingerprint="f")


def stream(seed: int = 0, batch: int = 16, images: ImageSet | None = None, **changes: object) -> Stream:
    order = np.random.default_rng(seed).permutation(100)
    fields = {"batch_size": batch, "scenario": "mild", "seed": seed, "digest": "d", **changes}
    return Stream(images=images or image_set(), order=order, **fields)


def method(runs: int = 1, name: str = "deyo", **settings: object) -> object:
    context = MethodContext(
        network=network_for("network_gn")[0], seeds=list(range(runs)), batch_size=16, precision="float64"
    )
    return create_method(name, context, [settings_class(name)(learning_rate=0.01, **settings)] * runs)


@pytest.mark.parametrize("block", [1, 3, 64])
def test_every_position_is_reported_once_and_in_order(block: int) -> None:
    one = stream()
    records = list(adapt(method(), one, block=block))
    assert [r.step for r in records] == list(range(7))
    assert np.array_equal(np.concatenate([r.index[0] for r in records]), one.order)
    assert records[-1].index.shape == (1, 4)
    labels = np.concatenate([r.label[0] for r in records])
    assert np.array_equal(labels, one.images.labels[one.order])
    assert np.array_equal(np.concatenate([r.group[0] for r in records]), labels % 2)
    assert all((r.domain == -1).all() for r in records)
    assert sum(int(r.forwards[0]) for r in records) >= 100


def test_blocks_change_no_number() -> None:
    by_block = [list(adapt(method(), stream(), block=b)) for b in (1, 64)]
    for one, other in zip(*by_block):
        for field in dataclasses.fields(one):
            np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name))


def test_a_method_may_be_ahead_of_the_records_and_rests_where_it_may_not() -> None:
    images = image_set()
    there = dataclasses.replace(images, pixels=torch.from_numpy(images.pixels))
    answers = iter([True, False, True])
    ahead, found = method(), []
    for record in adapt(ahead, stream(images=there), block=2, may_be_ahead=lambda possible: possible and next(answers)):
        found.append((record, int(ahead.steps)))
    assert [(r.step + 1, steps) for r, steps in found] == [(1, 4), (2, 4), (3, 4), (4, 4), (5, 7), (6, 7), (7, 7)]
    for one, other in zip(list(adapt(method(), stream())), [record for record, _ in found], strict=True):
        for field in dataclasses.fields(one):
            np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name))


def test_images_that_come_from_the_host_are_not_taken_ahead() -> None:
    waiting = method()
    for record in adapt(waiting, stream(), block=2, may_be_ahead=lambda possible: possible):
        assert int(waiting.steps) <= 2 * (record.step // 2 + 1)


def test_runs_of_different_streams_side_by_side() -> None:
    shared = image_set()
    streams = [stream(s, images=shared) for s in range(3)]
    together = list(adapt(method(3), streams))
    for r in range(3):
        assert np.array_equal(np.concatenate([t.index[r] for t in together]), streams[r].order)


def test_resident_images_give_the_same_numbers() -> None:
    images = image_set()
    resident = dataclasses.replace(images, pixels=torch.from_numpy(images.pixels))
    host = list(adapt(method(2), [stream(s, images=images) for s in range(2)]))
    device = list(adapt(method(2), [stream(s, images=resident) for s in range(2)]))
    for one, other in zip(host, device):
        np.testing.assert_array_equal(one.entropy, other.entropy)
        np.testing.assert_array_equal(one.prediction, other.prediction)


@pytest.mark.parametrize("arrives_after", [0, 1, 3])
def test_images_that_arrive_in_the_middle_change_no_number(arrives_after: int) -> None:
    """One run's images are there from the start, the other's come later."""
    images, late = image_set(), image_set()
    there = dataclasses.replace(images, pixels=torch.from_numpy(images.pixels))
    arriving = Arriving(late.pixels, torch.device("cpu"), start=False)
    both = [stream(0, images=there), stream(1, images=dataclasses.replace(late, pixels=arriving))]
    found = []
    for record in adapt(method(2), both, block=1):
        if record.step == arrives_after:
            assert arriving.resident is None
            arriving.copy()
        found.append(record)
    expected = list(adapt(method(2), [stream(s, images=images) for s in range(2)]))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.index, other.index)
        np.testing.assert_array_equal(one.entropy, other.entropy)


def test_images_on_the_device_beside_images_that_stay_on_the_host() -> None:
    images, other = image_set(), image_set()
    there = dataclasses.replace(images, pixels=torch.from_numpy(images.pixels))
    both = [stream(0, images=other), stream(1, images=there), stream(2, images=other)]
    found = list(adapt(method(3), both))
    expected = list(adapt(method(3), [stream(s, images=images) for s in range(3)]))
    for one, other_one in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.index, other_one.index)
        np.testing.assert_array_equal(one.entropy, other_one.entropy)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_all_images_arrive_on_a_gpu() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (1300, 8, 8, 3), dtype=np.uint8)
    arriving = Arriving(pixels, torch.device("cuda"), start=False)
    arriving.copy()
    assert np.array_equal(arriving.resident.cpu().numpy(), pixels)


def test_reset_at_goes_back_to_the_source() -> None:
    twice = np.tile(np.arange(32), 2)
    kwargs = {
        "images": image_set(),
        "order": twice,
        "batch_size": 16,
        "scenario": "reset-each",
        "seed": 0,
        "digest": "",
    }
    entropies = []
    for reset_at in ((32,), ()):
        m = method(filter_entropy=False, filter_plpd=False)
        records = list(adapt(m, Stream(**kwargs, reset_at=reset_at)))
        entropies.append([r.entropy[0] for r in records])
    np.testing.assert_array_equal(entropies[0][2], entropies[0][0])
    assert not np.array_equal(entropies[1][2], entropies[1][0])


def test_a_stream_resumes_in_the_middle() -> None:
    through = list(adapt(method(), stream()))
    m = method()
    first = [next(records) for records in [adapt(m, stream(), block=1)] for _ in range(3)]
    state = m.state_dict()
    resumed = method()
    resumed.load_state_dict(state)
    rest = list(adapt(resumed, stream(), start_step=3))
    for one, other in zip(through, first + rest, strict=True):
        np.testing.assert_array_equal(one.entropy, other.entropy)


def test_streams_of_different_lengths_are_refused() -> None:
    short = dataclasses.replace(stream(1), order=np.arange(50))
    with pytest.raises(ConfigError, match="one length"):
        next(adapt(method(2), [stream(0), short]))
