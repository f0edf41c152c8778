"""What every benchmark says of itself: the card, the versions, the date; and its rows as a Parquet file."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

DATA_FOLDERS = {
    "DEYO_WEIGHTS": "weights",
    "DEYO_DATA_COLORED_MNIST": "mnist",
    "DEYO_DATA_CIFAR10_JPEG": "cifar10_jpeg",
    "DEYO_DATA_IMAGE_FOLDER": "imagenet_sample",
}
LIBRARIES = ("torch", "torchvision", "timm", "numpy", "pyarrow", "ray", "mlflow")


def parser_for(description: str) -> argparse.ArgumentParser:
    """A parser whose help begins with a module's docstring, with the option that all benchmarks share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="write the figures there, as Parquet")
    return parser


def add_device(parser: argparse.ArgumentParser) -> None:
    """``--device``: the GPU where there is one."""
    import torch

    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])


def card_of(device: str) -> str:
    """The GPU's name, or the processor and how many of its cores this process may use."""
    if device.startswith("cuda"):
        import torch

        count = torch.cuda.device_count()
        return torch.cuda.get_device_name() + (f" (1 of {count})" if count > 1 else "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"CPU {platform.machine()}, {cores} cores"


def data_environment(data: str | Path) -> dict[str, str]:
    """The variables by which benchmarks and networks find real data, for a folder that holds it."""
    return {name: str(Path(data).resolve() / folder) for name, folder in DATA_FOLDERS.items()}


def versions() -> dict[str, str]:
    """Installed versions of what decides speed; a library that is missing is left out."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def heading(device: str) -> str:
    """The first line of a benchmark."""
    listed = ", ".join(f"{name} {text}" for name, text in versions().items())
    return f"card {card_of(device)}; {listed}; {datetime.now(UTC):%Y-%m-%d}"


def save(rows: Sequence[Mapping[str, Any]], device: str, out: str | None) -> None:
    """Write ``rows`` with card, versions, command and date to ``out``, replacing the file; nothing without ``out``."""
    if not out or not rows:
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    stamps = {
        "card": card_of(device),
        **{f"{name}_version": text for name, text in versions().items()},
        "command": " ".join(["python -m", _module(), *sys.argv[1:]]),
        "load": load,
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
    }
    names = list(dict.fromkeys(name for row in rows for name in row))
    whole = [{**{name: row.get(name) for name in names}, **stamps} for row in rows]
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(whole), out)


def _module() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec else Path(sys.argv[0]).name
