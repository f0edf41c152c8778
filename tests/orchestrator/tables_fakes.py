"""Made-up sweeps for tests of tables and the report: rows with the store's schema, plans, and real stores."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from orchestrator import schema
from orchestrator.tables.data import SweepData, from_runs
from orchestrator.types import Failure, FailureClass, Plan, PlannedRun, RunConfig, RunStatus

CORRUPTIONS = ("gaussian_noise", "defocus_blur", "contrast")


def config(**changes: Any) -> RunConfig:
    """A run's configuration; ``label`` follows the method where it is not given."""
    values: dict[str, Any] = {
        "benchmark": "digits-c",
        "scenario": "mild",
        "model": "small-resnet-bn",
        "method": "tent",
        "settings": {"learning_rate": 0.001},
        "seed": 0,
        "batch_size": 64,
        "corruption": "gaussian_noise",
        "severity": 5,
        "precision": "float32",
    }
    values |= changes
    values.setdefault("label", values["method"])
    return RunConfig(**values)


def grid(**axes: Iterable[Any]) -> list[RunConfig]:
    """The product of ``axes`` (field name to values), the last axis fastest."""
    return [config(**dict(zip(axes, values))) for values in itertools.product(*axes.values())]


def planned(configs: Sequence[RunConfig]) -> list[PlannedRun]:
    return [PlannedRun(run_id=f"{i:016x}", config=c, status=RunStatus.NEW) for i, c in enumerate(configs)]


def row(run: PlannedRun, **metrics: Any) -> dict[str, Any]:
    """A ``runs`` row with sound metrics and provenance, changed by ``metrics``."""
    c = run.config
    values: dict[str, Any] = {
        "run_id": run.run_id,
        "attempt": 1,
        "sweep": "fake",
        "benchmark_options": json.dumps(dict(c.benchmark_options)),
        "scenario_options": json.dumps(dict(c.scenario_options)),
        "settings": json.dumps(dict(c.settings)),
        "corruptions": list(c.corruptions),
        "images": 1000,
        "accuracy": 0.5,
        "group_accuracies": [],
        "domain_accuracies": [],
        "collapsed": False,
        "nan_steps": 0,
        "skipped_images": 0,
        "forwards": 1000,
        "backwards": 500,
        "selected": 500,
        "selected_entropy": 700,
        "seconds": 10.0,
        "decode_seconds": 1.0,
        "images_per_second": 100.0,
        "peak_memory_bytes": 2**30,
        "group_size": 3,
        "weights_sha256": "ab" * 32,
        "data_fingerprint": f"{abs(hash((c.benchmark, c.corruption, c.severity))):032x}",
        "numerics_version": 1,
        "device_name": "Fake GPU",
        "code_dirty": False,
        "libraries": json.dumps({"torch": "2.14.1"}),
        "started_at": "2026-01-01T00:00:00Z",
        "finished_at": "2026-01-01T00:01:00Z",
        "code_version": "abc1234",
        "schema_version": schema.VERSION,
    }
    axes = ("benchmark", "corruption", "severity", "scenario", "model", "method", "label", "seed", "pretrain_seed")
    values |= {name: getattr(c, name) for name in (*axes, "batch_size", "protocol", "precision", "max_images")}
    return values | metrics


def runs_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist([dict(r) for r in rows], schema=schema.RUNS)


def sweep(
    configs: Sequence[RunConfig],
    accuracy: Callable[[RunConfig], float | None],
    *,
    failed: Sequence[int] = (),
    extra: Callable[[RunConfig], dict[str, Any]] = lambda c: {},
    with_plan: bool = True,
) -> SweepData:
    """A sweep whose runs have ``accuracy`` (None: the run is missing); runs at ``failed`` positions failed."""
    plan = planned(configs)
    rows = [
        row(run, accuracy=accuracy(run.config), **extra(run.config))
        for i, run in enumerate(plan)
        if i not in failed and accuracy(run.config) is not None
    ]
    failures = {plan[i].run_id: Failure(kind=FailureClass.ERROR, message="it broke") for i in failed}
    return from_runs(runs_table(rows), sweep="fake", planned=plan if with_plan else None, failures=failures)


