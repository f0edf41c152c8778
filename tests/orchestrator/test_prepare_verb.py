"""``deyo-sweep prepare``: a spec's data as arrays, with plain lines, JSON, and errors that do not stop the rest."""

from __future__ import annotations

import json

import numpy as np
import pytest
from birds import SPEC as SPEC_OF_BIRDS
from birds import waterbirds_tree
from PIL import Image

from deyo import cache
from orchestrator.cli import main

SPEC = """
name: two-kinds
seeds: [0, 1]
runs:
  - benchmark: digits-c
    corruptions: [contrast, fog]
    severities: [2]
    models: [small-resnet-bn]
    methods: [no-adapt, {method}]
"""


@pytest.fixture
def spec(tmp_path, monkeypatch):
    monkeypatch.setenv("DEYO_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC.replace("{method}", "tent"))
    return file


def test_prepare_builds_each_array_once(spec, tmp_path, capsys):
    assert main.run(["prepare", str(spec)]) == 0
    said = capsys.readouterr().out
    assert "digits-c/generated/contrast/2: ready, 1,000 images" in said
    assert "two-kinds: 3 array(s) ready, 0 not" in said
    arrays = sorted(path.parent.parent.name for path in (tmp_path / "cache").rglob("generated/fog/*/*/pixels.npy"))
    assert arrays == ["2"]
    stamp = next((tmp_path / "cache").rglob("generated/fog/*/*/pixels.npy")).stat().st_mtime_ns
    assert main.run(["prepare", str(spec), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in report["prepared"]] == [
        "digits-c/generated/contrast/2",
        "digits-c/generated/fog/2",
        "digits-c/train",
    ]
    assert report["errors"] == []
    assert next((tmp_path / "cache").rglob("generated/fog/*/*/pixels.npy")).stat().st_mtime_ns == stamp


def test_missing_training_images_of_a_network_that_is_to_be_pretrained_are_said(spec, tmp_path, capsys, monkeypatch):
    waterbirds_tree(tmp_path / "birds", monkeypatch, absent=("train",))
    spec.write_text(SPEC_OF_BIRDS.replace("ROOT", str(tmp_path / "birds")))
    assert main.run(["prepare", str(spec)]) == 2
    said = capsys.readouterr()
    assert "waterbirds/test: ready, 4 images" in said.out
    assert "waterbirds train: 4 images named in metadata.csv are missing" in said.err
    assert "birds: 1 array(s) ready, 1 not" in said.out
    waterbirds_tree(tmp_path / "birds", monkeypatch)
    assert main.run(["prepare", str(spec)]) == 0
    assert "waterbirds/train: ready, 4 images" in capsys.readouterr().out


def test_eata_s_clean_images_are_prepared_too(spec, capsys):
    spec.write_text(SPEC.replace("{method}", "eata"))
    assert main.run(["prepare", str(spec)]) == 0
    said = capsys.readouterr().out
    assert said.count("digits-c/train: ready, 797 images") == 1, "one array for EATA and for pretraining"


def test_wrong_data_is_reported_and_the_rest_prepared(spec, tmp_path, capsys):
    folder = tmp_path / "pictures"
    for name, size in (("a/1.png", 60), ("b/2.png", 60)):
        (folder / name).parent.mkdir(parents=True)
        Image.fromarray(np.zeros((size, size, 3), dtype=np.uint8)).save(folder / name)
    (folder / "b/2.png").write_bytes((folder / "b/2.png").read_bytes()[:40])
    text = spec.read_text() + (
        "  - benchmark: image-folder\n"
        "    benchmark_options: {image_size: 32, resize: 36, num_classes: 1000}\n"
        "    corruptions: [contrast]\n    severities: [1]\n"
        "    models: [resnet50-bn]\n    methods: [no-adapt]\n"
        f"data: {{image-folder: {folder}}}\n"
    )
    spec.write_text(text)
    assert main.run(["prepare", str(spec)]) == 2
    said = capsys.readouterr()
    assert "b/2.png" in said.err
    assert "--skip-bad" in said.err
    assert "two-kinds: 3 array(s) ready, 1 not" in said.out
    assert main.run(["prepare", str(spec), "--skip-bad"]) == 0
    assert "1 images, 1 left out" in capsys.readouterr().out


def test_arrays_that_the_disk_has_no_room_for_are_not_said_to_be_ready(spec, tmp_path, capsys, monkeypatch):
    assert main.run(["prepare", str(spec), "--set", "runs[0].corruptions=[fog]"]) == 0
    monkeypatch.setattr(cache, "free_bytes", lambda path: 1000)
    capsys.readouterr()
    assert main.run(["prepare", str(spec)]) == 0
    said = capsys.readouterr()
    assert "digits-c/generated/fog/2: ready, 1,000 images" in said.out
    assert "digits-c/generated/contrast/2: read directly, not kept, 1,000 images" in said.out
    assert "two-kinds: 2 array(s) ready, 1 read directly for lack of room, 0 not" in said.out
    assert "warning: digits-c/generated/contrast/2: the prepared array needs 0.07 GB" in said.err
    assert main.run(["prepare", str(spec), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["prepared"]
    assert [row["name"] for row in rows if row["read_directly"]] == ["digits-c/generated/contrast/2"]


def test_realised_correlations_are_printed(spec, capsys):
    spec.write_text(
        "name: colours\nruns:\n  - benchmark: colored-digits\n    scenario: biased\n"
        "    models: [resnet18-bn]\n    methods: [no-adapt]\n"
    )
    assert main.run(["prepare", str(spec)]) == 0
    said = capsys.readouterr().out
    assert "colored-digits train2: the colour follows the clean label in 71.62% and the noisy one in 90.82%" in said
