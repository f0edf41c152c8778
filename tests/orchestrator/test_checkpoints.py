"""A run's state in the middle of its stream: packed, put together again, rows under a new attempt number."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import torch

from orchestrator import schema
from orchestrator.checkpoints import merge, pack, renumber, unpack


def rows(run_id: str, steps: int) -> pa.RecordBatch:
    empty = dict.fromkeys(schema.BATCHES.names)
    made = [{**empty, "run_id": run_id, "attempt": 1, "step": k, "images": 4} for k in range(steps)]
    return pa.RecordBatch.from_pylist(made, schema=schema.BATCHES)


def test_runs_of_one_group_can_be_put_together_in_any_company() -> None:
    state = {
        "theta": torch.arange(12, dtype=torch.float64).reshape(3, 4),
        "steps": torch.tensor(64),
        "seen": torch.tensor([True, False, True]),
    }
    blobs = [pack(state, r, 3, {"label": np.array([r, 2])}, {"batches": [rows(f"r{r}", 2)]}, 1.5) for r in range(3)]
    two = [unpack(blobs[2]), unpack(blobs[0])]
    merged = merge(two)
    assert torch.equal(merged["theta"], state["theta"][[2, 0]])
    assert merged["seen"].tolist() == [True, True]
    assert merged["steps"].item() == 64
    assert two[0].metrics["label"].tolist() == [2, 2]
    assert two[0].seconds == 1.5


def test_rows_come_back_and_take_the_new_attempt_number() -> None:
    saved = unpack(pack({}, 0, 1, {}, {"batches": [rows("r", 2), rows("r", 1)], "samples": []}, 0.0))
    assert set(saved.rows) == {"batches"}
    again = [renumber(batch, 7) for batch in saved.rows["batches"]]
    assert [b.num_rows for b in again] == [2, 1]
    assert set(again[0].column("attempt").to_pylist()) == {7}
    assert again[0].schema == schema.BATCHES
