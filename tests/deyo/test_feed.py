"""Batches on their way to the device: the thread that gathers ahead, and images that arrive meanwhile."""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from deyo import loop
from deyo.arriving import Arriving
from deyo.feed import Feed, InTurn
from deyo.types import ImageSet, StepReport, Stream

CPU = torch.device("cpu")


def image_set(seed: int, images: int = 22) -> ImageSet:
    pixels = np.random.default_rng(seed).integers(0, 256, (images, 4, 4, 3), dtype=np.uint8)
    return ImageSet(name=str(seed), pixels=pixels, labels=np.zeros(images, dtype=np.int64))


def streams_of(sets: list[ImageSet]) -> list[Stream]:
    """One stream a set: 22 images in batches of 4."""
    facts = {"batch_size": 4, "scenario": "mild", "seed": 0, "digest": "d"}
    orders = [np.random.default_rng(seed).permutation(22) for seed in range(len(sets))]
    return [Stream(images=images, order=order, **facts) for images, order in zip(sets, orders)]


def feed_with_thread(streams: list[Stream], monkeypatch: pytest.MonkeyPatch) -> Feed:
    """As on a GPU, but for pinned memory."""
    feed = Feed(InTurn(streams), CPU)
    feed.thread = ThreadPoolExecutor(1, thread_name_prefix="gathers-ahead")
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    return feed


def check_batch(feed: Feed, streams: list[Stream], pixels: list[np.ndarray], step: int) -> None:
    expected = [p[s.order[4 * step : 4 * step + 4]].transpose(0, 3, 1, 2) for s, p in zip(streams, pixels)]
    np.testing.assert_array_equal(feed.pixels(step).numpy(), np.stack(expected))


@pytest.mark.parametrize("arrives_before", [0, 1, 3, 5])
def test_images_gathered_ahead_are_those_of_the_batch_also_where_they_arrive_meanwhile(
    arrives_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = [image_set(seed) for seed in range(3)]
    pixels = [images.pixels for images in sets]
    arriving = Arriving(pixels[1], CPU, start=False)
    there = torch.from_numpy(pixels[2])
    placed = [sets[0], dataclasses.replace(sets[1], pixels=arriving), dataclasses.replace(sets[2], pixels=there)]
    streams = streams_of(placed)
    feed = feed_with_thread(streams, monkeypatch)
    gathered: list[int] = []
    gather = feed._gather
    monkeypatch.setattr(feed, "_gather", lambda step, sources: gathered.append(step) or gather(step, sources))
    assert feed.host == {0, 1}
    for step in range(6):
        if step == arrives_before:
            arriving.copy()
        check_batch(feed, streams, pixels, step)
    assert feed.host == {0}
    assert sorted(gathered) == list(range(6))  # each batch once, none beyond the last
    feed.close()
    assert not any(thread.name.startswith("gathers-ahead") for thread in threading.enumerate())


def test_when_all_have_arrived_the_host_gathers_nothing_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = [image_set(seed) for seed in range(2)]
    pixels = [images.pixels for images in sets]
    arriving = [Arriving(p, CPU, start=False) for p in pixels]
    streams = streams_of([dataclasses.replace(s, pixels=a) for s, a in zip(sets, arriving)])
    feed = feed_with_thread(streams, monkeypatch)
    check_batch(feed, streams, pixels, 0)
    for each in arriving:
        each.copy()
    check_batch(feed, streams, pixels, 1)
    assert not feed.host
    monkeypatch.setattr(feed, "_gather", lambda step, sources: pytest.fail("gathered on the host"))
    for step in range(2, 6):
        check_batch(feed, streams, pixels, step)
    feed.close()


def test_a_loop_that_is_left_in_the_middle_ends_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []

    class Watched(Feed):
        def close(self) -> None:
            closed.append(True)
            super().close()

    monkeypatch.setattr(loop, "Feed", Watched)
    values = dict.fromkeys(("entropy", "prediction", "plpd", "passed_entropy", "passed_both"), torch.zeros(1, 4))
    values |= dict.fromkeys(("forwards", "backwards", "skipped", "reset"), torch.zeros(1))
    context = SimpleNamespace(device=CPU)
    method = SimpleNamespace(context=context, step=lambda pixels: None, report=StepReport(**values))
    records = loop.adapt(method, streams_of([image_set(0)]), block=1)
    next(records)
    records.close()
    assert closed == [True]
