"""A whole sweep, from JPEG files to committed results: corruptions × no-adapt, Tent, EATA, SAR, DeYO × seeds.

    python -m experiments.benchmarks.sweep                      # this GPU, or a small form on the CPU
    python -m experiments.benchmarks.sweep --gpus 1,2,4         # through Ray, on the first 1, 2 and 4 GPUs
    python -m experiments.benchmarks.sweep --gpus 2 --kill-worker
    python -m experiments.benchmarks.sweep --gpus 4 --folder F  # goes on where an earlier command with F ended
    python -m experiments.benchmarks.sweep --again              # once more, with the first one's compiled code
    python -m experiments.benchmarks.sweep --fake-gpus 1,2,4    # GPUs that Ray believes in; each is a CPU core
    python -m experiments.benchmarks.sweep --bare-loop          # the same runs as a loop over the engine (CPU)

Runs `deyo-sweep run` on generated JPEG files in ImageNet-C's layout with a random network, every sample selected, and
prints for each place: seconds of the whole command; of the window from the first run's start to the last run's end;
images/s in it; how busy the devices were (the loops' own seconds, and each GPU as nvidia-smi saw it); runs committed,
attempts, and whether every run's numbers are those of the first place to the last bit.

The published way is one process after the other, which a DataLoader of 2 workers feeds: an image takes as long as
the slower of the two (both measured here; ``x of 903`` takes the feed of 903 img/s instead). ``full`` scales to
50,000 images, 15 corruptions, 3 seeds (``sweep_figures.full_seconds``).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pickle
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from experiments.benchmarks import sweep_setup
from experiments.benchmarks.record import add_device, heading, parser_for, save
from experiments.benchmarks.sweep_figures import add_ratios, difference, figures, print_row
from experiments.benchmarks.sweep_setup import Shape
from experiments.benchmarks.sweep_watch import processor_seconds_of_children, run_watched

KEPT = "places.pickle"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the sweep runs: in one process, through Ray, or through Ray on GPUs that are none.

    ``again``: with the compiled code of the place before. ``killing``: a worker is killed on the way.
    """

    name: str
    ray: bool
    gpus: int = 1
    fake: bool = False
    again: bool = False
    killing: bool = False


def run_place(
    folder: Path, place: Place, device: str, *, cache: str, kill_at: int | None = None, cores: int | None = None
) -> dict[str, Any]:
    """Run the sweep of ``folder`` there and return its figures and numbers; images are read anew into ``cache``."""
    results = f"results-{place.name}"
    shutil.rmtree(folder / results, ignore_errors=True)
    if not place.again:
        shutil.rmtree(folder / "compiled", ignore_errors=True)
    words = ["run", "sweep.yaml", "--results", results, "--quiet", "--no-preflight"]
    seen = place.gpus if device == "cuda" and place.ray else None
    environment = sweep_setup.environment(folder, cache, gpus=seen, fake_gpus=place.gpus if place.fake else 0)
    watched = run_watched(
        words if place.ray else [*words, "--in-process"],
        environment,
        folder,
        gpus=place.gpus if device == "cuda" and not place.fake else 0,
        cores=place.gpus * cores if cores else None,
        kill_at=kill_at,
    )
    if watched.code:
        raise SystemExit(f"{place.name}: the sweep ended with {watched.code}")
    return {"place": place.name, **figures(folder / results, place.gpus, watched)}


def published(shape: Shape, folder: Path, device: str, seconds: float) -> dict[str, float]:
    """Images/s of the published step by method, and of the published feed, on this machine."""
    import torch

    from experiments.benchmarks.engine import published_speed
    from experiments.benchmarks.feeding import published_feed

    target, found = torch.device(device), {}
    for method in shape.methods:
        step = (shape.network, method, shape.batch_size, "all", target, seconds)
        found[method] = published_speed(*step)
        print(f"published {method:9} {found[method]:8.1f} img/s", flush=True)
    first = next(path for path in sorted((folder / "files").iterdir()) if path.name != "clean")
    found["feed"] = published_feed(first / "5", 2, target, 2 * seconds)
    print(f"published feed      {found['feed']:8.1f} img/s (2 workers)", flush=True)
    return found


