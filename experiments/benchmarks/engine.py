"""Engine speed: images/s of one step by method × network × batch × runs × precision, beside the published step.

    python -m experiments.benchmarks.engine --out results/engine.parquet [--cases resnet50-bn:64:1:tf32,...]

A case is NETWORK:BATCH:RUNS:PRECISION[:METHODS]. Inputs are random 224×224 images on the device, weights random
(speed does not depend on them); ``select`` says how many samples pass the filters: all, none, or the paper's
shares (68 % the entropy filter, 52 % both), reached by thresholds at those quantiles with learning rate 0.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import math
import os
import platform
import time
from collections.abc import Callable
from typing import Any

import timm
import torch
import torchvision
from torch import nn

from deyo import fast
from deyo.methods import create_method, settings_class
from deyo.types import MethodContext, Network, NetworkInfo
from experiments.benchmarks.published import PublishedStep

DEFAULT_CASES = (
    "resnet50-bn:64:1:tf32,resnet50-bn:64:4:tf32,resnet50-bn:64:1:bf16,resnet50-bn:64:4:bf16,"
    "vit-base-ln:64:1:tf32,vit-base-ln:64:1:bf16,resnet50-gn:1:128:tf32,resnet50-gn:1:128:bf16,"
    "vit-base-ln:1:128:tf32,vit-base-ln:1:128:bf16"
)
SHARES = (0.68, 0.52)


def build_module(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "resnet50-bn":
        return torchvision.models.resnet50()
    return timm.create_model({"resnet50-gn": "resnet50_gn", "vit-base-ln": "vit_base_patch16_224"}[name])


def as_network(name: str) -> Network:
    info = NetworkInfo(name=name, family="resnet", norm=name[-2:], num_classes=1000, image_size=224)
    return Network(
        info=info,
        module=build_module(name).eval(),
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        num_classes=1000,
        sha256="random",
    )


def measure(step: Callable[[], Any], images: int, device: torch.device, *, seconds: float) -> float:
    """Images per second of ``step`` over at least ``seconds``, after two unmeasured calls."""
    for _ in range(2):
        step()
    _wait(device)
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(3):
            step()
        _wait(device)
        done += 3
    return done * images / (time.perf_counter() - start)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def published_speed(name: str, method: str, batch: int, select: str, device: torch.device, seconds: float) -> float:
    """The published step on the same card: PyTorch's default precision, one run."""
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = True, False
    step = PublishedStep(method, build_module(name).to(device))
    images = torch.randn(batch, 3, 224, 224, device=device)
    step.optimizer.param_groups[0]["lr"] = 0.0
    if select == "none":
        step.margin = -math.inf
    elif select == "shares" and method != "tent":
        entropies, plpd = _published_scores(step, images)
        step.margin = float(entropies.quantile(SHARES[0]))
        if method == "deyo":
            passed = plpd[entropies < step.margin]
            step.plpd_threshold = float(passed.quantile(1 - SHARES[1] / SHARES[0]))
    return measure(lambda: step.step(images), batch, device, seconds=seconds)


