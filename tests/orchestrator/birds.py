"""Waterbirds in small: a spec of it, and a few images in its layout."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deyo.benchmarks.waterbirds import Waterbirds

SPEC = """\
name: birds
runs:
  - benchmark: waterbirds
    scenario: biased
    models: [small-resnet-bn]
    methods: [no-adapt]
data: {waterbirds: ROOT}
"""
COUNTS = {"train": (2, 1, 0, 1), "val": (1, 0, 0, 0), "test": (1, 1, 1, 1)}


def waterbirds_tree(root: Path, monkeypatch: pytest.MonkeyPatch, absent: tuple[str, ...] = ()) -> Path:
    """A few birds, which Waterbirds then expects; those of the splits ``absent`` are named but not there."""
    monkeypatch.setattr(Waterbirds, "COUNTS", COUNTS)
    root.mkdir(parents=True, exist_ok=True)
    with (root / "metadata.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("img_filename", "y", "split", "place"))
        for number, (split, sizes) in enumerate(COUNTS.items()):
            for bird, group in enumerate(np.repeat(range(4), sizes).tolist()):
                name = f"{split}-{bird}.png"
                table.writerow((name, group // 2, number, group % 2))
                if split not in absent:
                    Image.new("RGB", (40, 30), (60 * bird, 80 * number, 0)).save(root / name)
    return root