def bare_loop(folder: Path, cache: str) -> dict[str, Any]:
    """The same runs as a bare loop, in a process of its own with the same environment."""
    command = [sys.executable, "-m", "experiments.benchmarks.bare_loop", "sweep.yaml"]
    environment = sweep_setup.environment(folder, cache)
    before = processor_seconds_of_children()
    done = subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return found | {"processor_seconds": processor_seconds_of_children() - before}


def against_bare_loop(folder: Path, device: str, rounds: int) -> list[dict[str, Any]]:
    """The sweep in one process and the bare loop in turns, from prepared arrays: medians of their seconds.

    Of the whole command, of the runs alone, and of the processor, which other work on the machine hardly changes.
    """
    sweeps, loops = [], []
    for k in range(rounds):
        place = Place(name=f"round{k}", ray=False)
        sweeps.append(run_place(folder, place, device, cache="cache"))
        loops.append(bare_loop(folder, "cache"))
        accuracies = {run_id: found["row"][0] for run_id, found in sweeps[-1]["numbers"].items()}
        if accuracies != loops[-1]["accuracies"]:
            raise SystemExit("the sweep's accuracies are not the bare loop's")
    rows = []
    measures = [("command", "command_seconds", "seconds"), ("runs", "window_seconds", "loop_seconds")]
    for what, ours, theirs in (*measures, ("processor", "processor_seconds", "processor_seconds")):
        sweep, loop = (
            statistics.median(found[key] for found in all_) for all_, key in ((sweeps, ours), (loops, theirs))
        )
        rows.append(
            {"place": f"bare loop, {what}", "command_seconds": loop, "sweep_seconds": sweep, "over": sweep / loop}
        )
        print(f"{what:9} the sweep {sweep:7.2f} s, a bare loop {loop:7.2f} s: {sweep / loop:.3f}", flush=True)
    return rows


def places(options: argparse.Namespace) -> list[Place]:
    """Where to run, from the flags."""
    found = [Place(name="one process", ray=False)]
    if options.fake_gpus:
        found = [Place(name=f"{n} fake GPUs", ray=True, gpus=int(n), fake=True) for n in options.fake_gpus.split(",")]
    elif options.gpus:
        found = [Place(name=f"{n} GPUs", ray=True, gpus=int(n)) for n in options.gpus.split(",")]
    elif options.ray:
        found = [Place(name="Ray", ray=True, gpus=options.workers or 1)]
    last = found[-1]
    if options.again:
        found.append(replace(last, name=f"{last.name}, again", again=True))
    if options.kill_worker:
        found.append(replace(last, name=f"{last.name}, one worker killed", killing=True))
    return found


def shape_of(options: argparse.Namespace) -> Shape:
    """The sweep's size: the flags, else what suits the device."""
    gpu = options.device == "cuda"

    def choose(given: Any, on_gpu: Any, on_cpu: Any) -> Any:
        return given if given is not None else on_gpu if gpu else on_cpu

    return Shape(
        network=choose(options.network, "resnet50-bn", "resnet18-bn"),
        methods=tuple(options.methods.split(",")),
        corruptions=choose(options.corruptions, 5, 2),
        seeds=choose(options.seeds, 3, 2),
        per_class=choose(options.per_class, 4, 1),
        max_images=choose(options.max_images, None, 32),
        batch_size=choose(options.batch, 64, 16),
        precision=choose(options.precision, "tf32", "float32"),
        group_size=choose(options.group_size, 5, 1),
        workers=options.workers,
    )


