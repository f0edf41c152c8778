"""Small trees of published layouts, for the tests of benchmarks."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
from PIL import Image

from deyo.benchmarks import open_benchmark
from deyo.types import Benchmark

WNIDS = ("n01", "n02", "n03")


def save(file: Path, seed: int, size: tuple[int, int] = (224, 224)) -> np.ndarray:
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)
    with Image.open(file) as opened:
        return np.asarray(opened.convert("RGB"))


def imagenet_c_tree(root: Path, corruption: str = "fog", severity: int = 3, seed: int = 0) -> Path:
    for c, wnid in enumerate(WNIDS):
        for k in (2, 1):
            save(root / corruption / str(severity) / wnid / f"ILSVRC2012_val_0000000{k}.JPEG", seed + 10 * c + k)
    return root


def opened(name: str, tmp_path: Path, **options) -> Benchmark:
    return open_benchmark(name, root=tmp_path / "data", cache=tmp_path / "cache", **options)


def write_csv(file: Path, rows: list[dict]) -> None:
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]))
    table.writeheader()
    table.writerows(rows)
    file.write_text(text.getvalue())
