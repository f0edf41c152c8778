"""An installed package whose methods ``trouble`` and ``greedy`` misbehave on demand, and whose benchmark ``deadly``
ends its process: what workers must survive."""

from __future__ import annotations

from pathlib import Path

METHOD = """
from __future__ import annotations

import ctypes
import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from deyo.methods.no_adapt import NoAdapt
from deyo.settings import setting

GIGABYTE = 1 << 30
ACTIONS = "none, segfault, exit, raise, hang, print, sticky, python-memory, torch-memory or eat, at the second step"


@dataclass(frozen=True, kw_only=True)
class TroubleSettings:
    action: str = setting("none", doc=ACTIONS)
    once: str = setting("", doc="a folder: the action is taken only by the first to make a file there")
    seconds: float = setting(0.0, doc="sleep at each step")


class Trouble(NoAdapt):
    name = "trouble"
    lockstep = False
    Settings = TroubleSettings

    def adapt(self, pixels):
        s = self.settings[0]
        time.sleep(s.seconds)
        if int(self.steps) == 1 and self._first(s.once):
            self._act(s.action)
        return super().adapt(pixels)

    def _first(self, folder):
        if not folder:
            return True
        try:
            os.mkdir(os.path.join(folder, f"seed{int(self.seeds[0])}"))
        except FileExistsError:
            return False
        return True

    def _act(self, action):
        print(f"trouble: {action} in process {os.getpid()}", flush=True)
        if action == "segfault":
            ctypes.string_at(0)
        if action == "exit":
            os._exit(137)
        if action == "raise":
            raise RuntimeError(f"trouble with image {int(self.seeds[0])}")
        if action == "sticky":
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
        if action == "hang":
            time.sleep(3600)
        if action == "python-memory":
            limit_memory()
            bytearray(8 * GIGABYTE)
        if action == "torch-memory":
            limit_memory()
            torch.zeros(8 * GIGABYTE, dtype=torch.uint8)
        if action == "eat":
            eaten = []
            while len(eaten) < 60:  # somebody has to stop it before
                eaten.append(torch.ones(GIGABYTE // 10, dtype=torch.uint8))
                time.sleep(0.1)


def limit_memory():
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + GIGABYTE, size + GIGABYTE))


@dataclass(frozen=True, kw_only=True)
class GreedySettings:
    fits: int = setting(1, doc="so many runs side by side fit into the memory of an imaginary GPU")


class Greedy(NoAdapt):
    name = "greedy"
    Settings = GreedySettings

    def adapt(self, pixels):
        if int(self.steps) == 1 and len(self.settings) > self.settings[0].fits:
            raise torch.cuda.OutOfMemoryError(f"CUDA out of memory. {len(self.settings)} runs do not fit")
        return super().adapt(pixels)


class Deadly:
    @staticmethod
    def describe(**options):
        print(f"deadly: the end of process {os.getpid()}", flush=True)
        os._exit(137)
"""


def install(folder: Path) -> Path:
    """Write the package under ``folder``, which is then to be on PYTHONPATH; returns it."""
    info = folder / "trouble-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "trouble_method.py").write_text(METHOD)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: trouble\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[deyo.methods]\ntrouble = trouble_method:Trouble\ngreedy = trouble_method:Greedy\n"
        "[deyo.benchmarks]\ndeadly = trouble_method:Deadly\n"
    )
    return folder
