"""ImageNet and its shifted versions on tiny trees of their layouts: what is read, and what is refused."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
from benchmark_trees import WNIDS, imagenet_c_tree, opened, save
from PIL import Image

from deyo import cache
from deyo.benchmarks import (
    benchmark_info,
    image_folder,
    imagenet,
    imagenet_c,
    imagenet_r,
    listing,
    open_benchmark,
    visda,
)
from deyo.types import ConfigError, DataError


@pytest.fixture
def small_imagenet(monkeypatch):
    """Three classes of two images instead of 1,000 of 50."""
    for module in (imagenet, imagenet_c, imagenet_r, visda, image_folder):
        monkeypatch.setattr(module, "imagenet_wnids", lambda: WNIDS)
    for module in (imagenet_c.ImageNetC, imagenet.ImageNet):
        monkeypatch.setattr(module, "PER_CLASS", 2)


def test_imagenet_c_is_read_in_torchvision_s_order(small_imagenet, tmp_path):
    root = imagenet_c_tree(tmp_path / "data")
    images = opened("imagenet-c", tmp_path).images("fog", 3)
    assert images.labels.tolist() == [0, 0, 1, 1, 2, 2]
    with Image.open(root / "fog/3/n02/ILSVRC2012_val_00000001.JPEG") as first:
        assert np.array_equal(images.pixels[2], np.asarray(first.convert("RGB")))
    assert images.name == "imagenet-c/fog/3"


def test_imagenet_c_may_lie_in_the_tar_files_folders(small_imagenet, tmp_path):
    imagenet_c_tree(tmp_path / "data" / "weather")
    assert len(opened("imagenet-c", tmp_path).images("fog", 3)) == 6


def test_imagenet_c_refuses_a_missing_image(small_imagenet, tmp_path):
    root = imagenet_c_tree(tmp_path / "data")
    (root / "fog/3/n02/ILSVRC2012_val_00000001.JPEG").unlink()
    with pytest.raises(DataError, match=r"5 images, expected 6 \(2 for each class\): n02 has 1"):
        opened("imagenet-c", tmp_path).images("fog", 3)


def test_imagenet_c_refuses_missing_and_foreign_classes(small_imagenet, tmp_path):
    root = imagenet_c_tree(tmp_path / "data")
    (root / "fog/3/n03").rename(root / "fog/3/n99")
    with pytest.raises(DataError, match="missing n03 not of this benchmark n99"):
        opened("imagenet-c", tmp_path).images("fog", 3)
    with pytest.raises(DataError, match="no folder"):
        opened("imagenet-c", tmp_path).images("snow", 3)


def test_imagenet_c_refuses_a_severity_linked_twice(small_imagenet, tmp_path):
    root = imagenet_c_tree(tmp_path / "data")
    os.symlink(root / "fog/3", root / "fog/5")
    with pytest.raises(DataError, match="fog 3 and fog 5 are one folder"):
        opened("imagenet-c", tmp_path).images("fog", 5)
    with pytest.raises(DataError, match="fog 5 and fog 3 are one folder"):
        opened("imagenet-c", tmp_path).images("fog", 3)


def test_imagenet_c_refuses_a_severity_copied_twice(small_imagenet, tmp_path):
    root = imagenet_c_tree(tmp_path / "data")
    shutil.copytree(root / "fog/3", root / "fog/5")
    with pytest.raises(DataError, match="same images"):
        opened("imagenet-c", tmp_path).images("fog", 5)
    shutil.rmtree(root / "fog/5")
    imagenet_c_tree(root, severity=5, seed=1000)
    assert opened("imagenet-c", tmp_path).images("fog", 5).fingerprint != (
        opened("imagenet-c", tmp_path).images("fog", 3).fingerprint
    )


def test_imagenet_c_refuses_another_size(small_imagenet, tmp_path):
    for wnid in WNIDS:
        for k in (1, 2):
            save(tmp_path / f"data/fog/3/{wnid}/{k}.JPEG", k, (299, 299))
    with pytest.raises(DataError, match="299x299 pixels, expected 224x224"):
        opened("imagenet-c", tmp_path).images("fog", 3)


def test_one_image_of_another_size_or_cut_short_is_named(small_imagenet, tmp_path):
    root = imagenet_c_tree(tmp_path / "data")
    save(root / "fog/3/n02/ILSVRC2012_val_00000001.JPEG", 1, (224, 200))
    with pytest.raises(DataError, match=r"n02/ILSVRC2012_val_00000001.JPEG \(expected 224x224 pixels, found 224x200"):
        opened("imagenet-c", tmp_path).images("fog", 3)
    cut = root / "fog/3/n03/ILSVRC2012_val_00000002.JPEG"
    cut.write_bytes(cut.read_bytes()[:2000])
    with pytest.raises(DataError, match=r"2 unreadable .*--skip-bad.*n03/ILSVRC2012_val_00000002.JPEG.*truncated"):
        opened("imagenet-c", tmp_path).images("fog", 3)
    images = opened("imagenet-c", tmp_path, skip_bad=True).images("fog", 3)
    assert images.skipped == 2
    assert images.labels.tolist() == [0, 0, 1, 2]


def test_clean_source_images_lie_beside(small_imagenet, tmp_path, monkeypatch):
    monkeypatch.delenv("DEYO_DATA", raising=False)
    monkeypatch.delenv("DEYO_DATA_IMAGENET", raising=False)
    imagenet_c_tree(tmp_path / "data")
    with pytest.raises(DataError, match="DEYO_DATA_IMAGENET"):
        opened("imagenet-c", tmp_path).source_images()
    for wnid in WNIDS:
        for k in (1, 2):
            save(tmp_path / f"imagenet/val/{wnid}/{k}.JPEG", k, (300, 280))
    source = opened("imagenet-c", tmp_path).source_images()
    assert source.pixels.shape == (6, 224, 224, 3)
    assert source.name == "imagenet/val"


def test_clean_source_images_lie_where_their_own_benchmark_was_named(small_imagenet, tmp_path, monkeypatch):
    monkeypatch.delenv("DEYO_DATA", raising=False)
    monkeypatch.delenv("DEYO_DATA_IMAGENET", raising=False)
    imagenet_c_tree(tmp_path / "data")
    for wnid in WNIDS:
        for k in (1, 2):
            save(tmp_path / f"elsewhere/{wnid}/{k}.JPEG", k, (300, 280))
    roots = {"imagenet-c": tmp_path / "data", "imagenet": tmp_path / "elsewhere"}
    benchmark = open_benchmark("imagenet-c", roots=roots, cache=tmp_path / "cache")
    assert benchmark.root == tmp_path / "data"
    assert benchmark.source_images().pixels.shape == (6, 224, 224, 3)


def test_clean_source_images_are_read_by_as_many_threads_and_with_the_same_progress(
    small_imagenet, tmp_path, monkeypatch
):
    threads, seen = [], []
    fill = cache.fill
    monkeypatch.setattr(cache, "fill", lambda *given, **how: (threads.append(how["workers"]), fill(*given, **how))[1])
    imagenet_c_tree(tmp_path / "data")
    for wnid in WNIDS:
        for k in (1, 2):
            save(tmp_path / f"imagenet/val/{wnid}/{k}.JPEG", k, (300, 280))
    benchmark = opened("imagenet-c", tmp_path)
    cache.prepare(benchmark, [("fog", 3)], workers=3, progress=lambda *report: seen.append(report))
    benchmark.source_images()
    assert threads == [3, 3]
    assert seen == [("imagenet-c/fog/3", 6, 6), ("imagenet/val", 6, 6)]


def test_clean_source_images_are_listed_once_and_asked_for_as_the_benchmark_is(small_imagenet, tmp_path, monkeypatch):
    listed, listing = [], imagenet.ImageNet._open_source
    monkeypatch.setattr(imagenet.ImageNet, "_open_source", lambda self: (listed.append(self.ahead), listing(self))[1])
    imagenet_c_tree(tmp_path / "data")
    for wnid in WNIDS:
        for k in (1, 2):
            save(tmp_path / f"imagenet/val/{wnid}/{k}.JPEG", k, (300, 280))
    benchmark = opened("imagenet-c", tmp_path)
    benchmark.ahead = True
    monkeypatch.setattr(cache, "free_bytes", lambda path: 100 << 20)  # enough, but not for what nobody waits for
    with pytest.raises(cache.NotAheadError):
        benchmark.source_images()
    benchmark.ahead = False
    assert benchmark.source_images() is benchmark.source_images()
    assert listed == [True, False]


@pytest.mark.parametrize("name", ["digits-c", "colored-digits"])
def test_a_folder_for_images_that_come_with_a_package_is_refused(name, tmp_path):
    with pytest.raises(ConfigError, match="reads no folder"):
        open_benchmark(name, root=tmp_path)
    assert open_benchmark(name, cache=tmp_path).root is None


def test_imagenet_resizes_the_shorter_side_to_256_then_crops(small_imagenet, tmp_path):
    for wnid in WNIDS:
        for k in (1, 2):
            pixels = save(tmp_path / f"data/{wnid}/{k}.png", k, (512, 600))
    images = opened("imagenet", tmp_path).images()
    resized = np.asarray(Image.fromarray(pixels).resize((256, 300), Image.Resampling.BILINEAR))
    assert np.array_equal(images.pixels[5], resized[38:262, 16:240])


def test_imagenet_r_s_mask_is_timm_s():
    columns = imagenet_r.imagenet_r_columns()
    assert len(listing.imagenet_wnids()) == 1000
    assert len(columns) == 200
    assert (np.diff(columns) > 0).all()
    assert columns[:3].tolist() == [1, 2, 4]
    assert benchmark_info("imagenet-r").num_classes == 1000
    assert benchmark_info("imagenet-r", entropy_classes=200).num_classes == 200


def test_imagenet_r(small_imagenet, tmp_path, monkeypatch):
    monkeypatch.setattr(imagenet_r, "imagenet_r_wnids", lambda: ("n01", "n03"))
    monkeypatch.setattr(imagenet_r.ImageNetR, "TOTAL", 3)
    for number, name in enumerate(("n03/art_1.jpg", "n01/art_9.jpg", "n01/art_10.jpg")):
        save(tmp_path / "data" / name, number, (300, 240))
    benchmark = opened("imagenet-r", tmp_path)
    images = benchmark.images()
    assert images.labels.tolist() == [0, 0, 1]
    assert benchmark.class_columns.tolist() == [0, 2]
    assert benchmark.num_classes == 2
    assert benchmark.entropy_classes == 1000
    other = opened("imagenet-r", tmp_path, entropy_classes=200)
    assert other.entropy_classes == 200
    assert other.images().fingerprint == images.fingerprint
    (tmp_path / "data/n01/art_9.jpg").unlink()
    with pytest.raises(DataError, match="2 images, expected 3"):
        opened("imagenet-r", tmp_path).images()


def test_visda(small_imagenet, tmp_path, monkeypatch):
    monkeypatch.setattr(imagenet_r, "imagenet_r_wnids", lambda: ("n01", "n03"))
    monkeypatch.setattr(visda.VisDA2021, "CORRUPTED", 2)
    monkeypatch.setattr(visda.VisDA2021, "RENDITIONS", 1)
    folder = tmp_path / "data" / "val_data" / "imagenet_c_and_r"
    for name in ("n02/ILSVRC2012_val_00000001.JPEG", "n03/ILSVRC2012_val_00000002.JPEG", "n03/art_1.jpg"):
        save(folder / name, 1)
    everything = opened("visda-2021", tmp_path)
    assert everything.images().labels.tolist() == [1, 2, 2]
    assert everything.class_columns is None
    assert everything.num_classes == 1000
    cut = opened("visda-2021", tmp_path, classes=200)
    assert cut.images().labels.tolist() == [1, 1]
    assert cut.class_columns.tolist() == [0, 2]
    save(folder / "n02/art_3.jpg", 1)
    with pytest.raises(DataError, match="2 corrupted images, 2 renditions; expected 2 corrupted"):
        opened("visda-2021", tmp_path).images()


def test_image_folder_with_imagenet_s_classes(small_imagenet, tmp_path):
    save(tmp_path / "data/n03/x.jpg", 0)
    save(tmp_path / "data/n01/x.jpg", 1)
    benchmark = opened("image-folder", tmp_path, classes="imagenet")
    assert benchmark.images_clean().labels.tolist() == [0, 2]
    assert benchmark.num_classes == 1000
    save(tmp_path / "data/cats/x.jpg", 1)
    with pytest.raises(DataError, match="no ImageNet class"):
        opened("image-folder", tmp_path, classes="imagenet").images_clean()
