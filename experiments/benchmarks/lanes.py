"""All GPU figures on as many GPUs as there are, one command on each at a time, until the time is over.

    python -m experiments.benchmarks.lanes --seconds 560 --out figures [--data FOLDER] [--only A,B] [--skip A,B]

Commands are taken in the order of ``tasks``, which is that of their worth; one that is estimated to take longer than
what is left is passed over, and one that outlasts the time is interrupted, with the figures it has. ``sweeps`` and
``parity`` measure no speed: several of them share the last GPU from the start where there are two or more. Each GPU has
its own share of the processor's cores, as on a machine of its own. Each command's output is in NAME.log, its figures in
NAME.parquet, results of real sweeps in ``results``; with the same ``--out`` these go on where they ended.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from experiments.benchmarks.record import data_environment

GPU_TESTS = ("tests/deyo", "tests/orchestrator/test_worker_gpu.py")
TAIL = 14


@dataclass(frozen=True, kw_only=True)
class Task:
    """One command: ``words`` after ``python``, how long it takes by estimate, whether it measures speed."""

    name: str
    seconds: int
    words: tuple[str, ...]
    measures: bool = True
    needs_data: bool = False


def bench(name: str, seconds: int, module: str, *words: str, needs_data: bool = False, measures: bool = True) -> Task:
    """A benchmark of this folder; {out} and {data} in its words are filled in later."""
    command = ("-m", f"experiments.benchmarks.{module}", *words, "--out", "{out}/" + f"{name}.parquet")
    return Task(name=name, seconds=seconds, words=command, needs_data=needs_data, measures=measures)


def engine(name: str, seconds: int, cases: str, *words: str) -> Task:
    return bench(name, seconds, "engine", "--cases", cases, "--seconds", "1", *words)


def accuracy(name: str, seconds: int, *words: str) -> Task:
    return bench(name, seconds, "accuracy", "--data", "{data}", *words, needs_data=True, measures=False)


def sweep(name: str, seconds: int, spec: str, *settings: str) -> Task:
    """A real sweep of ``experiments``, of whose numbers tables are made; through Ray where it is installed."""
    program = "import sys; from orchestrator.cli.main import main; main(sys.argv[1:])"
    chosen = [word for setting in ("mlflow.enabled=false", *settings) for word in ("--set", setting)]
    where = [] if find_spec("ray") else ["--in-process"]
    words = ("-c", program, "run", f"experiments/{spec}.yaml", "--results", "{out}/results", *chosen, *where)
    return Task(name=name, seconds=seconds, words=words, measures=False, needs_data=True)


def tasks() -> list[Task]:
    """Every command, the most telling first."""
    third, tenth = "resources.gpu_fraction=0.33", "resources.gpu_fraction=0.1"
    seeds = f"seeds={list(range(12))}"
    one = ("runs[0].corruptions=[contrast]", "runs[0].methods=[tent]", seeds)
    batch_1 = ("--network", "resnet50-gn", "--batch", "1", "--corruptions", "15", "--seeds", "8", "--per-class", "1")
    batch_1 += ("--max-images", "256", "--group-size", "120")
    cifar = ("--sets", "cifar-bn,cifar-gn", "--corruptions", "5", "--seeds", "2")
    cifar += ("--max-images", "3000", "--group-size", "10")
    whole = ("--per-class", "6", "--max-images", "5952")  # 93 full batches: the short one of 50,000 is 1 in 782
    busy = ("--corruptions", "9", "--seeds", "4", "--per-class", "5", "--max-images", "4992", "--group-size", "4")
    busy += ("--no-published", "--cores", "16", "--gpus", "1")
    ray = [bench("busy", 440, "sweep", *busy)] if find_spec("ray") else []
    return [
        Task(name="parity", seconds=230, words=("-m", "pytest", *GPU_TESTS, "-m", "gpu", "-q"), measures=False),
        *ray,
        engine("vit", 150, "vit-base-ln:1:128:bf16,vit-base-ln:1:128:tf32,vit-base-ln:64:1:tf32,vit-base-ln:64:1:bf16"),
        accuracy("accuracy-cifar", 90, *cifar),
        sweep("cifar-wild", 600, "cifar10_wild", third),
        bench("sweep-bf16", 370, "sweep", "--precision", "bf16", "--again", *whole),
        engine("bn", 200, "resnet50-bn:64:4:bf16,resnet50-bn:64:4:tf32", "--profile"),
        engine("methods", 200, "resnet50-bn:64:4:tf32:tent+eata+sar"),
        engine("selected", 180, "resnet50-bn:64:4:tf32", "--select", "none+shares"),
        engine("batch-1", 240, "resnet50-gn:1:128:tf32,resnet50-gn:1:128:bf16", "--profile"),
        bench("sweep-tf32", 300, "sweep", "--again", *whole),
        bench("sweep-batch-1", 300, "sweep", "--precision", "bf16", "--no-published", *batch_1),
        engine("kernels", 240, "resnet50-bn:64:4:bf16", "--ways", "timed-kernels,plain-relu,pool-last"),
        sweep("colored-mnist", 420, "colored_mnist", third),
        sweep("small-card", 80, "imagenet_sample_c", "name=small-card", tenth, "resources.group_size=24", *one),
        sweep("imagenet-sample", 380, "imagenet_sample_c", "resources.gpu_fraction=0.5"),
        accuracy("accuracy-colored", 550, "--sets", "colored-mnist", "--networks", "3"),
        bench("augmentation", 90, "augmentation", "--networks", "resnet50-bn", "--seconds", "1"),
        bench("feeding", 60, "feeding"),
        bench("corruptions", 45, "corruptions"),
        bench("estimate", 120, "estimate", "--set", "resources.group_size=3"),
    ]


class Lanes:
    """The GPUs and what is left to do on them."""

    def __init__(self, todo: Iterable[Task], options: argparse.Namespace, cores: Mapping[str, Collection[int]]) -> None:
        self.todo, self.options, self.cores = deque(todo), options, cores
        self.end = time.monotonic() + options.seconds
        self.lock = threading.Lock()

    @property
    def left(self) -> float:
        return self.end - time.monotonic()

    def next(self, kinds: Sequence[bool]) -> Task | None:
        """The first task that fits, of those that measure (True), that do not (False), or both."""
        with self.lock:
            for task in self.todo:
                if task.seconds * self.options.patience <= self.left and task.measures in kinds:
                    self.todo.remove(task)
                    return task
            return None

    def work(self, gpu: str, *turns: Sequence[bool]) -> None:
        """Run tasks of the first kinds on ``gpu`` as long as there are some, then those of the next."""
        for kinds in turns:
            while (task := self.next(kinds)) is not None:
                self.run(task, gpu)

    def run(self, task: Task, gpu: str) -> None:
        out = Path(self.options.out).resolve()
        words = [word.format(out=out, data=self.options.data) if "{" in word else word for word in task.words]
        start = time.monotonic()
        print(f"GPU {gpu}: {task.name} starts, {self.left:.0f} s left", flush=True)
        log = out / f"{task.name}.log"
        with log.open("w") as file:
            child = subprocess.Popen(
                [sys.executable, *words],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self.environment(gpu),
                preexec_fn=partial(os.sched_setaffinity, 0, self.cores[gpu]),
            )
            code = self.wait(child)
        last = [line for line in log.read_text(errors="replace").splitlines() if "Warning" not in line][-TAIL:]
        with self.lock:
            print(f"GPU {gpu}: {task.name} took {time.monotonic() - start:.0f} s, exit {code}", flush=True)
            print("\n".join("    " + line[:220] for line in last), flush=True)

    def wait(self, child: subprocess.Popen) -> int:
        """Until it ends; interrupted, then killed, when the time is over."""
        for patience, number in ((max(1.0, self.left), signal.SIGINT), (8, signal.SIGKILL)):
            try:
                return child.wait(patience)
            except subprocess.TimeoutExpired:
                child.send_signal(number)
        return child.wait()

    def environment(self, gpu: str) -> dict[str, str]:
        found = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu, "PYTHONUNBUFFERED": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        return found | (data_environment(self.options.data) if self.options.data else {})


def shares(cores: Sequence[int], gpus: Sequence[str], parts: int) -> dict[str, Sequence[int]]:
    """The cores of each GPU: one of ``parts`` equal shares of them, taken from the end."""
    size = max(1, len(cores) // parts)
    cut = [cores[k : k + size] for k in range(0, len(cores), size)]
    return {gpu: cut[-1 - k % len(cut)] for k, gpu in enumerate(reversed(gpus))}


def lanes_for(gpus: Sequence[str]) -> list[tuple[Any, ...]]:
    """(GPU, the kinds that it takes first, those after them). Two that measure nothing share the last of several."""
    if len(gpus) == 1:
        return [(gpus[0], (True, False))]
    return [*((gpu, (True,), (False,)) for gpu in gpus[:-1]), (gpus[-1], (False,)), (gpus[-1], (False,))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=560, help="when everything ends")
    parser.add_argument("--out", default="figures")
    parser.add_argument("--data", help="folder with mnist, cifar10_jpeg, imagenet_sample and weights")
    parser.add_argument("--only", help="names, joined by commas")
    parser.add_argument("--skip", default="", help="names, joined by commas")
    parser.add_argument("--gpus", help="numbers, joined by commas (default: all that are seen)")
    parser.add_argument("--share-of", type=int, help="GPUs that share the cores, if others are busy (default: --gpus)")
    parser.add_argument("--patience", type=float, default=0.6, help="start what takes so much of its estimate at least")
    parser.add_argument("--list", action="store_true", help="print the commands and do nothing")
    options = parser.parse_args()
    chosen = [task for task in tasks() if task.name in (options.only or task.name).split(",")]
    chosen = [t for t in chosen if t.name not in options.skip.split(",") and (options.data or not t.needs_data)]
    if options.list:
        print("\n".join(f"{task.name:16} {task.seconds:4} s  {' '.join(task.words)}" for task in chosen))
        return
    gpus = options.gpus.split(",") if options.gpus else seen_gpus()
    Path(options.out).mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored, by the commands too
    lanes = Lanes(chosen, options, shares(sorted(os.sched_getaffinity(0)), gpus, options.share_of or len(gpus)))
    threads = [threading.Thread(target=lanes.work, args=lane) for lane in lanes_for(gpus)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("not started: " + (", ".join(task.name for task in lanes.todo) or "nothing"))


def seen_gpus() -> list[str]:
    import torch

    return [str(number) for number in range(torch.cuda.device_count())] or [""]


if __name__ == "__main__":
    main()
