"""Prepared arrays: built once, resumed, waited for, refused, and done without where the disk is full."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from deyo import cache as cache_module
from deyo import cache_build
from deyo.cache import NotAheadError, PreparedWarning, Recipe, digest, open_images, prepare
from deyo.cache_build import CHUNK, locked
from deyo.types import DataError

COUNT = 5 * CHUNK + 7


class CountingSource:
    """``COUNT`` tiny images whose pixels are their index; notes what is read in a file, one line a chunk."""

    def __init__(self, log: Path, *, bad: dict[int, str] | None = None, stop_at: int | None = None, pause: float = 0):
        self.shape = (COUNT, 4, 4, 3)
        self.labels = np.arange(COUNT, dtype=np.int64) % 10
        self.groups = self.labels % 2
        self.fingerprint = digest("source")
        self.skipped = 0
        self.log, self.bad, self.stop_at, self.pause = log, bad or {}, stop_at, pause

    def read(self, indices):
        time.sleep(self.pause)
        if self.stop_at is not None and self.stop_at in indices:
            raise RuntimeError("stopped")
        with self.log.open("a") as log:
            log.write(f"{indices[0]}\n")
        pixels = np.broadcast_to((indices % 251).astype(np.uint8)[:, None, None, None], (len(indices), 4, 4, 3))
        return pixels, {p: self.bad[int(i)] for p, i in enumerate(indices) if int(i) in self.bad}


def recipe(tmp_path: Path, **how) -> Recipe:
    return Recipe(
        name="toy/part", config={"version": 1}, open=lambda: CountingSource(tmp_path / "log", **how), root=tmp_path
    )


def reads(tmp_path: Path) -> list[int]:
    log = tmp_path / "log"
    return sorted(map(int, log.read_text().split())) if log.is_file() else []


def test_an_array_is_read_once_and_is_memory_mapped(tmp_path):
    first = open_images(recipe(tmp_path), tmp_path / "cache", workers=2)
    assert isinstance(first.pixels, np.memmap)
    assert first.pixels.shape == (COUNT, 4, 4, 3)
    assert np.array_equal(first.pixels[:, 0, 0, 0], np.arange(COUNT) % 251)
    assert np.array_equal(first.groups, first.labels % 2)
    assert reads(tmp_path) == [k * CHUNK for k in range(6)]
    second = open_images(recipe(tmp_path), tmp_path / "cache")
    assert second.fingerprint == first.fingerprint
    assert len(reads(tmp_path)) == 6
    assert not list((tmp_path / "cache").rglob("*.partial"))


def test_the_fingerprint_follows_source_and_config(tmp_path):
    one = open_images(recipe(tmp_path), tmp_path / "cache")
    other = Recipe(name="toy/part", config={"version": 2}, open=recipe(tmp_path).open, root=tmp_path)
    assert open_images(other, tmp_path / "cache").fingerprint != one.fingerprint

    def changed():
        source = CountingSource(tmp_path / "log")
        source.fingerprint = digest("another source")
        return source

    third = Recipe(name="toy/part", config={"version": 1}, open=changed, root=tmp_path)
    assert open_images(third, tmp_path / "cache").fingerprint != one.fingerprint


def test_progress_reaches_the_total(tmp_path):
    seen = []
    open_images(recipe(tmp_path), tmp_path / "cache", progress=lambda *report: seen.append(report))
    assert seen[-1] == ("toy/part", COUNT, COUNT)


def test_an_interrupted_build_goes_on_where_it_stopped(tmp_path):
    with pytest.raises(RuntimeError, match="stopped"):
        open_images(recipe(tmp_path, stop_at=3 * CHUNK), tmp_path / "cache", workers=1)
    # What was finished and marked before the stop is not read again.
    partial = next((tmp_path / "cache").rglob("*.partial"))
    marks = np.memmap(partial / "done.bin", dtype=np.uint8, mode="r+")
    marks[:] = [1, 1, 1, 0, 0, 0]
    marks.flush()
    (tmp_path / "log").unlink()
    images = open_images(recipe(tmp_path), tmp_path / "cache")
    assert reads(tmp_path) == [3 * CHUNK, 4 * CHUNK, 5 * CHUNK]
    assert np.array_equal(images.pixels[:, 0, 0, 0], np.arange(COUNT) % 251)


def _build_slowly(folder: str) -> None:
    path = Path(folder)
    open_images(recipe(path, pause=0.2), path / "cache", workers=1)


def test_a_killed_build_is_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_build, "_FLUSH_SECONDS", 0.05)
    child = multiprocessing.get_context("fork").Process(target=_build_slowly, args=(str(tmp_path),))
    child.start()
    deadline = time.monotonic() + 20
    while len(reads(tmp_path)) < 4 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    before = len(reads(tmp_path))
    assert 4 <= before <= 6
    images = open_images(recipe(tmp_path), tmp_path / "cache")
    assert np.array_equal(images.pixels[:, 0, 0, 0], np.arange(COUNT) % 251)
    assert len(reads(tmp_path)) < before + 6


def test_a_second_process_waits_instead_of_repeating(tmp_path):
    child = multiprocessing.get_context("fork").Process(target=_build_slowly, args=(str(tmp_path),))
    child.start()
    deadline = time.monotonic() + 20
    while not reads(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.01)
    seen = []
    images = open_images(recipe(tmp_path), tmp_path / "cache", progress=lambda *report: seen.append(report))
    child.join(20)
    assert child.exitcode == 0
    assert seen == [("toy/part", -1, COUNT)]  # told that it waits, built nothing
    assert len(reads(tmp_path)) == 6
    assert len(images) == COUNT


def test_the_lock_is_exclusive_and_freed(tmp_path):
    file, waits, order = tmp_path / "x.lock", threading.Event(), []

    def second() -> None:
        with locked(file, waits.set):
            order.append("second")

    thread = threading.Thread(target=second)
    with locked(file):
        thread.start()
        assert waits.wait(20)  # it found the lock taken
        thread.join(0.2)
        assert not order  # and did not go on
        order.append("first")
    thread.join(20)
    assert order == ["first", "second"]
    with locked(file, lambda: order.append("waited")):
        assert order == ["first", "second"]


def test_unreadable_images_are_named(tmp_path):
    bad = {3: "a/3.jpg (truncated)", 300: "a/300.jpg (truncated)"}
    with pytest.raises(DataError, match=r"--skip-bad.*a/3\.jpg \(truncated\)"):
        open_images(recipe(tmp_path, bad=bad), tmp_path / "cache", workers=1)


def test_skipped_images_are_left_out_and_counted(tmp_path):
    bad = {3: "a/3.jpg (truncated)", 300: "a/300.jpg (truncated)"}
    images = open_images(recipe(tmp_path, bad=bad), tmp_path / "cache", skip_bad=True)
    assert images.skipped == 2
    kept = np.setdiff1d(np.arange(COUNT), [3, 300])
    assert np.array_equal(images.pixels[:, 0, 0, 0], kept % 251)
    assert np.array_equal(images.labels, kept % 10)
    assert np.array_equal(images.groups, kept % 10 % 2)
    again = open_images(recipe(tmp_path, bad=bad), tmp_path / "cache", skip_bad=True)
    assert again.fingerprint == images.fingerprint
    with pytest.raises(DataError, match=r"a/3\.jpg"):  # prepared with holes is not for those who want all
        open_images(recipe(tmp_path, bad=bad), tmp_path / "cache")
    whole = open_images(recipe(tmp_path), tmp_path / "other")
    assert whole.fingerprint != images.fingerprint


def test_a_full_disk_is_told_and_the_source_read_directly(tmp_path, monkeypatch):
    prepared = open_images(recipe(tmp_path), tmp_path / "cache")
    monkeypatch.setattr(cache_module, "free_bytes", lambda path: 1000)
    with pytest.warns(PreparedWarning, match="DEYO_CACHE"):
        direct = open_images(recipe(tmp_path), tmp_path / "other")
    assert direct.fingerprint == prepared.fingerprint
    order = np.array([COUNT - 1, 0, 77, 77])
    assert np.array_equal(direct.pixels[order], prepared.pixels[order])
    assert np.array_equal(direct.pixels[5:9], prepared.pixels[5:9])
    assert np.array_equal(direct.pixels[4], prepared.pixels[4])
    assert not (tmp_path / "other").exists()
    with pytest.warns(PreparedWarning):
        holes = open_images(recipe(tmp_path, bad={2: "2.jpg"}), tmp_path / "other", skip_bad=True)
    assert holes.skipped == 1
    assert np.array_equal(holes.pixels[:4][:, 0, 0, 0], [0, 1, 3, 4])
    with pytest.warns(PreparedWarning):
        strict = open_images(recipe(tmp_path, bad={2: "2.jpg"}), tmp_path / "other")
    with pytest.raises(DataError, match=r"2\.jpg"):
        strict.pixels[:4]


def test_a_look_reads_and_keeps_nothing(tmp_path):
    looked = open_images(recipe(tmp_path, bad={2: "2.jpg"}), tmp_path / "cache", skip_bad=True, build=False)
    assert len(looked) == COUNT
    assert not reads(tmp_path)
    assert not (tmp_path / "cache").exists()
    open_images(recipe(tmp_path), tmp_path / "cache")
    assert isinstance(open_images(recipe(tmp_path), tmp_path / "cache", build=False).pixels, np.memmap)


def test_prepared_data_needs_no_source(tmp_path):
    made = open_images(recipe(tmp_path), tmp_path / "cache")
    gone = Recipe(name="toy/part", config={"version": 1}, open=_not_here, root=tmp_path / "gone")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_images(gone, tmp_path / "cache").fingerprint == made.fingerprint
    with pytest.raises(DataError, match="not here"):
        open_images(gone, tmp_path / "empty")


def _not_here():
    raise DataError("not here")


def test_two_copies_without_a_source_are_ambiguous(tmp_path):
    open_images(recipe(tmp_path), tmp_path / "cache")
    final = next((tmp_path / "cache").rglob("meta.json")).parent
    twin = final.with_name(final.name[:13] + "0" * 12)
    twin.mkdir()
    (twin / "meta.json").write_text(json.dumps({}))
    gone = Recipe(name="toy/part", config={"version": 1}, open=_not_here, root=tmp_path / "gone")
    with pytest.raises(DataError, match="2 different"):
        open_images(gone, tmp_path / "cache")


def test_prepare_asks_for_every_condition():
    class Asked:
        corruptions, severities = ("fog", "snow"), (1, 2)

        def __init__(self):
            self.seen = []

        def images(self, corruption, severity):
            self.seen.append((corruption, severity))

    benchmark = Asked()
    prepare(benchmark)
    assert benchmark.seen == [("fog", 1), ("fog", 2), ("snow", 1), ("snow", 2)]
    benchmark.corruptions, benchmark.seen = (), []
    prepare(benchmark)
    assert benchmark.seen == [(None, None)]


def test_what_only_threads_can_read_is_not_made_ahead(tmp_path):
    """They would take the processor from the group that runs, and PyTorch's threads with it."""
    with pytest.raises(NotAheadError):
        open_images(recipe(tmp_path), tmp_path / "cache", ahead=True)
    assert not reads(tmp_path)
    made = open_images(recipe(tmp_path), tmp_path / "cache")
    assert open_images(recipe(tmp_path), tmp_path / "cache", ahead=True).fingerprint == made.fingerprint


def test_what_another_prepares_is_left_to_it(tmp_path, monkeypatch):
    monkeypatch.setattr(CountingSource, "portable", True, raising=False)
    made = open_images(recipe(tmp_path), tmp_path / "other", workers=1)
    final = next((tmp_path / "other").rglob("meta.json")).parent
    lock = tmp_path / "cache" / final.relative_to(tmp_path / "other").with_suffix(".lock")
    with locked(lock), pytest.raises(NotAheadError):
        open_images(recipe(tmp_path), tmp_path / "cache", ahead=True)
    assert made.pixels.shape[0] == COUNT


def test_what_others_have_still_to_write_counts_as_taken(tmp_path, monkeypatch):
    source = CountingSource(tmp_path / "log")
    each = COUNT * 4 * 4 * 3
    monkeypatch.setattr(cache_module, "free_bytes", lambda path: (1 << 30) + 3 * each)
    assert cache_module._much_room(tmp_path, source)
    partial = tmp_path / "prepared" / "x" / "y.partial"
    partial.mkdir(parents=True)
    with (partial / "pixels.npy").open("wb") as file:
        file.truncate(1 << 20)
    assert not cache_module._much_room(tmp_path, source)
