"""Runs a command, looks at the GPUs while it runs, and kills one of its workers if asked to."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from experiments.benchmarks.host_use import HostUse
from experiments.benchmarks.overhead import descendants

LOOK_SECONDS = 0.2
HOST_LOOK_SECONDS = 2.0


@dataclass
class Watched:
    """How a sweep's process went, and what it took of the processor (``host``: with all that Ray started for it).

    ``busy``: GPU index -> (seconds since the epoch, busy share) of each look.
    """

    seconds: float = 0.0
    processor_seconds: float = 0.0
    code: int = 0
    killed: int | None = None
    committed_at_kill: int = 0
    host: HostUse = field(default_factory=HostUse)
    busy: dict[int, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    def busy_share(self, start: float, end: float) -> list[float]:
        """Each GPU's mean busy share between two times; empty without GPUs."""
        inside = {g: [share for at, share in looks if start <= at <= end] for g, looks in self.busy.items()}
        return [sum(shares) / len(shares) for _, shares in sorted(inside.items()) if shares]


def run_watched(
    words: list[str],
    environment: dict[str, str],
    folder: Path,
    *,
    gpus: int,
    cores: int | None = None,
    kill_at: int | None = None,
) -> Watched:
    """Run ``deyo-sweep WORDS`` in ``folder``, on so many ``cores`` at most.

    ``kill_at``: kill one worker once so many runs are committed.
    """
    program = f"from orchestrator.cli.main import main; main({words!r})"
    found = Watched()
    with _gpu_looks(found, visible_gpus(environment, gpus)):
        start, before = time.perf_counter(), processor_seconds_of_children()
        limit = None if cores is None else partial(_keep_to, cores)
        driver = subprocess.Popen([sys.executable, "-c", program], cwd=folder, env=environment, preexec_fn=limit)
        looked = start
        while driver.poll() is None:
            if time.perf_counter() - looked >= HOST_LOOK_SECONDS:
                found.host.look(driver.pid)
                looked = time.perf_counter()
            if kill_at is not None and found.killed is None:
                _kill_one(found, driver.pid, folder / words[words.index("--results") + 1], kill_at)
            with contextlib.suppress(subprocess.TimeoutExpired):
                driver.wait(0.05)
        found.seconds, found.code = time.perf_counter() - start, driver.returncode
        found.processor_seconds = processor_seconds_of_children() - before
    return found


def processor_seconds_of_children() -> float:
    """Processor time of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _keep_to(cores: int) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def _kill_one(found: Watched, driver: int, results: Path, kill_at: int) -> None:
    committed = sum(1 for _ in results.glob("sweep/commits/**/*.json"))
    workers = workers_of(driver) if committed >= kill_at else []
    if workers:
        os.kill(workers[0], signal.SIGKILL)
        found.killed, found.committed_at_kill = workers[0], committed


def workers_of(driver: int) -> list[int]:
    """The worker processes below ``driver``, by the names that Ray gives them."""
    workers = []
    for pid in sorted(descendants(driver)):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::Worker"):
                workers.append(pid)
    return workers


def visible_gpus(environment: Mapping[str, str], count: int) -> list[int]:
    """The machine's numbers of the first ``count`` GPUs that a process with this environment sees."""
    named = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    numbers = [int(name) for name in named if name.strip().isdigit()]
    return (numbers or list(range(count)))[:count]


@contextlib.contextmanager
def _gpu_looks(found: Watched, gpus: Collection[int]):
    """The share of time with a kernel running, of these GPUs, as nvidia-smi tells it five times a second."""
    tool = shutil.which("nvidia-smi")
    if not gpus or tool is None:
        yield
        return
    query = [tool, "--query-gpu=index,utilization.gpu", "--format=csv,noheader,nounits"]
    smi = subprocess.Popen([*query, f"-lms={int(1000 * LOOK_SECONDS)}"], stdout=subprocess.PIPE, text=True)

    def read() -> None:
        for line in smi.stdout or ():
            index, _, share = line.partition(",")
            if index.strip().isdigit() and share.strip().isdigit() and int(index) in gpus:
                found.busy[int(index)].append((time.time(), int(share) / 100))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield
    finally:
        smi.terminate()
        smi.wait()
        reader.join(2)
