"""Speed of the corruptions, on one core and on a GPU, beside the package ``imagecorruptions-imaug`` on one core.

    python -m experiments.benchmarks.corruptions [--device cuda] [--package FILE] [--out results/corruptions.parquet]

Milliseconds an image of 224x224 at severity 5, JPEG storage not included. On the CPU the processor's own time
counts (one thread), so that a busy machine does not show; on a GPU the clock, with synchronisation, for 512 images
that are on the device before and after. ``equal`` is the share of values that the GPU gives exactly as the CPU does.
The package's figures come from FILE (what this wrote on a machine that has it) where it cannot be imported, and stay
empty without either. Frost needs the package's photographs, which its files bring without its dependencies.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from deyo.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt
from deyo.types import DataError
from experiments.benchmarks.record import add_device, heading, parser_for, save

SEVERITY = 5
CPU_IMAGES, PACKAGE_IMAGES, GPU_IMAGES = 8, 4, 512


def pictures(count: int) -> Tensor:
    """Smooth coloured noise with fine grain, uint8 [count, 224, 224, 3]."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, 3, 14, 14, generator=generator) * 255
    smooth = torch.nn.functional.interpolate(coarse, size=224, mode="bicubic")
    grain = torch.rand(count, 3, 224, 224, generator=generator) * 40 - 20
    return (smooth + grain).clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def processor_seconds(work: Callable[[], Any], repeats: int = 3) -> float:
    """The least processor time of ``work`` in this process, after one call to warm up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def gpu_seconds(work: Callable[[], Any], repeats: int = 3) -> float:
    """The least wall time of ``work`` on the GPU, synchronised, after one call to warm up."""
    work()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def package_seconds(name: str) -> float | None:
    """The package's processor time for one image, or None where it cannot be imported."""
    try:
        import cv2
        import imagecorruptions
    except ImportError:
        return None

    cv2.setNumThreads(1)
    images = pictures(PACKAGE_IMAGES).numpy()

    def work() -> None:
        for image in images:
            imagecorruptions.corrupt(image, corruption_name=name, severity=SEVERITY)

    return processor_seconds(work) / PACKAGE_IMAGES


def row_of(name: str, device: str, elsewhere: dict[str, float]) -> dict[str, Any]:
    """Milliseconds an image of one corruption; ``elsewhere`` has the package's where it is not here."""
    images, indices = pictures(CPU_IMAGES), torch.arange(CPU_IMAGES)
    cpu = processor_seconds(lambda: corrupt(images, name, SEVERITY, seed=0, indices=indices)) / CPU_IMAGES
    package = package_seconds(name)
    row = {
        "corruption": name,
        "cpu_ms": 1e3 * cpu,
        "package_ms": elsewhere.get(name) if package is None else 1e3 * package,
        "gpu_ms": None,
        "equal": None,
    }
    if device == "cuda":
        many = pictures(CPU_IMAGES).repeat(GPU_IMAGES // CPU_IMAGES, 1, 1, 1).cuda()
        numbers = torch.arange(GPU_IMAGES).cuda()
        seconds = gpu_seconds(lambda: corrupt(many, name, SEVERITY, seed=0, indices=numbers))
        ours = corrupt(many[:CPU_IMAGES], name, SEVERITY, seed=0, indices=numbers[:CPU_IMAGES]).cpu()
        expected = corrupt(images, name, SEVERITY, seed=0, indices=indices)
        row |= {"gpu_ms": 1e3 * seconds / GPU_IMAGES, "equal": (ours == expected).double().mean().item()}
    return row


def speed_up(rows: list[dict[str, Any]], column: str) -> str:
    """The package's milliseconds over those of ``column``, for those of the 15 corruptions that have both."""
    both = [row for row in rows if row["corruption"] in CORRUPTIONS and None not in (row["package_ms"], row[column])]
    if not both:
        return "not compared with the package"
    package, ours = (sum(row[name] for row in both) for name in ("package_ms", column))
    return f"{package / ours:.2f} times the package's speed on one core ({len(both)} of {len(CORRUPTIONS)} corruptions)"


def figures_elsewhere(file: str | None) -> dict[str, float]:
    """The package's milliseconds by corruption from a file of this benchmark."""
    if file is None:
        return {}
    import pyarrow.parquet as pq

    return {row["corruption"]: row["package_ms"] for row in pq.read_table(file).to_pylist() if row["package_ms"]}


def text_of(row: dict[str, Any]) -> str:
    """One printed line."""
    cells = [f"{row['corruption']:18s}"]
    for column, width, digits in (("cpu_ms", 9, 2), ("package_ms", 11, 2), ("gpu_ms", 9, 4), ("equal", 9, 6)):
        value = row[column]
        cells.append(f"{value:{width}.{digits}f}" if value is not None else f"{'-':>{width}s}")
    return " ".join(cells)


def main() -> None:
    parser = parser_for(__doc__)
    add_device(parser)
    parser.add_argument("--package", metavar="FILE", help="the package's figures from another machine")
    chosen = parser.parse_args()
    elsewhere = figures_elsewhere(chosen.package)
    torch.set_num_threads(1)
    print(heading(chosen.device), flush=True)
    print(f"{'ms per image':18s} {'cpu':>9s} {'package':>11s} {'gpu':>9s} {'equal':>9s}")
    rows = []
    for name in CORRUPTIONS + EXTRA_CORRUPTIONS:
        try:
            rows.append(row_of(name, chosen.device, elsewhere))
        except DataError as error:
            print(f"{name}: left out ({error})")
            continue
        print(text_of(rows[-1]), flush=True)
    print(f"one core: {speed_up(rows, 'cpu_ms')}")
    if chosen.device == "cuda":
        print(f"GPU: {speed_up(rows, 'gpu_ms')}")
    save(rows, chosen.device, chosen.out)


if __name__ == "__main__":
    main()
