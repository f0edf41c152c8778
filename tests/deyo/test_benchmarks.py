"""The registry of benchmarks, and those on bundled digits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from benchmark_trees import opened

from deyo.benchmarks import base, benchmark_info, benchmark_names, open_benchmark, registry
from deyo.benchmarks.info import find_root
from deyo.benchmarks.sources import CorruptedSource
from deyo.cache import prepare
from deyo.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt, jpeg_round_trip
from deyo.types import ConfigError, DataError


def test_every_benchmark_tells_its_facts_without_data():
    assert {"imagenet-c", "imagenet-r", "visda-2021", "waterbirds", "colored-mnist", "colored-digits"} <= set(
        benchmark_names()
    )
    assert {"digits-c", "cifar10-c", "cifar10-jpeg", "image-folder"} <= set(benchmark_names())
    for name in benchmark_names():
        info = benchmark_info(name)
        assert info.name == name
        assert info.scenarios
    assert benchmark_info("imagenet-c").corruptions == CORRUPTIONS + EXTRA_CORRUPTIONS
    assert not benchmark_info("imagenet-c").generated
    assert benchmark_info("image-folder").generated
    assert benchmark_info("waterbirds").group_names == (
        "landbird-land",
        "landbird-water",
        "waterbird-land",
        "waterbird-water",
    )


def test_wrong_names_and_options_are_explained():
    with pytest.raises(ConfigError, match="Did you mean imagenet-c"):
        benchmark_info("imagenet_c")
    with pytest.raises(ConfigError, match="Did you mean recipe"):
        benchmark_info("colored-mnist", recpe="paper")
    with pytest.raises(ConfigError, match="official"):
        benchmark_info("colored-mnist", recipe="theirs")
    with pytest.raises(ConfigError, match="numpy_seed"):
        benchmark_info("colored-mnist", numpy_seed="2024")
    with pytest.raises(ConfigError, match="num_classes"):
        benchmark_info("image-folder", num_classes=1)


def test_an_installed_package_can_bring_a_benchmark(tmp_path, monkeypatch):
    package = tmp_path / "site" / "their_benchmark.py"
    package.parent.mkdir()
    package.write_text(
        "from deyo.benchmarks.digits_c import DigitsC\n"
        "from dataclasses import replace\n"
        "class Theirs(DigitsC):\n"
        "    @staticmethod\n"
        "    def describe(**options):\n"
        "        return replace(DigitsC.describe(**options), name='their-digits')\n"
    )
    described = tmp_path / "site" / "their_benchmark-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: their-benchmark\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[deyo.benchmarks]\ntheir-digits = their_benchmark:Theirs\n")
    monkeypatch.syspath_prepend(package.parent)
    registry._announced.cache_clear()
    try:
        assert benchmark_names()[-1] == "their-digits"
        opened_benchmark = open_benchmark("their-digits", cache=tmp_path / "cache")
        assert opened_benchmark.images("contrast", 1).name == "their-digits/generated/contrast/1"
    finally:
        registry._announced.cache_clear()


def test_missing_data_says_what_to_set(tmp_path, monkeypatch):
    monkeypatch.delenv("DEYO_DATA", raising=False)
    monkeypatch.delenv("DEYO_DATA_IMAGENET_C", raising=False)
    with pytest.raises(DataError, match="DEYO_DATA_IMAGENET_C"):
        open_benchmark("imagenet-c", cache=tmp_path).images("fog", 1)
    with pytest.raises(DataError, match="not a directory"):
        opened("imagenet-c", tmp_path).images("fog", 1)


def test_data_is_found_by_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("DEYO_DATA", str(tmp_path))
    monkeypatch.delenv("DEYO_DATA_IMAGENET_C", raising=False)
    assert find_root("imagenet-c", None) == tmp_path / "imagenet-c"
    monkeypatch.setenv("DEYO_DATA_IMAGENET_C", "/elsewhere")
    assert find_root("imagenet-c", None) == Path("/elsewhere")
    assert find_root("imagenet-c", "/given") == Path("/given")


class MadeAnywhere(CorruptedSource):
    """As if there were a GPU, which rounds one level of one image to another than the CPU does."""

    def __init__(self, *given, device="cpu", **more):
        super().__init__(*given, **more)
        self.kind = device

    def read(self, indices):
        pixels, bad = super().read(indices)
        pixels[indices == 7, 0, 0, 0] ^= self.kind.startswith("cuda")
        return pixels, bad


def test_corruptions_made_on_a_gpu_have_a_fingerprint_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(base, "CorruptedSource", MadeAnywhere)

    def prepared(cache, device):
        return prepare(open_benchmark("digits-c", cache=tmp_path / cache), [("contrast", 5)], device=device)[0]

    cpu, gpu = prepared("one", "cpu"), prepared("two", "cuda:0")
    assert (np.asarray(cpu.pixels) != np.asarray(gpu.pixels)).sum() == 1
    assert cpu.fingerprint != gpu.fingerprint
    # What is there is taken: a run, which makes corruptions on the CPU, reads what the GPU prepared.
    assert open_benchmark("digits-c", cache=tmp_path / "two").images("contrast", 5).fingerprint == gpu.fingerprint
    assert prepared("one", "cuda").fingerprint == cpu.fingerprint
    assert len(list(tmp_path.rglob("contrast/5/*/meta.json"))) == 2


def test_arrays_that_were_made_on_a_cpu_stay_what_they_are(tmp_path):
    made = open_benchmark("digits-c", cache=tmp_path).recipe("contrast", 5)
    assert made.config_hash == "b03dc9b32e640add3cb0799f3258fe157a040456ca597c03a64fdb63e080e2c4"
    folder = open_benchmark("image-folder", cache=tmp_path, num_classes=3)
    assert folder.recipe("fog", 1).config_hash == "2f239f75db827c516710c28ca921894ded4a17a2e67be319f2b7230aefeba266"
    folder.device = "cuda"
    assert folder.recipe("fog", 1).config_hash != "2f239f75db827c516710c28ca921894ded4a17a2e67be319f2b7230aefeba266"
    assert folder.recipe(None, None).config == open_benchmark("image-folder", num_classes=3).recipe(None, None).config


def test_digits_c(tmp_path):
    benchmark = open_benchmark("digits-c", cache=tmp_path)
    train, clean = benchmark.train_images(), benchmark.images_clean()
    assert (len(train), len(clean)) == (797, 1000)
    noisy = benchmark.images("gaussian_noise", 5)
    assert noisy.pixels.shape == (1000, 32, 32, 3)
    assert np.array_equal(noisy.labels, clean.labels)
    assert set(noisy.labels) == set(range(10))
    some = np.array([0, 500, 999])
    again = corrupt(torch.from_numpy(clean.pixels[some]), "gaussian_noise", 5, seed=0, indices=torch.from_numpy(some))
    assert np.array_equal(jpeg_round_trip(again, 85).numpy(), noisy.pixels[some])
    assert len({benchmark.images("gaussian_noise", s).fingerprint for s in (4, 5)}) == 2
    with pytest.raises(ConfigError, match="fog"):
        benchmark.images("fogg", 5)
    with pytest.raises(ConfigError, match="severity"):
        benchmark.images("fog", 6)
    with pytest.raises(ConfigError, match="no corruption None"):
        benchmark.images()


def test_digits_c_options_change_the_images(tmp_path):
    usual = open_benchmark("digits-c", cache=tmp_path).images("contrast", 3)
    weaker = open_benchmark("digits-c", cache=tmp_path, constants="cifar").images("contrast", 3)
    assert weaker.fingerprint != usual.fingerprint
    assert weaker.pixels[:].std() > usual.pixels[:].std()
    exact = open_benchmark("digits-c", cache=tmp_path, jpeg_quality=0)
    clean = exact.images_clean()
    made = corrupt(torch.from_numpy(np.array(clean.pixels)), "contrast", 3, seed=0, indices=torch.arange(1000))
    assert np.array_equal(exact.images("contrast", 3).pixels, made.numpy())
    with pytest.raises(ConfigError, match="jpeg_quality is 100"):
        benchmark_info("digits-c", jpeg_quality=100)


def test_colored_digits(tmp_path):
    benchmark = open_benchmark("colored-digits", cache=tmp_path)
    test, train = benchmark.images(), benchmark.train_images()
    assert (len(test), len(train)) == (599, 1198)
    red = test.pixels[:, :, :, 0].any(axis=(1, 2))
    green = test.pixels[:, :, :, 1].any(axis=(1, 2))
    assert (red ^ green).all()
    assert not test.pixels[:, :, :, 2].any()
    assert np.array_equal(test.groups, 2 * test.labels + red)
    assert benchmark.train_group_sizes == tuple(np.bincount(train.groups))
    agreement = benchmark.correlations()
    assert agreement["train2"]["noisy"] > 0.85 > 0.2 > agreement["test"]["noisy"]
