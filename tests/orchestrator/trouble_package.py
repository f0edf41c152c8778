"""An installed package whose method ``trouble`` misbehaves on demand: what workers must survive."""

from __future__ import annotations

from pathlib import Path

METHOD = """
from __future__ import annotations

import ctypes
import os
import time
from dataclasses import dataclass

from deyo.methods.no_adapt import NoAdapt
from deyo.settings import setting


@dataclass(frozen=True, kw_only=True)
class TroubleSettings:
    action: str = setting("none", doc="none, segfault, exit, raise, hang or print, at the second step")
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
        print(f"trouble: {action}", flush=True)
        if action == "segfault":
            ctypes.string_at(0)
        if action == "exit":
            os._exit(137)
        if action == "raise":
            raise RuntimeError(f"trouble with image {int(self.seeds[0])}")
        if action == "hang":
            time.sleep(3600)
"""


def install(folder: Path) -> Path:
    """Write the package under ``folder``, which is then to be on PYTHONPATH; returns it."""
    info = folder / "trouble-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "trouble_method.py").write_text(METHOD)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: trouble\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[deyo.methods]\ntrouble = trouble_method:Trouble\n")
    return folder
