"""Speed of the methods that augment: AugMix and RandAugment views/s, MEMO and SENTRY images/s.

    python -m experiments.benchmarks.augmentation [--device cpu] [--out results/augmentation.parquet]

MEMO's published code adapts 1.6 images/s on an A6000 (paper, Table 7: 30,818 s for 50,000 images, ResNet-50-BN);
``ratio`` is against that. Random 224×224 images, random weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from deyo.augment import augmix, randaugment
from deyo.fast import accelerate
from deyo.methods import create_method, settings_class
from deyo.types import MethodContext
from experiments.benchmarks.engine import as_network, measure
from experiments.benchmarks.record import add_device, heading, parser_for, save

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
    torch.compiler.reset()
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
    parser = parser_for(__doc__)
    add_device(parser)
    parser.add_argument("--networks", help="default: all three on a GPU, resnet50-gn on a CPU")
    parser.add_argument("--precisions", help="default: tf32 and bf16 on a GPU, float32 on a CPU")
    parser.add_argument("--views", type=int, help="MEMO's copies (default: 64 on a GPU, 2 on a CPU)")
    parser.add_argument("--batch", type=int, help="images together (default: 16 on a GPU, 2 on a CPU)")
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    device, gpu = torch.device(options.device), options.device == "cuda"
    options.networks = options.networks or ("resnet50-bn,resnet50-gn,vit-base-ln" if gpu else "resnet50-gn")
    options.precisions = options.precisions or ("tf32,bf16" if gpu else "float32")
    options.views, options.batch = options.views or (64 if gpu else 2), options.batch or (16 if gpu else 2)
    print(heading(options.device), flush=True)
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
    save(rows, options.device, options.out)


if __name__ == "__main__":
    main()