def _published_scores(step: PublishedStep, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    from deyo.losses import entropy, probability_of
    from deyo.transforms import draw, shuffle_patches

    with torch.no_grad():
        logits = step.module(images)
        order = draw("patch", torch.zeros(1, dtype=torch.int64), 0, batch=len(images), size=224, patches=4)[0]
        after = step.module(shuffle_patches(images, order.to(images.device), 4))
        label = logits.argmax(1)
        return entropy(logits), probability_of(logits, label) - probability_of(after, label)


def build_ours(
    name: str, method: str, batch: int, runs: int, precision: str, select: str, device: torch.device, on_gpu: bool
) -> tuple[Any, torch.Tensor]:
    """The engine's method and pixels [R, B, 3, 224, 224]."""
    margins = (
        {} if method in ("no-adapt", "bn-adapt", "tent") else {"entropy_margin": 0.0 if select == "none" else 100.0}
    )
    settings: dict[str, Any] = {} if method in ("no-adapt", "bn-adapt") else {"learning_rate": 0.0, **margins}
    if method == "deyo":
        settings["plpd_threshold"] = -2.0
    if method == "eata":
        settings |= {"redundancy_margin": 2.0, "fisher_strength": 0.0}
    context = MethodContext(
        network=as_network(name), seeds=list(range(runs)), batch_size=batch, device=device, precision=precision
    )
    built = create_method(method, context, [settings_class(method)(**settings)] * runs)
    pixels = torch.randint(0, 256, (runs, batch, 224, 224, 3), dtype=torch.uint8, device=device)
    pixels = pixels.permute(0, 1, 4, 2, 3)
    if select == "shares" and method in ("eata", "sar", "deyo"):
        _set_shares(built, pixels)
    return (fast.accelerate(built) if on_gpu else built), pixels


def _set_shares(method: Any, pixels: torch.Tensor) -> None:
    gathers, method.gathers = getattr(method, "gathers", False), False
    method.step(pixels)
    report = method.report
    method.entropy_margin = report.entropy.quantile(SHARES[0], dim=1, keepdim=True).to(method.entropy_margin)
    if method.name == "deyo":
        inside = torch.where(report.entropy < method.entropy_margin, report.plpd, torch.nan)
        method.plpd_threshold = inside.nanquantile(1 - SHARES[1] / SHARES[0], dim=1, keepdim=True)
    method.gathers = gathers
    method.step(pixels)


def run_case(case: str, device: torch.device, options: argparse.Namespace, baseline: dict[Any, float]) -> list[dict]:
    name, batch, runs, precision, *rest = case.split(":")
    methods = rest[0].split("+") if rest else ["deyo"]
    rows = []
    for method in methods:
        for select in options.select.split("+"):
            if select == "shares" and (int(batch) < 8 or method == "tent"):
                continue
            key = (name, method, int(batch), select)
            if key not in baseline:
                baseline[key] = published_speed(name, method, int(batch), select, device, options.seconds)
            rows.append(_measure_ours(key, int(runs), precision, device, options, baseline[key]))
    return rows


def _measure_ours(
    key: tuple[str, str, int, str],
    runs: int,
    precision: str,
    device: torch.device,
    options: argparse.Namespace,
    published: float,
) -> dict[str, Any]:
    name, method, batch, select = key
    start = time.perf_counter()
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    built, pixels = build_ours(name, method, batch, runs, precision, select, device, device.type == "cuda")
    built.step(pixels)
    prepared = time.perf_counter() - start
    speed = measure(lambda: built.step(pixels), runs * batch, device, seconds=options.seconds)
    if options.profile:
        print_kernels(lambda: built.step(pixels))
    share = float(built.report.passed_both.float().mean())
    memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
    row = {
        "network": name,
        "method": method,
        "batch": batch,
        "runs": runs,
        "precision": precision,
        "select": select,
        "published_images_per_second": published,
        "images_per_second": speed,
        "ratio": speed / published,
        "prepare_seconds": prepared,
        "memory_gib": memory,
        "selected_share": share,
    }
    print(
        f"{name:12} {method:8} B={batch:<3} R={runs:<4} {precision:8} {select:7} published {published:8.1f} "
        f"ours {speed:8.1f} img/s  x{speed / published:6.2f}  prepare {prepared:5.1f} s  {memory:5.1f} GiB  "
        f"passed {share:.2f}",
        flush=True,
    )
    return row


def print_kernels(step: Callable[[], Any], steps: int = 5) -> None:
    """The 30 kernels that take most time of ``step``."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    events = sorted(profiler.key_averages(), key=lambda e: -e.device_time_total)
    total = sum(e.device_time_total for e in events) / steps / 1000
    print(f"kernels {total:.2f} ms a step", flush=True)
    for event in events[:30]:
        print(
            f"  {event.device_time_total / steps / 1000:7.3f} ms {event.count // steps:5d}x {event.key[:110]}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default=DEFAULT_CASES)
    parser.add_argument("--select", default="all")
    parser.add_argument("--inductor", default="", help="Inductor options to switch on, joined by +")
    parser.add_argument("--cudnn-benchmark", action="store_true")
    parser.add_argument("--profile", action="store_true", help="print the kernels that take most of our step")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out")
    options = parser.parse_args()
    device = torch.device(options.device)
    fast.INDUCTOR = dict.fromkeys(filter(None, options.inductor.split("+")), True)
    torch.backends.cudnn.benchmark = options.cudnn_benchmark
    cpu = f"CPU {platform.machine()}, {os.cpu_count()} cores"
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu
    print(f"card {card}; torch {torch.__version__}; {datetime.date.today()}", flush=True)
    rows: list[dict[str, Any]] = []
    baseline: dict[Any, float] = {}
    for case in options.cases.split(","):
        try:
            rows += run_case(case, device, options, baseline)
        except Exception as error:  # one case that fails must not cost the others their figures
            print(f"{case}: {type(error).__name__}: {str(error)[:2000]}", flush=True)
        _save(rows, card, options.out)


def _save(rows: list[dict[str, Any]], card: str, out: str | None) -> None:
    if not out or not rows:
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    stamps = {"card": card, "torch": torch.__version__, "date": str(datetime.date.today())}
    os.makedirs(os.path.dirname(out) or ".", exist_ok=True)
    pq.write_table(pa.Table.from_pylist([{**row, **stamps} for row in rows]), out)


if __name__ == "__main__":
    main()
