"""Speed of the methods that augment: AugMix and RandAugment views/s, MEMO and SENTRY images/s.

    python -m experiments.benchmarks.augmentation --out results/augmentation.parquet
    python -m experiments.benchmarks.augmentation --device cpu --networks resnet50-gn --views 2 --batch 2

MEMO's published code adapts 1.6 images/s on an A6000 (paper, Table 7: 30,818 s for 50,000 images, ResNet-50-BN);
``ratio`` is against that. Random 224×224 images, random weights.
"""

from __future__ import annotations

import argparse
import datetime
import os
from collections.abc import Iterator
from typing import Any

import torch

from deyo.augment import augmix, randaugment
from deyo.fast import accelerate
from deyo.methods import create_method, settings_class
from deyo.types import MethodContext
from experiments.benchmarks.engine import as_network, measure

PUBLISHED_MEMO = 50_000 / 30_818
NORMAL = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def augmentation_rows(device: torch.device, views: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Views per second, normalised and on the device, of one and of 16 images together."""
    for name, make, copies in (("augmix", augmix, views), ("randaugment", randaugment, 3)):
        for images in (1, 16):
            pixels = random_pixels(images, device)[0]
            keys = torch.arange(images)
            speed = measure(
                lambda make=make, pixels=pixels, copies=copies, keys=keys: make(
                    pixels, copies=copies, keys=keys, **NORMAL
                ),
                images * copies,
                device,
                seconds=seconds,
            )
            yield {"what": name, "images": images, "views": copies, "per_second": speed}


def method_row(
    name: str, network: str, batch: int, precision: str, device: torch.device, views: int, seconds: float
) -> dict[str, Any]:
    """Images per second of one method's step."""
    context = MethodContext(
        network=as_network(network), seeds=[0], batch_size=batch, device=device, precision=precision
    )
    chosen = {"views": views} if name == "memo" else {"learning_rate": 1e-5}
    method = accelerate(create_method(name, context, [settings_class(name)(**chosen)]))
    pixels = random_pixels(batch, device)
    speed = measure(lambda: method.step(pixels), batch, device, seconds=seconds)
    ratio = speed / PUBLISHED_MEMO if name == "memo" else None
    return {
        "what": name,
        "network": network,
        "precision": precision,
        "images": batch,
        "views": views,
        "per_second": speed,
        "ratio": ratio,
    }


def random_pixels(batch: int, device: torch.device, side: int = 224) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (1, batch, 3, side, side), dtype=torch.uint8, generator=generator).to(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default="resnet50-bn,resnet50-gn,vit-base-ln")
    parser.add_argument("--precisions", default="tf32,bf16")
    parser.add_argument("--views", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out")
    options = parser.parse_args()
    device = torch.device(options.device)
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {os.cpu_count()} cores"
    print(f"card {card}; torch {torch.__version__}; {datetime.date.today()}", flush=True)
    rows = []
    for row in augmentation_rows(device, options.views, options.seconds):
        rows.append(row)
        print(f"{row['what']:12} {row['images']:3} images × {row['views']:3} views {row['per_second']:10.1f} views/s")
    for network in options.networks.split(","):
        for precision in options.precisions.split(","):
            for name in ("memo", "sentry"):
                row = method_row(name, network, options.batch, precision, device, options.views, options.seconds)
                rows.append(row)
                beside = "" if row["ratio"] is None else f"  ×{row['ratio']:.1f} of the published"
                print(f"{name:12} {network:12} {precision:6} {row['per_second']:8.2f} img/s{beside}", flush=True)
    if options.out:
        save(rows, card, options.out)


def save(rows: list[dict[str, Any]], card: str, out: str) -> None:
    """All rows with card, version and date as Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    stamps = {"card": card, "torch": torch.__version__, "date": str(datetime.date.today())}
    os.makedirs(os.path.dirname(out) or ".", exist_ok=True)
    pq.write_table(pa.Table.from_pylist([{**row, **stamps} for row in rows]), out)


if __name__ == "__main__":
    main()
