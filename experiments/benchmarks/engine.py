"""Engine speed: images/s of one step by method × network × batch × runs × precision, beside the published step.

    python -m experiments.benchmarks.engine --out results/engine.parquet [--cases resnet50-bn:64:1:tf32,...]

A case is NETWORK:BATCH:RUNS:PRECISION[:METHODS], methods joined by +. ``--ways default,NAME+NAME,...`` measures each
case once for each way: the engine as it is, or with the named changes of ``CHANGES``. Inputs are random images on the
device, weights random (speed does not depend on them); ``select`` says how many samples pass the filters: all, none,
or the paper's shares (68 % the entropy filter, 52 % both), reached by thresholds at those quantiles with learning
rate 0.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import timm
import torch
import torchvision
from torch import nn

from deyo import compiling, fast, model, stem
from deyo.methods import create_method, settings_class
from deyo.types import MethodContext, Network, NetworkInfo
from experiments.benchmarks.kernel_times import print_kernels
from experiments.benchmarks.published import PublishedStep
from experiments.benchmarks.record import add_device, heading, parser_for, save

CASES = (
    "resnet50-bn:64:1:tf32,resnet50-bn:64:4:tf32,resnet50-bn:64:1:bf16,resnet50-bn:64:4:bf16,"
    "vit-base-ln:64:1:tf32,vit-base-ln:64:1:bf16,resnet50-gn:1:128:tf32,resnet50-gn:1:128:bf16,"
    "vit-base-ln:1:128:tf32,vit-base-ln:1:128:bf16"
)
CPU_CASES = "small-gn:1:1:float32,small-gn:1:15:float32,resnet50-gn:1:1:float32"
CHANGES: dict[str, tuple[Any, str, Any]] = {
    "wait": (fast, "FORESEE", False),
    "unfused": (fast, "FUSE_PARTS", False),
    "plain-stem": (model, "pack_stem", lambda module, *, frozen: None),
    "pool-last": (stem, "pool_first", lambda module: None),
    "timed-kernels": (compiling, "BY_RULE", False),
    "plain-relu": (model, "look_at_inputs", lambda module: None),
    "plain-attention": (model, "pad_attention", lambda module: None),
    "plain-patches": (model, "cut_patches", lambda module: None),
    "plain-gelu": (model, "take_tails", lambda module: None),
    "cudnn-benchmark": (torch.backends.cudnn, "benchmark", True),
}
"""Name -> a switch of the engine and what it is set to; other names are switched on as options of Inductor."""
SHARES = (0.68, 0.52)


def build_module(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "small-gn":
        return small_gn()
    if name in ("resnet18-bn", "resnet50-bn"):
        return getattr(torchvision.models, name.removesuffix("-bn"))()
    return timm.create_model({"resnet50-gn": "resnet50_gn", "vit-base-ln": "vit_base_patch16_224"}[name])


def small_gn() -> nn.Module:
    """A GroupNorm ResNet of 8 layers for images of 32×32, whose step on a CPU is mostly the calls' own cost."""
    from timm.models.resnet import BasicBlock, ResNet

    def norm(channels: int, **options: Any) -> nn.Module:
        return nn.GroupNorm(4, channels, **options)

    return ResNet(BasicBlock, [1, 1, 1, 1], channels=[16, 32, 48, 64], num_classes=10, norm_layer=norm)


def side_of(name: str) -> int:
    """Pixels along an image's side."""
    return 32 if name.startswith("small") else 224


@contextlib.contextmanager
def changed(way: str) -> Iterator[None]:
    """The engine with the changes of ``way`` (names joined by +, or "default"), for the block."""
    names = [] if way == "default" else way.split("+")
    switches = [CHANGES[name] for name in names if name in CHANGES]
    before = [getattr(owner, attribute) for owner, attribute, _ in switches]
    inductor, fast.INDUCTOR = fast.INDUCTOR, dict.fromkeys((n for n in names if n not in CHANGES), True)
    for owner, attribute, value in switches:
        setattr(owner, attribute, value)
    try:
        yield
    finally:
        fast.INDUCTOR = inductor
        for (owner, attribute, _), value in zip(switches, before):
            setattr(owner, attribute, value)


