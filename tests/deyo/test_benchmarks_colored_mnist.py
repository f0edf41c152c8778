"""ColoredMNIST: the official recipe bit for bit, the text's recipe, and broken files."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from benchmark_trees import opened

from deyo.benchmarks import colored, colored_mnist
from deyo.types import DataError


def idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + np.array(values.shape, dtype=">i4").tobytes() + values.tobytes()


@pytest.fixture
def mnist(tmp_path, monkeypatch) -> tuple[np.ndarray, np.ndarray]:
    """60 images as MNIST's idx files, packed."""
    monkeypatch.setattr(colored_mnist.ColoredMNIST, "IMAGES", 60)
    rng = np.random.default_rng(0)
    gray = rng.integers(1, 256, (60, 28, 28), dtype=np.uint8)
    digits = rng.integers(0, 10, 60).astype(np.uint8)
    folder = tmp_path / "data" / "MNIST" / "raw"
    folder.mkdir(parents=True)
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(gray)))
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(digits))
    return gray, digits


def official_recipe(digits: np.ndarray, seed: int) -> list[tuple[int, bool]]:
    """The authors' loop, image by image: (target, red)."""
    state, third = np.random.RandomState(seed), len(digits) // 3
    made = []
    for index, digit in enumerate(digits):
        clean = noisy = 0 if digit < 5 else 1
        if state.uniform() < 0.25:
            noisy ^= 1
        red = noisy == 0
        if state.uniform() < (0.2, 0.1, 0.9)[index // third]:
            red = not red
        made.append((noisy if index < 2 * third else clean, red))
    return made


def test_colored_mnist_is_the_official_recipe_bit_for_bit(mnist, tmp_path):
    gray, digits = mnist
    benchmark = opened("colored-mnist", tmp_path, numpy_seed=7)
    test, train = benchmark.images(), benchmark.train_images()
    assert (len(train), len(test)) == (40, 20)
    expected = official_recipe(digits, 7)
    for images, first in ((train, 0), (test, 40)):
        for k in range(len(images)):
            target, red = expected[first + k]
            assert images.labels[k] == target
            assert images.groups[k] == 2 * target + red
            assert np.array_equal(images.pixels[k, :, :, 0 if red else 1], gray[first + k])
            assert not images.pixels[k, :, :, 1 if red else 0].any()


def test_the_text_s_recipe_has_no_label_noise_and_green_zeros():
    digits = np.random.default_rng(0).integers(0, 10, 30_000)
    made = colored.color(digits, recipe="paper", numpy_seed=1)
    assert np.array_equal(made.target, digits >= 5)
    agreement = colored.correlations(made)
    assert agreement["train1"]["clean"] == pytest.approx(0.8, abs=0.02)
    assert agreement["train2"]["clean"] == pytest.approx(0.8, abs=0.02)
    assert agreement["test"]["clean"] == pytest.approx(0.1, abs=0.02)
    assert made.red[(made.environment == 0) & (made.clean == 0)].mean() == pytest.approx(0.2, abs=0.02)


def test_the_official_correlations():  # golden check 14
    digits = np.random.default_rng(0).integers(0, 10, 60_000)
    agreement = colored.correlations(colored.color(digits, recipe="official", numpy_seed=2024))
    for environment, clean, noisy in (("train1", 0.65, 0.8), ("train2", 0.70, 0.9), ("test", 0.30, 0.1)):
        assert agreement[environment]["clean"] == pytest.approx(clean, abs=0.01)
        assert agreement[environment]["noisy"] == pytest.approx(noisy, abs=0.01)


def test_broken_idx_files_are_refused(mnist, tmp_path):
    labels = tmp_path / "data" / "MNIST" / "raw" / "train-labels-idx1-ubyte"
    good = labels.read_bytes()
    labels.write_bytes(good[:-1])
    with pytest.raises(DataError, match="59 bytes"):
        opened("colored-mnist", tmp_path).images()
    labels.write_bytes(b"\x00\x00\x08\x03" + good[4:])
    with pytest.raises(DataError, match="expected 00000801"):
        opened("colored-mnist", tmp_path).images()
    labels.write_bytes(good[:-1] + b"\x0b")
    with pytest.raises(DataError, match="labels go up to 11"):
        opened("colored-mnist", tmp_path).images()
    labels.unlink()
    with pytest.raises(DataError, match="no train-labels-idx1-ubyte"):
        opened("colored-mnist", tmp_path).images()
