"""What reporting costs: the loop with its records against the same steps alone, in percent of a step.

    python -m experiments.benchmarks.reporting [--device cuda] [--batch 64] [--steps 60] [--rounds 5]

A small GroupNorm network on 32×32 images, DeYO with every sample selected: on a real network a step takes longer and
reporting does not. Both are timed in turns; the medians are compared.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch
from timm.models.resnet import BasicBlock, ResNet

from deyo.loop import adapt
from deyo.methods import create_method, settings_class
from deyo.types import ImageSet, MethodContext, Network, NetworkInfo, Stream
from experiments.benchmarks.record import add_device, heading, parser_for, save


def build(device: torch.device, batch: int) -> object:
    module = ResNet(
        BasicBlock,
        [1, 1, 1, 1],
        channels=[8, 16, 24, 32],
        num_classes=10,
        norm_layer=lambda channels, **kw: torch.nn.GroupNorm(4, channels, **kw),
    ).eval()
    info = NetworkInfo(name="small", family="resnet", norm="gn", num_classes=10, image_size=32)
    network = Network(info=info, module=module, mean=(0.2,) * 3, std=(0.4,) * 3, num_classes=10, sha256="random")
    context = MethodContext(network=network, seeds=[0], batch_size=batch, device=device)
    settings = settings_class("deyo")(learning_rate=0.0, entropy_margin=100.0, plpd_threshold=-1.0)
    return create_method("deyo", context, [settings])


def main() -> None:
    parser = parser_for(__doc__)
    add_device(parser)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(heading(options.device), flush=True)
    device, count = torch.device(options.device), options.batch * options.steps
    pixels = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    images = ImageSet(name="random", pixels=pixels, labels=np.zeros(count, dtype=np.int64), fingerprint="random")
    stream = Stream(
        images=images, order=np.arange(count), batch_size=options.batch, scenario="mild", seed=0, digest="random"
    )
    method = build(device, options.batch)
    batches = [
        torch.from_numpy(pixels[k : k + options.batch]).to(device).permute(0, 3, 1, 2).unsqueeze(0)
        for k in range(0, count, options.batch)
    ]

    def steps() -> None:
        for batch in batches:
            method.step(batch)

    def loop() -> None:
        for _ in adapt(method, stream):
            pass

    seconds: dict[str, list[float]] = {"steps": [], "loop": []}
    for _ in range(options.rounds + 1):
        for name, work in (("steps", steps), ("loop", loop)):
            start = time.perf_counter()
            work()
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - start)
    bare, whole = (statistics.median(seconds[name][1:]) / options.steps * 1000 for name in ("steps", "loop"))
    print(
        f"a step {bare:.3f} ms, with the loop's feeding and reporting {whole:.3f} ms: {100 * (whole / bare - 1):+.1f} %"
    )
    row = {"batch": options.batch, "steps": options.steps, "step_ms": bare, "loop_ms": whole}
    save([row], options.device, options.out)


if __name__ == "__main__":
    main()
