"""A user's own method, announced by an installed package, is a name like any other."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

CHECK = """
import sys
sys.path[:0] = [{site!r}, {tests!r}]
import torch
from deyo.methods import create_method, method_lockstep, method_names, resolve_settings, settings_class
from deyo.types import ConfigError, MethodContext
from parity_cases import network_for, rgb

assert "sharp-tent" in method_names() and method_lockstep("sharp-tent")
network, pixels, _ = network_for("network_bn")
common = dict(info=network.info, batch_size=32, num_classes=10, benchmark="digits-c", scenario="mild")
settings = [resolve_settings("sharp-tent", {{"temperature": t}}, **common) for t in (1.0, 0.5)]
try:
    resolve_settings("sharp-tent", {{"temprature": 1}}, **common)
except ConfigError as error:
    assert "did you mean 'temperature'" in str(error)
else:
    raise AssertionError("an unknown setting was accepted")

def run(name, settings):
    context = MethodContext(network=network, seeds=list(range(len(settings))), batch_size=32, precision="float64")
    method = create_method(name, context, settings)
    return torch.stack([method.step(rgb(batch).expand(len(settings), -1, -1, -1, -1)) for batch in pixels])

together = run("sharp-tent", settings)
tent = run("tent", [resolve_settings("tent", {{}}, **common)])
assert torch.allclose(together[:, :1], tent, rtol=0, atol=1e-9)
assert not torch.allclose(together[:, 1:], tent)
print("plugin works")
"""


def test_an_installed_package_brings_its_own_method(tmp_path: Path) -> None:
    shutil.copy(HERE / "plugin" / "norm_tent.py", tmp_path)
    info = tmp_path / "norm_tent-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: norm-tent\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[deyo.methods]\nsharp-tent = norm_tent:SharpTent\n")
    script = CHECK.format(site=str(tmp_path), tests=str(HERE))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=HERE.parents[1])
    assert done.returncode == 0, done.stderr
    assert "plugin works" in done.stdout