def biased_row(run: PlannedRun, groups: Sequence[float]) -> dict[str, Any]:
    """A row with group accuracies (fractions), 100 images each."""
    counts = [{"name": f"g{i}", "images": 100, "correct": round(100 * g)} for i, g in enumerate(groups)]
    return row(
        run,
        group_accuracies=counts,
        accuracy=float(np.mean(groups)),
        average_accuracy=float(np.mean(groups)),
        adjusted_accuracy=float(np.mean(groups)),
        worst_group_accuracy=float(min(groups)),
    )


def write_store(
    root: Path,
    name: str,
    configs: Sequence[RunConfig],
    row_of: Callable[[PlannedRun], dict[str, Any] | None],
    *,
    steps: int = 0,
    with_samples: bool = False,
) -> Plan:
    """A real store of a sweep: ``row_of`` gives each run's row, or None for a run that fails."""
    from orchestrator.store import ParquetStore

    plan = Plan(sweep=name, runs=tuple(planned(configs)))
    store = ParquetStore(str(root), name)
    store.write_plan(plan)
    store.write_spec(f"name: {name}\n", {"name": name})
    for run in plan.runs:
        store.begin(run, 1)
        found = row_of(run)
        if found is None:
            store.append_log(run.run_id, 1, "Traceback: it broke\n")
            store.fail(run.run_id, 1, Failure(kind=FailureClass.ERROR, message="it broke", signature="E1"))
            continue
        if steps:  # the store checks that a run's rows add up to its images
            found = found | {"images": 64 * steps}
            store.append(run.run_id, 1, "batches", batches(run, steps))
        if with_samples:
            store.append(run.run_id, 1, "samples", samples(run, 64 * steps))
        store.commit(run, 1, found)
    store.flush()
    store.close()
    return plan


def batches(run: PlannedRun, steps: int) -> pa.RecordBatch:
    """Rows of ``batches`` with an accuracy that rises along the stream."""
    random = np.random.default_rng([run.config.seed, len(run.config.method)])
    base = {"run_id": run.run_id, "attempt": 1, "images": 64, "forwards": 64, "backwards": 32}
    rows = [
        base
        | {
            "step": i,
            "correct": int(random.binomial(64, 0.4 + 0.05 * (len(run.config.method) % 4) + 0.3 * i / steps)),
            "mean_entropy": 1.0 - 0.5 * i / steps,
            "mean_plpd": 0.2,
            "selected_entropy": 50,
            "selected": int(random.binomial(50, 0.6)),
            "skipped": False,
            "reset": False,
            "recorded_at": float(i),
        }
        for i in range(steps)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=schema.BATCHES)


def samples(run: PlannedRun, n: int = 400) -> pa.RecordBatch:
    """Rows of ``samples`` in which confident samples are more often right, in two groups."""
    random = np.random.default_rng(run.config.seed + 7)
    entropy = random.uniform(0, 0.69, n).astype(np.float32)
    plpd = random.uniform(-0.2, 1.0, n).astype(np.float32)
    right = random.uniform(size=n) < 0.4 + 0.5 * plpd
    group = np.arange(n) % 2
    label = group.astype(np.int64)
    columns: dict[str, Any] = {
        "run_id": [run.run_id] * n,
        "attempt": [1] * n,
        "position": np.arange(n),
        "index": np.arange(n),
        "label": label,
        "group": group,
        "domain": [None] * n,
        "prediction": np.where(right, label, 1 - label),
        "entropy": entropy,
        "plpd": plpd if run.config.method in ("deyo", "score") else np.full(n, np.nan, np.float32),
        "passed_entropy": entropy < 0.4,
        "passed_both": (entropy < 0.4) & (plpd > 0.3),
    }
    arrays = [pa.array(columns[f.name]).cast(f.type) for f in schema.SAMPLES]
    return pa.RecordBatch.from_arrays(arrays, schema=schema.SAMPLES)