def as_network(name: str) -> Network:
    classes = 10 if name.startswith("small") else 1000
    info = NetworkInfo(name=name, family="resnet", norm=name[-2:], num_classes=classes, image_size=side_of(name))
    return Network(
        info=info,
        module=build_module(name).eval(),
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        num_classes=classes,
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


def measure_processor(step: Callable[[], Any], images: int, *, seconds: float) -> float:
    """Images per second of this process's processor time, which other work on the machine hardly changes."""
    step()
    done, start = 0, time.process_time()
    while time.process_time() - start < seconds:
        step()
        done += 1
    return done * images / (time.process_time() - start)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def published_speed(name: str, method: str, batch: int, select: str, device: torch.device, seconds: float) -> float:
    """The published step on the same card: PyTorch's default precision, one run."""
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = True, False
    step = PublishedStep(method, build_module(name).to(device))
    images = torch.randn(batch, 3, side_of(name), side_of(name), device=device)
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
        size = images.shape[-1]
        order = draw("patch", torch.zeros(1, dtype=torch.int64), 0, batch=len(images), size=size, patches=4)[0]
        after = step.module(shuffle_patches(images, order.to(images.device), 4))
        label = logits.argmax(1)
        return entropy(logits), probability_of(logits, label) - probability_of(after, label)


def build_ours(
    name: str, method: str, batch: int, runs: int, precision: str, select: str, device: torch.device, on_gpu: bool
) -> tuple[Any, torch.Tensor]:
    """The engine's method and pixels [R, B, 3, 224, 224]."""
    margin = 1e-9 if select == "none" else 100.0
    margins = {} if method in ("no-adapt", "bn-adapt", "tent") else {"entropy_margin": margin}
    settings: dict[str, Any] = {} if method in ("no-adapt", "bn-adapt") else {"learning_rate": 0.0, **margins}
    if method == "deyo":
        settings["plpd_threshold"] = -1.0
    if method == "eata":
        settings |= {"redundancy_margin": 2.0, "fisher_strength": 0.0}
    context = MethodContext(
        network=as_network(name), seeds=list(range(runs)), batch_size=batch, device=device, precision=precision
    )
    built = create_method(method, context, [settings_class(method)(**settings)] * runs)
    shape = (runs, batch, side_of(name), side_of(name), 3)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
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


def run_case(
    case: str, device: torch.device, options: argparse.Namespace, baseline: dict[Any, float]
) -> Iterator[dict[str, Any]]:
    """A row for each method, selection and way, as it is measured."""
    name, batch, runs, precision, *rest = case.split(":")
    methods = rest[0].split("+") if rest else ["deyo"]
    for method in methods:
        for select in options.select.split("+"):
            if select == "shares" and (int(batch) < 8 or method == "tent"):
                continue
            key = (name, method, int(batch), select)
            if key not in baseline:
                baseline[key] = published_speed(name, method, int(batch), select, device, options.seconds)
            for way in options.ways.split(","):
                with changed(way):
                    row = _measure_ours(key, int(runs), precision, device, options, baseline[key])
                row["way"] = way
                print_row(row)
                yield row


def _measure_ours(
    key: tuple[str, str, int, str],
    runs: int,
    precision: str,
    device: torch.device,
    options: argparse.Namespace,
    published: float,
) -> dict[str, Any]:
    name, method, batch, select = key
    torch.compiler.reset()  # or Dynamo meets its limit of recompilations, and runs uncompiled
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
    per_processor = None
    if device.type == "cpu":
        per_processor = measure_processor(lambda: built.step(pixels), runs * batch, seconds=options.seconds)
    share = float(built.report.passed_both.float().mean())
    memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
    return {
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
        "images_per_processor_second": per_processor,
    }


def print_row(row: dict[str, Any]) -> None:
    """One case's figures in a line."""
    print(
        f"{row['network']:12} {row['method']:8} B={row['batch']:<3} R={row['runs']:<4} {row['precision']:8} "
        f"{row['select']:7} published {row['published_images_per_second']:8.1f} ours {row['images_per_second']:8.1f} "
        f"img/s  x{row['ratio']:6.2f}  prepare {row['prepare_seconds']:5.1f} s  {row['memory_gib']:5.1f} GiB  "
        f"passed {row['selected_share']:.2f}  {row['way']}",
        flush=True,
    )
    if row["images_per_processor_second"] is not None:
        print(f"{'':12} {row['images_per_processor_second']:.1f} img a second of processor time", flush=True)


def main() -> None:
    parser = parser_for(__doc__)
    add_device(parser)
    parser.add_argument("--cases", help="joined by commas (default: those of the tables)")
    parser.add_argument("--select", default="all", help="of all, none, shares, joined by +")
    parser.add_argument("--ways", default="default", help=f"of {', '.join(CHANGES)} and Inductor's options")
    parser.add_argument("--profile", action="store_true", help="print the kernels that take most of our step")
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    device = torch.device(options.device)
    print(heading(options.device), flush=True)
    rows: list[dict[str, Any]] = []
    baseline: dict[Any, float] = {}
    failed = False
    for case in (options.cases or (CASES if options.device == "cuda" else CPU_CASES)).split(","):
        try:
            for row in run_case(case, device, options, baseline):
                rows.append(row)
        except Exception as error:  # one case that fails must not cost the others their figures
            failed = True
            print(f"{case}: {type(error).__name__}: {str(error)[:2000]}", flush=True)
        save(rows, options.device, options.out)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