def read_options() -> argparse.Namespace:
    parser = parser_for(__doc__)
    add_device(parser)
    parser.add_argument("--network", help="resnet18-bn, resnet50-bn, resnet50-gn or vit-base-ln")
    parser.add_argument("--methods", default=",".join(sweep_setup.METHODS))
    parser.add_argument("--corruptions", type=int, help="how many of the 15")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--per-class", type=int, help="images of each of the 1,000 classes, for each corruption")
    parser.add_argument("--max-images", type=int, help="cut each run's stream")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--precision", choices=["float32", "tf32", "bf16"])
    parser.add_argument("--group-size", type=int, help="runs side by side (0: what the memory model says)")
    parser.add_argument("--gpus", help="numbers of GPUs, through Ray, as in 1,2,4")
    parser.add_argument("--fake-gpus", help="the same with GPUs that are none")
    parser.add_argument("--ray", action="store_true", help="through Ray without naming GPUs")
    parser.add_argument("--workers", type=int, help="workers, with --ray")
    parser.add_argument("--kill-worker", action="store_true", help="once more, killing a worker at a third of the runs")
    parser.add_argument("--again", action="store_true", help="once more, with the compiled code of the time before")
    parser.add_argument("--bare-loop", action="store_true", help="compare with a bare loop over the engine (CPU)")
    parser.add_argument("--folder", type=Path, help="keep the files here, compare with the places measured here before")
    parser.add_argument("--rounds", type=int, default=3, help="of --bare-loop")
    parser.add_argument("--no-published", action="store_true", help="leave the published way out")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each published figure")
    parser.add_argument("--cores", type=int, help="of the processor for each GPU (a GPU that is none has one)")
    options = parser.parse_args()
    if options.fake_gpus:
        options.cores = 1  # or their numbers would differ by their threads
    if (options.gpus or options.fake_gpus or options.ray or options.kill_worker) and find_spec("ray") is None:
        parser.error("Ray is not installed")
    if options.bare_loop and options.device == "cuda":
        parser.error("--bare-loop is a measure of the CPU: add --device cpu")
    return options


def measure(folder: Path, options: argparse.Namespace, shape: Shape) -> list[dict[str, Any]]:
    """Every place asked for, compared with the first of this folder; printed as they end."""
    baseline = {} if options.no_published else published(shape, folder, options.device, options.seconds)
    kept = folder / KEPT
    rows: list[dict[str, Any]] = pickle.loads(kept.read_bytes()) if kept.exists() else []
    for place in places(options):
        kill_at = max(1, shape.runs // 3) if place.killing else None
        cache = f"cache{len(rows) or ''}"
        row = run_place(folder, place, options.device, cache=cache, kill_at=kill_at, cores=options.cores)
        row["difference"] = difference(row, rows[0] if rows else row)
        if baseline:
            add_ratios(row, shape, baseline)
        rows.append(row)
        kept.write_bytes(pickle.dumps(rows))
        print_row(row)
    for row in rows[1:]:
        scale = rows[0]["command_seconds"] / row["command_seconds"], rows[0]["window_seconds"] / row["window_seconds"]
        print(f"{row['place']:26} x{scale[0]:.2f} of {rows[0]['place']} (runs alone x{scale[1]:.2f})")
    if options.bare_loop:
        rows += against_bare_loop(folder, options.device, options.rounds)
    return rows


@contextlib.contextmanager
def prepared(kept: Path | None, shape: Shape) -> Iterator[Path]:
    """The folder with the sweep's files: ``kept``, where they may be from before, or one that is removed afterwards."""
    with contextlib.nullcontext(kept) if kept else tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        made = folder / "shape.json"
        if not made.exists():
            folder.mkdir(parents=True, exist_ok=True)
            files = sweep_setup.prepare(folder, shape)
            made.write_text(json.dumps({"files": files, "shape": vars(shape)}))
        found = json.loads(made.read_text())
        if found["shape"] != json.loads(json.dumps(vars(shape))):
            raise SystemExit(f"{folder} holds another sweep: {found['shape']}")
        print(
            f"{shape.runs} runs of {shape.images} images ({found['files']} JPEG files), {shape.network}, batch "
            f"{shape.batch_size}, {shape.precision}, {shape.group_size or 'as many as fit'} side by side",
            flush=True,
        )
        yield folder


def main() -> None:
    options = read_options()
    shape = shape_of(options)
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    print(heading(options.device), flush=True)
    with prepared(options.folder, shape) as folder:
        rows = measure(folder, options, shape)
    for row in rows:
        row.pop("numbers", None)
        row |= {"shape": json.dumps(vars(shape))}
    save(rows, options.device, options.out)


if __name__ == "__main__":
    main()
