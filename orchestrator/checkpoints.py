"""A run's state in the middle of its stream, as one safetensors blob.

It holds the run's share of the method's state, its metrics so far, and the rows that it has already handed
out: a resumed run is a new attempt, which hands out all of its rows again under its own number. States of
runs that were checkpointed in one group can be put together again in any company, as long as they stand at
the same step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from safetensors.torch import load, save
from torch import Tensor

_METHOD, _SHARED, _METRICS, _ROWS, _SECONDS = "method.", "shared.", "metrics.", "rows.", "seconds"


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A blob unpacked: the method's tensors by name, of this run and common to its group; the rest as put in."""

    method: Mapping[str, Tensor]
    shared: Mapping[str, Tensor]
    metrics: Mapping[str, np.ndarray]
    rows: Mapping[str, Sequence[pa.RecordBatch]]
    seconds: float


def pack(
    state: Mapping[str, Tensor],
    run: int,
    runs: int,
    metrics: Mapping[str, np.ndarray],
    rows: Mapping[str, Sequence[pa.RecordBatch]],
    seconds: float,
) -> bytes:
    """The blob of run number ``run`` of ``runs``, ``seconds`` of work into its stream.

    State tensors have the run axis first; those without any axis are common to the group.
    """
    tensors: dict[str, Tensor] = {_SECONDS: torch.tensor(seconds, dtype=torch.float64)}
    for name, value in state.items():
        if value.ndim and value.shape[0] == runs:
            tensors[_METHOD + name] = value[run].detach().cpu().contiguous()
        else:
            tensors[_SHARED + name] = value.detach().cpu().contiguous()
    for name, array in metrics.items():
        tensors[_METRICS + name] = torch.from_numpy(np.ascontiguousarray(array))
    for grain, batches in rows.items():
        if batches:
            tensors[_ROWS + grain] = torch.from_numpy(_to_bytes(batches))
    return save(tensors)


def unpack(blob: bytes) -> Saved:
    """The inverse of ``pack``. Raises safetensors' error for a damaged blob."""
    tensors = load(blob)

    def part(prefix: str) -> dict[str, Tensor]:
        return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

    return Saved(
        method=part(_METHOD),
        shared=part(_SHARED),
        metrics={name: tensor.numpy() for name, tensor in part(_METRICS).items()},
        rows={grain: _from_bytes(tensor.numpy()) for grain, tensor in part(_ROWS).items()},
        seconds=float(tensors[_SECONDS]),
    )


def merge(saved: Sequence[Saved]) -> dict[str, Tensor]:
    """The method state of a group made of these runs, in this order."""
    first = saved[0]
    stacked = {name: torch.stack([s.method[name] for s in saved]) for name in first.method}
    return {**first.shared, **stacked}


def renumber(batch: pa.RecordBatch, attempt: int) -> pa.RecordBatch:
    """The same rows under another attempt number."""
    position = batch.schema.get_field_index("attempt")
    column: Any = pa.array([attempt] * batch.num_rows, type=batch.schema.field(position).type)
    return batch.set_column(position, batch.schema.field(position), column)


def _to_bytes(batches: Sequence[pa.RecordBatch]) -> np.ndarray:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return np.frombuffer(sink.getvalue(), dtype=np.uint8).copy()


def _from_bytes(array: np.ndarray) -> list[pa.RecordBatch]:
    return list(pa.ipc.open_stream(pa.py_buffer(array.tobytes())))
