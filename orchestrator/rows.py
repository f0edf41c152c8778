"""From the engine's step records to rows of the result schema."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from orchestrator import schema

if TYPE_CHECKING:
    from deyo.types import StepRecord


def canonical(value: Mapping[str, Any]) -> str:
    """Compact JSON with sorted keys."""
    return json.dumps(dict(value), sort_keys=True, separators=(",", ":"))


@dataclass
class BatchRows:
    """Collects one run's step records until they are handed on as a record batch of ``batches``."""

    run_id: str
    attempt: int
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, record: StepRecord, run: int) -> None:
        label, prediction = record.label[run], record.prediction[run]
        self.rows.append(
            {
                "run_id": self.run_id,
                "attempt": self.attempt,
                "step": int(record.step),
                "images": len(label),
                "correct": int((label == prediction).sum()),
                "mean_entropy": nan_mean(record.entropy[run]),
                "mean_plpd": nan_mean(record.plpd[run]),
                "selected_entropy": int(record.passed_entropy[run].sum()),
                "selected": int(record.passed_both[run].sum()),
                "forwards": int(record.forwards[run]),
                "backwards": int(record.backwards[run]),
                "skipped": bool(record.skipped[run]),
                "reset": bool(record.reset[run]),
            }
        )

    def take(self) -> pa.RecordBatch | None:
        """What was collected, stamped with the time; None if there is nothing."""
        if not self.rows:
            return None
        now = time.time()
        batch = pa.RecordBatch.from_pylist([{**r, "recorded_at": now} for r in self.rows], schema=schema.BATCHES)
        self.rows = []
        return batch


@dataclass
class SampleRows:
    """The same for ``samples``: one row an image."""

    run_id: str
    attempt: int
    batch_size: int
    domain_names: Sequence[str] = ()
    parts: list[pa.RecordBatch] = field(default_factory=list)

    def add(self, record: StepRecord, run: int) -> None:
        n = len(record.label[run])
        names = np.array([*self.domain_names, None], dtype=object)  # domain -1 is the last: none
        columns = {
            "run_id": pa.array([self.run_id] * n),
            "attempt": np.full(n, self.attempt),
            "position": record.step * self.batch_size + np.arange(n),
            "index": record.index[run],
            "label": record.label[run],
            "group": record.group[run],
            "domain": pa.array(names[record.domain[run]], type=pa.string()),
            "prediction": record.prediction[run],
            "entropy": record.entropy[run].astype(np.float32),
            "plpd": record.plpd[run].astype(np.float32),
            "passed_entropy": record.passed_entropy[run],
            "passed_both": record.passed_both[run],
        }
        arrays = [pa.array(columns[f.name]).cast(f.type) for f in schema.SAMPLES]
        self.parts.append(pa.RecordBatch.from_arrays(arrays, schema=schema.SAMPLES))

    def take(self) -> pa.RecordBatch | None:
        if not self.parts:
            return None
        batch = pa.Table.from_batches(self.parts).combine_chunks().to_batches()[0]
        self.parts = []
        return batch


def nan_mean(values: np.ndarray) -> float | None:
    """The mean of what is finite; None if nothing is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        finite = values[np.isfinite(values)]
        return float(finite.mean()) if finite.size else None
