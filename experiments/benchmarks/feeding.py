"""Feeding: JPEG files to decoded arrays, arrays to the device, and the published DataLoader beside.

    python -m experiments.benchmarks.feeding [--device cpu] [--images 4000] [--out FILE]

Images of 224×224. ``published`` is what the authors' code does for every epoch anew (PIL, ToTensor, Normalize, 2
worker processes, which is its default); ``decode once`` is what this project does, in child processes, their start
included (beside it in threads, and with 1 worker in this process); ``disk`` is how fast the array alone would be
written, which bounds it, for what is read must have reached the disk; the gathers are what each run does then, through
``deyo.loop.adapt`` with a method that computes nothing, from a memory-mapped array and, on a GPU, from an array that
is resident there. Files and arrays are in the page cache.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from deyo.benchmarks.sources import FileSource
from deyo.benchmarks.transforms import center_crop
from deyo.cache_build import CHUNK, fill
from deyo.loop import adapt
from deyo.types import ImageSet, StepReport, Stream
from experiments.benchmarks import jpeg_tree
from experiments.benchmarks.record import add_device, heading, parser_for, save

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE = 224
BATCH = 64


class NoWork:
    """A method that looks at the pixels' first values alone."""

    def __init__(self, runs: int, device: torch.device) -> None:
        self.context = SimpleNamespace(device=device)
        real = torch.zeros(runs, BATCH, device=device)
        whole, flags, counts = real.long(), real.bool(), real[:, 0].long()
        self.report = StepReport(
            entropy=real,
            prediction=whole,
            plpd=real,
            passed_entropy=flags,
            passed_both=flags,
            forwards=counts,
            backwards=counts,
            skipped=flags[:, 0],
            reset=flags[:, 0],
        )

    def step(self, pixels: torch.Tensor) -> None:
        self.report.prediction = pixels[:, :, 0, 0, 0].long()

    def reset(self) -> None:
        return


def published_feed(folder: Path, workers: int, device: torch.device, seconds: float) -> float:
    """Images/s of the published DataLoader over the image folders under ``folder``, to the device."""
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    steps = [transforms.CenterCrop(SIZE), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    data = ImageFolder(str(folder), transforms.Compose(steps))
    loader = torch.utils.data.DataLoader(
        data,
        batch_size=BATCH,
        shuffle=True,
        num_workers=workers,
        persistent_workers=True,
        pin_memory=device.type == "cuda",
    )
    done, start = 0, None
    while start is None or time.perf_counter() - start < seconds:
        for images, _ in loader:
            images.to(device, non_blocking=True)
            if start is None:  # the workers' start is not counted
                start = time.perf_counter()
                continue
            done += len(images)
            if time.perf_counter() - start >= seconds:
                break
    if device.type == "cuda":
        torch.cuda.synchronize()
    return done / (time.perf_counter() - start)


def decode(root: Path, images: int, target: Path, workers: int, *, threads: bool = False) -> float:
    """Images/s of preparing an array of the first files under ``root``, which is left at ``target``/pixels.npy.

    ``threads``: as sources are read that child processes cannot read.
    """
    files = sorted(root.rglob("*.JPEG"))[:images]
    source = FileSource(files, np.zeros(len(files), dtype=np.int64), SIZE, center_crop(SIZE), root=root)
    source.portable = not threads
    target.mkdir()
    start = time.perf_counter()
    fill("benchmark", source, target, refuse=None, workers=workers, progress=None)
    return len(files) / (time.perf_counter() - start)


def disk(array: Path, target: Path) -> float:
    """Images/s of writing the images of ``array`` (.npy) to ``target`` until they are on the disk."""
    pixels = np.load(array)
    start = time.perf_counter()
    with target.open("wb") as file:
        file.write(pixels.data)
        file.flush()
        os.fsync(file.fileno())
    return len(pixels) / (time.perf_counter() - start)


def gather(pixels: Any, runs: int, device: torch.device, seconds: float) -> float:
    """Images/s of the loop's own feeding, ``runs`` shuffled streams side by side."""
    count = pixels.shape[0] // BATCH * BATCH
    images = ImageSet(name="b", pixels=pixels, labels=np.zeros(pixels.shape[0], dtype=np.int64), fingerprint="b")
    streams = [
        Stream(
            images=images,
            order=np.random.default_rng(run).permutation(count),
            batch_size=BATCH,
            scenario="mild",
            seed=run,
            digest="",
        )
        for run in range(runs)
    ]
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in adapt(NoWork(runs, device), streams):
            pass
        done += runs * count
    if device.type == "cuda":
        torch.cuda.synchronize()
    return done / (time.perf_counter() - start)


def rows(device: torch.device, images: int, seconds: float, folder: Path) -> Iterator[dict[str, Any]]:
    """One row for each way of feeding."""
    cores = len(os.sched_getaffinity(0))
    jpeg_tree.make_tree(folder / "files", ["contrast"], -(-images // 1000))
    classes = folder / "files" / "contrast" / "5"
    for workers in sorted({2, min(8, cores), cores} - {0}):
        speed = published_feed(classes, workers, device, seconds)
        yield {"what": "published DataLoader", "workers": workers, "images_per_second": speed}
    for workers in sorted({1, cores}):
        count = images if workers == cores else max(CHUNK, images // 8)
        speed = decode(classes, count, folder / f"array{workers}", workers)
        yield {"what": "decode once", "workers": workers, "images_per_second": speed}
    speed = decode(classes, images, folder / "threads", cores, threads=True)
    yield {"what": "decode once, in threads", "workers": cores, "images_per_second": speed}
    speed = disk(folder / "threads" / "pixels.npy", folder / "written")
    yield {"what": "disk, written and synced", "workers": 1, "images_per_second": speed}
    mapped = np.load(folder / f"array{cores}" / "pixels.npy", mmap_mode="r")
    for runs in (1, 4):
        speed = gather(mapped, runs, device, seconds)
        yield {"what": "gather, memory-mapped", "runs": runs, "images_per_second": speed}
        if device.type == "cuda":
            speed = gather(torch.from_numpy(np.array(mapped)).to(device), runs, device, seconds)
            yield {"what": "gather, resident", "runs": runs, "images_per_second": speed}


def main() -> None:
    parser = parser_for(__doc__)
    add_device(parser)
    parser.add_argument("--images", type=int, help="JPEG files (default: 4000 on a GPU, 1000 on a CPU)")
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    device = torch.device(options.device)
    images = options.images or (4000 if options.device == "cuda" else 1000)
    print(heading(options.device), flush=True)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for row in rows(device, images, options.seconds, Path(folder)):
            found.append(row)
            beside = f"{row['workers']} workers" if "workers" in row else f"{row['runs']} runs side by side"
            print(f"{row['what']:24} {beside:22} {row['images_per_second']:10,.0f} img/s", flush=True)
    save(found, options.device, options.out)


if __name__ == "__main__":
    main()
