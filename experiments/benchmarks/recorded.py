"""Cards, runs and failures as they were recorded elsewhere: what simulated clusters are drawn from.

``cards.csv``: images a second of one card that trains ResNet-50 in PyTorch (TF32, FP32 where a card has none), from the
repository lambdal/deeplearning-benchmark: the slowest and the fastest that was measured. ``failures.csv``: the 419
unplanned interruptions in 54 days of 16,384 H100s (Llama Team, The Llama 3 Herd of Models, 2024, table 5), and whether
each takes a worker or its whole host. ``experiments/speeds.csv``: images a second of this engine on an H100.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

from orchestrator.executors.simulated import Card

HERE = Path(__file__).parent
REFERENCE = "NVIDIA H100 SXM5"
"""The card of speed 1, on which ``speeds.csv`` was measured."""
GPU_HOURS = 16_384 * 54 * 24
GPUS_PER_HOST = 8
IMAGES = 50_000
METHODS = ("no-adapt", "tent", "eata", "sar", "deyo")
MODELS = ("resnet50-bn", "resnet50-gn", "vit-base-ln")
BATCH_SIZE = 64


def cards() -> tuple[Card, ...]:
    """Every card, at speeds relative to the fastest ``REFERENCE``."""
    rows = _rows(HERE / "cards.csv")
    (one,) = (float(row["fastest"]) for row in rows if row["card"] == REFERENCE)
    return tuple(
        Card(
            name=row["card"],
            memory_bytes=int(float(row["memory_gb"]) * 1e9),
            slowest=float(row["slowest"]) / one,
            fastest=float(row["fastest"]) / one,
        )
        for row in rows
    )


def failures_per_hour(takes: str) -> float:
    """Losses an hour of one worker (``takes`` = "worker"), or of one host ("host")."""
    units = GPU_HOURS if takes == "worker" else GPU_HOURS / GPUS_PER_HOST
    return sum(int(row["count"]) for row in _rows(HERE / "failures.csv") if row["takes"] == takes) / units


@cache
def run_seconds() -> dict[tuple[str, str], float]:
    """Seconds of a run over ``IMAGES`` on a card of speed 1, by method and network."""
    rows = _rows(HERE.parent / "speeds.csv")
    return {
        (row["method"], row["model"]): IMAGES / float(row["images_per_second"])
        for row in rows
        if row["device"].startswith("NVIDIA H100")
        and row["method"] in METHODS
        and row["model"] in MODELS
        and int(row["batch_size"]) == BATCH_SIZE
    }


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
