"""What a measured sweep needs in a folder: JPEG files, a network's weights, a spec, and its environment."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deyo.corruptions import CORRUPTIONS
from experiments.benchmarks import jpeg_tree

ROOT = Path(__file__).resolve().parents[2]
METHODS = ("no-adapt", "tent", "eata", "sar", "deyo")
FULL_IMAGES, FULL_CORRUPTIONS, FULL_SEEDS = 50_000, 15, 3
EVERYTHING = {
    "eata": {"entropy_margin": 2.0, "redundancy_margin": 2.0},
    "sar": {"entropy_margin": 2.0},
    "deyo": {"entropy_margin": 2.0, "plpd_threshold": -1.0},
}
"""Settings by which every sample is selected: the costly case."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How large the measured sweep is. ``group_size`` None leaves it to the memory model."""

    network: str
    methods: tuple[str, ...]
    corruptions: int
    seeds: int
    per_class: int
    max_images: int | None
    batch_size: int
    precision: str
    group_size: int | None
    workers: int | None = None

    @property
    def images(self) -> int:
        """Images of one run."""
        return min(1000 * self.per_class, self.max_images or 10**9)

    @property
    def runs(self) -> int:
        return len(self.methods) * self.corruptions * self.seeds


def prepare(folder: Path, shape: Shape) -> int:
    """Write everything under ``folder``; returns the number of JPEG files."""
    import torch
    from safetensors.torch import save_file

    from experiments.benchmarks.engine import build_module

    torch.manual_seed(0)
    state = {name: value.contiguous() for name, value in build_module(shape.network).state_dict().items()}
    save_file(state, folder / "network.safetensors")
    jpeg_tree.announce(folder / "site")
    (folder / "sweep.yaml").write_text(json.dumps(spec(folder, shape), indent=1))
    return jpeg_tree.make_tree(folder / "files", CORRUPTIONS[: shape.corruptions], shape.per_class)


def spec(folder: Path, shape: Shape) -> dict[str, Any]:
    """The sweep as a spec: JSON, which is YAML."""
    settings = {name: dict(values) for name, values in EVERYTHING.items() if name in shape.methods}
    if "eata" in settings:  # as many as belong to a stream of this length
        settings["eata"]["fisher_size"] = max(shape.batch_size, round(2000 * shape.images / FULL_IMAGES))
    resources = {"group_size": shape.group_size, "workers": shape.workers}
    return {
        "name": "sweep",
        "seeds": list(range(shape.seeds)),
        "precision": shape.precision,
        "max_images": shape.max_images,
        "runs": [
            {
                "benchmark": jpeg_tree.NAME,
                "benchmark_options": {"per_class": shape.per_class},
                "scenario": "mild",
                "corruptions": list(CORRUPTIONS[: shape.corruptions]),
                "severities": [5],
                "models": [f"file:network.safetensors@{shape.network}"],
                "methods": list(shape.methods),
                "batch_size": shape.batch_size,
            }
        ],
        "settings": settings,
        "data": {jpeg_tree.NAME: str(folder / "files")},
        "mlflow": {"enabled": False},
        "resources": {name: value for name, value in resources.items() if value},
    }


def environment(folder: Path, cache: str, *, gpus: int | None = None, fake_gpus: int = 0) -> dict[str, str]:
    """The environment of a sweep's process. ``gpus``: only the first so many may be seen; None: all."""
    paths = [str(folder / "site"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    found = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "DEYO_WEIGHTS": str(folder),
        "DEYO_CACHE": str(folder / cache),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "compiled"),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    found.pop("DEYO_FAKE_GPUS", None)
    if fake_gpus:
        found["DEYO_FAKE_GPUS"] = str(fake_gpus)
        found.pop("CUDA_VISIBLE_DEVICES", None)  # Ray counts these
    elif gpus is not None:
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        found["CUDA_VISIBLE_DEVICES"] = ",".join(seen[:gpus] if seen[0] else map(str, range(gpus)))
    return found
