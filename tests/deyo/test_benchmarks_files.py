"""Waterbirds, CIFAR-10 and image folders on tiny trees of their layouts: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from benchmark_trees import opened, save, write_csv
from PIL import Image

from deyo.benchmarks import sources, waterbirds
from deyo.benchmarks.cifar10_c import CIFAR10C
from deyo.benchmarks.cifar10_jpeg import CIFAR10Jpeg
from deyo.corruptions import corrupt, jpeg_round_trip
from deyo.types import DataError


@pytest.fixture
def birds(tmp_path, monkeypatch) -> Path:
    counts = {"train": (2, 1, 0, 1), "val": (1, 0, 0, 0), "test": (1, 1, 1, 1)}
    monkeypatch.setattr(waterbirds.Waterbirds, "COUNTS", counts)
    root = tmp_path / "data" / "waterbird_complete95_forest2water2"
    rows = []
    for split, sizes in enumerate(counts.values()):
        for group, number in enumerate(sizes):
            for _ in range(number):
                name = f"{len(rows):03d}.Bird/{len(rows)}.jpg"
                save(root / name, len(rows), (300, 200))
                rows.append({"img_id": len(rows), "img_filename": name, "y": group // 2, "split": split})
                rows[-1] |= {"place": group % 2, "place_filename": "x"}
    write_csv(root / "metadata.csv", rows)
    return root


def test_waterbirds(birds, tmp_path):
    benchmark = opened("waterbirds", tmp_path)
    test = benchmark.images()
    assert test.groups.tolist() == [0, 1, 2, 3]
    assert test.labels.tolist() == [0, 0, 1, 1]
    with Image.open(birds / "005.Bird/5.jpg") as first:
        assert np.array_equal(test.pixels[0], np.asarray(first.convert("RGB").resize((224, 224), Image.BICUBIC)))
    assert benchmark.train_images().groups.tolist() == [0, 0, 1, 3]
    assert len(benchmark.validation_images()) == 1
    assert benchmark.source_images().fingerprint == benchmark.train_images().fingerprint
    assert benchmark.train_group_sizes == (2, 1, 0, 1)
    cropped = opened("waterbirds", tmp_path, preprocessing="group_dro").images()
    assert cropped.fingerprint != test.fingerprint


def test_the_published_group_counts_are_expected() -> None:  # golden check 14
    counts = {"train": (3498, 184, 56, 1057), "val": (467, 466, 133, 133), "test": (2255, 2255, 642, 642)}
    assert counts == waterbirds.Waterbirds.COUNTS
    assert {split: sum(c) for split, c in counts.items()} == {"train": 4795, "val": 1199, "test": 5794}


def test_waterbirds_refuses_wrong_metadata(birds, tmp_path):
    table = birds / "metadata.csv"
    good = table.read_text()
    table.write_text(good.replace("004.Bird", "x.Bird"))
    with pytest.raises(DataError, match="missing"):
        opened("waterbirds", tmp_path)._split("val").open()
    table.write_text(good.replace("\n4,004.Bird/4.jpg,0,1", "\n4,004.Bird/4.jpg,waterbird,1"))
    with pytest.raises(DataError, match="line 6: y is 'waterbird', expected 0 to 1"):
        opened("waterbirds", tmp_path).images()
    table.write_text("\n".join(good.splitlines()[:-1]))
    with pytest.raises(DataError, match=r"\(1, 1, 1, 0\).*expected \(1, 1, 1, 1\)"):
        opened("waterbirds", tmp_path).images()
    table.write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="img_filename"):
        opened("waterbirds", tmp_path).images()


@pytest.fixture
def cifar(tmp_path, monkeypatch) -> tuple[np.ndarray, np.ndarray]:
    monkeypatch.setattr(CIFAR10C, "ROWS", 4)
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    labels = np.tile(np.array([3, 1, 0, 9], dtype=np.uint8), 5)
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "fog.npy", pixels)
    np.save(tmp_path / "data" / "labels.npy", labels)
    return pixels, labels


def test_cifar10_c_severities_are_rows(cifar, tmp_path):
    pixels, labels = cifar
    benchmark = opened("cifar10-c", tmp_path)
    for severity in range(1, 6):
        images = benchmark.images("fog", severity)
        rows = slice((severity - 1) * 4, severity * 4)
        assert np.array_equal(images.pixels[:], pixels[rows])
        assert np.array_equal(images.labels, labels[rows])


def test_cifar10_c_refuses_wrong_arrays(cifar, tmp_path):
    pixels, labels = cifar
    data = tmp_path / "data"
    np.save(data / "fog.npy", pixels[:-1])
    with pytest.raises(DataError, match=r"\(19, 32, 32, 3\), expected uint8 \(20, 32, 32, 3\)"):
        opened("cifar10-c", tmp_path).images("fog", 1)
    np.save(data / "fog.npy", np.concatenate([pixels[:16], pixels[:4]]))
    with pytest.raises(DataError, match="severities 1 and 5 are the same"):
        opened("cifar10-c", tmp_path).images("fog", 1)
    np.save(data / "fog.npy", pixels)
    np.save(data / "labels.npy", np.roll(np.sort(labels), 1))
    with pytest.raises(DataError, match="five times over"):
        opened("cifar10-c", tmp_path).images("fog", 1)
    np.save(data / "labels.npy", labels + 5)
    with pytest.raises(DataError, match="expected 0 to 9"):
        opened("cifar10-c", tmp_path).images("fog", 1)
    (data / "labels.npy").write_bytes(b"no numpy file")
    with pytest.raises(DataError, match="cannot be read"):
        opened("cifar10-c", tmp_path).images("fog", 1)
    with pytest.raises(DataError, match="DEYO_DATA_CIFAR10"):
        opened("cifar10-c", tmp_path).source_images()


def test_cifar10_jpeg(tmp_path, monkeypatch):
    import pyarrow as pa
    import pyarrow.parquet as pq

    monkeypatch.setattr(CIFAR10Jpeg, "ROWS", 3)
    (tmp_path / "data").mkdir()
    encoded, decoded = [], []
    for seed in range(3):
        decoded.append(save(tmp_path / "x.jpg", seed, (32, 32)))
        encoded.append((tmp_path / "x.jpg").read_bytes())
    table = {"path": ["a", "b", "c"], "label": pa.array([5, 0, 9], pa.int8()), "image": encoded}
    pq.write_table(pa.table(table), tmp_path / "data" / "test.parquet")
    benchmark = opened("cifar10-jpeg", tmp_path)
    assert np.array_equal(benchmark.images_clean().pixels[:], np.stack(decoded))
    images = benchmark.images("contrast", 5)
    assert images.labels.tolist() == [5, 0, 9]
    assert images.name == "cifar10-jpeg/generated/contrast/5"
    table["image"] = [encoded[0], encoded[1][:100], encoded[2]]
    pq.write_table(pa.table(table), tmp_path / "data" / "test.parquet")
    with pytest.raises(DataError, match="row 1"):
        opened("cifar10-jpeg", tmp_path).images("contrast", 5)
    skipping = opened("cifar10-jpeg", tmp_path, skip_bad=True).images("contrast", 5)
    assert (len(skipping), skipping.skipped) == (2, 1)


def folder_tree(root: Path) -> None:
    for number, name in enumerate(("cat/b.jpg", "cat/a.png", "dog/deep/c.jpg", "ant/d.jpg")):
        save(root / name, number, (80, 70))
    (root / "ant" / "notes.txt").write_text("not an image")


def test_image_folder_in_torchvision_s_order(tmp_path):
    from torchvision.datasets import ImageFolder

    folder_tree(tmp_path / "data")
    benchmark = opened("image-folder", tmp_path, image_size=48, resize=56)
    clean = benchmark.images_clean()
    assert clean.labels.tolist() == ImageFolder(tmp_path / "data").targets == [0, 1, 1, 2]
    assert benchmark.num_classes == 3
    foggy = benchmark.images("fog", 2)
    made = corrupt(torch.from_numpy(np.array(clean.pixels)), "fog", 2, seed=0, indices=torch.arange(4))
    assert np.array_equal(foggy.pixels[:], jpeg_round_trip(made, 85).numpy())
    assert "generated" in foggy.name
    assert benchmark.source_images().fingerprint == clean.fingerprint


def test_image_folder_without_corruptions(tmp_path):
    folder_tree(tmp_path / "data")
    benchmark = opened("image-folder", tmp_path, image_size=48, resize=56, generate=False)
    assert benchmark.corruptions == ()
    assert len(benchmark.images()) == 4


def test_image_folder_with_a_table_of_labels(tmp_path):
    data = tmp_path / "data"
    for k in range(3):
        save(data / "images" / f"{k}.jpg", k, (60, 60))
    rows = [{"file": f"{k}.jpg", "class_index": 7 - k, "name": "x"} for k in (2, 0, 1)]
    write_csv(data / "labels.csv", rows)
    benchmark = opened("image-folder", tmp_path, image_size=32, resize=36)
    assert benchmark.images("contrast", 1).labels.tolist() == [5, 7, 6]
    assert benchmark.num_classes == 8
    with pytest.raises(DataError, match="class 7, expected 0 to 4"):
        opened("image-folder", tmp_path, image_size=32, resize=36, num_classes=5).images("contrast", 1)
    write_csv(data / "labels.csv", [*rows, {"file": "9.jpg", "class_index": 1, "name": "x"}])
    with pytest.raises(DataError, match=r"line 5: no file .*9\.jpg"):
        opened("image-folder", tmp_path, image_size=32, resize=36).images("contrast", 1)
    write_csv(data / "labels.csv", [{"file": "0.jpg", "class_index": "cat", "name": "x"}])
    with pytest.raises(DataError, match="line 2: class_index is 'cat'"):
        opened("image-folder", tmp_path, image_size=32, resize=36).images("contrast", 1)


def test_an_empty_image_folder_is_refused(tmp_path):
    (tmp_path / "data").mkdir()
    with pytest.raises(DataError, match="is empty"):
        opened("image-folder", tmp_path).images("fog", 1)
    (tmp_path / "data" / "cat").mkdir()
    with pytest.raises(DataError, match="without images"):
        opened("image-folder", tmp_path).images("fog", 1)


@pytest.mark.parametrize("root", [".", "", "/", "data", "/data", "data/"])
def test_names_in_a_fingerprint_are_relative_paths(root):
    files = [Path(root) / name for name in ("a.jpg", "n01/b c.jpg", "n01/../d.jpg")]
    assert sources._names(files, Path(root)) == [file.relative_to(Path(root)).as_posix() for file in files]
