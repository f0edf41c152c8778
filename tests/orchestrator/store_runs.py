"""Runs, rows and whole small sweeps for tests of the store and its readers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from orchestrator import schema
from orchestrator.store import ParquetStore
from orchestrator.types import PlannedRun, RunConfig, RunStatus

CORRUPTIONS = ("gaussian_noise", "fog", "jpeg_compression")


def planned(seed: int = 0, label: str = "deyo", corruption: str | None = "fog", **changes: Any) -> PlannedRun:
    """A planned run; ``changes`` are fields of its config or of the run itself."""
    own = {k: changes.pop(k) for k in ("aliases", "stamps", "run_id") if k in changes}
    values: dict[str, Any] = {
        "benchmark": "digits-c",
        "scenario": "mild",
        "model": "small-resnet-bn",
        "method": "deyo",
        "label": label,
        "settings": {"lr": 0.001},
        "seed": seed,
        "batch_size": 8,
        "corruption": corruption,
        "severity": 5,
        "record_samples": True,
    }
    config = RunConfig(**{**values, **changes})
    identity = hashlib.sha256(repr(config).encode()).hexdigest()[:16]
    stamps = {"config_id": identity, "weights_id": "w1", "numerics_version": 1, "code_digest": "c1"}
    own = {"run_id": identity, "stamps": stamps, **own}
    return PlannedRun(config=config, status=RunStatus.NEW, **own)


def batch_rows(steps: Iterable[int], images: int = 8) -> pa.RecordBatch:
    """Rows of ``batches``; the number correct is a function of the step."""
    rows = [{"step": s, "images": images, "correct": s % (images + 1), "skipped": False, "reset": False} for s in steps]
    return pa.RecordBatch.from_pylist(rows, schema=schema.BATCHES)


def sample_rows(positions: Iterable[int]) -> pa.RecordBatch:
    """Rows of ``samples``; every third prediction is wrong."""
    at = np.array(list(positions), np.int64)
    columns = {
        "position": at,
        "index": at,
        "label": at % 10,
        "group": np.zeros_like(at),
        "prediction": np.where(at % 3 == 0, (at + 1) % 10, at % 10),
        "entropy": (at % 7).astype(np.float32) / 7,
        "plpd": (at % 5).astype(np.float32) / 5,
    }
    return pa.RecordBatch.from_pydict(columns)


def row(images: int = 32, accuracy: float = 0.5, **changes: Any) -> dict[str, Any]:
    """What a worker says of a finished run."""
    return {"images": images, "accuracy": accuracy, "collapsed": False, "code_version": "abc", **changes}


def run_once(store: ParquetStore, run: PlannedRun, *, steps: int = 4, samples: bool = True, **values: Any) -> bool:
    """One whole attempt at ``run``."""
    attempt = store.next_attempt(run.run_id)
    store.begin(run, attempt)
    store.append(run.run_id, attempt, "batches", batch_rows(range(steps)))
    if samples:
        store.append(run.run_id, attempt, "samples", sample_rows(range(8 * steps)))
    return store.commit(run, attempt, row(8 * steps, **values))


def grid(seeds: Iterable[int] = range(3), labels: Iterable[str] = ("tent", "deyo")) -> Iterator[PlannedRun]:
    """A small sweep: labels x corruptions x seeds."""
    for label in labels:
        for corruption in CORRUPTIONS:
            for seed in seeds:
                yield planned(seed, label, corruption)


def as_sets(table: pa.Table, columns: Iterable[str]) -> set[tuple[Any, ...]]:
    """Rows as a set of tuples, after checking that none is double."""
    rows: list[Mapping[str, Any]] = table.select(list(columns)).to_pylist()
    found = {tuple(r.values()) for r in rows}
    assert len(found) == len(rows)
    return found
