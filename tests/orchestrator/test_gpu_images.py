"""Image sets on a device within a budget: those that runs read count, and what has no room stays on the host."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch

from deyo.arriving import Arriving, _upload
from deyo.streams.images import concatenate
from deyo.types import ImageSet
from orchestrator import gpu_images
from orchestrator.gpu_images import GpuImages

SIZE = 10 * 4 * 4 * 3


def image_set(name: str, images: int = 10) -> ImageSet:
    pixels = np.random.default_rng(ord(name)).integers(0, 256, (images, 4, 4, 3), dtype=np.uint8)
    return ImageSet(name=name, pixels=pixels, labels=np.arange(images))


class Shelf:
    """``GpuImages`` with room for ``sets`` sets, on the CPU's memory; ``made`` counts what was read."""

    def __init__(self, sets: float) -> None:
        self.images = GpuImages(torch.device("cpu"), sets * SIZE)
        self.made: list[str] = []

    def get(self, name: str) -> ImageSet:
        def make() -> ImageSet:
            self.made.append(name)
            return image_set(name)

        return self.images.get(name, make)


def there(images: ImageSet) -> bool:
    return isinstance(images.pixels, torch.Tensor | Arriving)


def test_sets_that_nobody_reads_leave_in_order_of_use() -> None:
    shelf = Shelf(3)
    for name in "abcabd":
        assert there(shelf.get(name))
    assert shelf.images.used == 3 * SIZE
    for name in "abdc":
        shelf.get(name)
    assert "".join(shelf.made) == "abcdc"  # c was the oldest when d came


def test_sets_that_are_read_keep_their_room_and_the_rest_stays_on_the_host() -> None:
    shelf = Shelf(3)
    read = [shelf.get(name) for name in "abcde"]
    assert [there(images) for images in read] == [True, True, True, False, False]
    assert shelf.images.used == 3 * SIZE
    for name, images in zip("abcde", read):
        np.testing.assert_array_equal(np.asarray(images.pixels), image_set(name).pixels)
    assert shelf.get("a").pixels is read[0].pixels
    del read, images
    assert there(shelf.get("d"))
    assert shelf.images.used == 3 * SIZE


def test_what_was_let_go_counts_as_long_as_it_is_read() -> None:
    shelf = Shelf(3)
    read = shelf.get("a")
    shelf.images.clear()
    assert shelf.images.used == SIZE
    del read
    assert shelf.images.used == 0


def test_a_set_on_the_host_is_one_to_all_who_read_it() -> None:
    shelf = Shelf(1.9)
    one, other = shelf.get("a"), shelf.get("a")
    assert one.pixels is other.pixels
    del one, other
    shelf.get("a")
    assert shelf.made == ["a", "a"]


def test_a_set_of_more_than_half_the_room_stays_on_the_host() -> None:
    assert not there(Shelf(1.9).get("a"))


def test_several_sources_end_to_end_are_placed_like_one_array() -> None:
    """What mixed and continual streams read."""
    parts = [image_set(name) for name in "ab"]
    joined = concatenate(parts, ["a", "b"])
    placed = Shelf(6).images.get("joined", lambda: joined)
    assert there(placed)
    np.testing.assert_array_equal(np.asarray(placed.pixels), np.concatenate([part.pixels for part in parts]))


def test_a_device_that_is_full_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(gpu_images.torch, "empty", full)
    shelf = Shelf(3)
    assert not there(shelf.get("a"))
    assert shelf.images.used == 0


def test_a_large_set_that_nobody_waits_for_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread stops in the middle, and the room is free."""
    monkeypatch.setattr("deyo.arriving.CHUNK", 2)
    monkeypatch.setattr(gpu_images, "ARRIVING_BYTES", SIZE)
    copied: list[int] = []
    shelf = Shelf(3)

    class Slow(np.ndarray):
        """The reader goes while the second chunk is copied."""

        def __getitem__(self, rows: object) -> np.ndarray:
            copied.append(1)
            if len(copied) == 2:
                read.clear()
                shelf.images.clear()
            return super().__getitem__(rows)

    monkeypatch.setattr("deyo.arriving.threading.Thread.start", lambda self: None)
    made = image_set("a")
    slow = ImageSet(name="a", pixels=made.pixels.view(Slow), labels=made.labels)
    read = [shelf.images.get("a", lambda: slow)]
    pixels = read[0].pixels
    assert isinstance(pixels, Arriving)
    assert pixels.resident is None
    held = weakref.ref(pixels)
    del pixels
    _upload(held)
    assert held() is None
    assert len(copied) == 2
    assert shelf.images.used == 0
