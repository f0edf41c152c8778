"""AURC of each run from recorded samples, however many there are: one run in memory at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deyo.confidence import aurc
from deyo.types import ConfigError
from orchestrator.results import Results

SCORES = {"entropy": -1.0, "plpd": 1.0}
"""What may order samples by confidence, with its sign: low entropy and high PLPD are confident."""

AURC = pa.schema([("run_id", pa.string()), ("samples", pa.int64()), ("accuracy", pa.float64()), ("aurc", pa.float64())])


def aurc_by_run(results: Results, score: str = "entropy", run_ids: Collection[str] | None = None) -> pa.Table:
    """``AURC`` for each run with samples (or those of ``run_ids``), as fractions, in the order of the store.

    The confidence is minus the entropy, or the PLPD; ties keep the order of the stream (``deyo.confidence``).
    Raises ``ConfigError`` for another score.
    """
    if score not in SCORES:
        raise ConfigError(f"score {score!r}: expected one of {', '.join(SCORES)}")
    found: dict[str, list] = {name: [] for name in AURC.names}
    for run_id, confidence, correct in scored_samples(results, score, run_ids):
        found["run_id"].append(run_id)
        found["samples"].append(len(correct))
        found["accuracy"].append(float(correct.mean()))
        found["aurc"].append(aurc(confidence, correct))
    return pa.table(found, schema=AURC)


def scored_samples(
    results: Results, score: str, run_ids: Collection[str] | None = None
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """For each run its id, confidence float32 [n] and whether each prediction is right, bool [n]."""
    columns = ["run_id", "prediction", "label", score]
    held: tuple[str, list[np.ndarray], list[np.ndarray]] | None = None
    for batch in results.scan("samples", run_ids, columns=columns):
        confidence = SCORES[score] * batch[score].to_numpy(zero_copy_only=False).astype(np.float32, copy=False)
        correct = pc.equal(batch["prediction"], batch["label"]).to_numpy(zero_copy_only=False)
        for run_id, start, end in _stretches(batch["run_id"]):
            if held is None or held[0] != run_id:
                yield from _joined(held)
                held = (run_id, [], [])
            held[1].append(confidence[start:end])
            held[2].append(correct[start:end])
    yield from _joined(held)


def _joined(
    held: tuple[str, list[np.ndarray], list[np.ndarray]] | None,
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    if held is not None:
        yield held[0], np.concatenate(held[1]), np.concatenate(held[2])


def _stretches(run_ids: pa.Array) -> Iterator[tuple[str, int, int]]:
    """(run, start, end) of each stretch of equal ids."""
    if not len(run_ids):
        return
    encoded = pc.run_end_encode(run_ids)
    start = 0
    for run_id, end in zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist()):
        yield run_id, start, end
        start = end
