"""One analysis run from start to end: what it looks at, its findings, rows and the finished row."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from deyo.types import ImageSet, PixelSource, StepRecord
from orchestrator import engine, provenance
from orchestrator.analyses import ANALYSES, load_analysis, settings_from_json
from orchestrator.analyses.base import Findings, Subject
from orchestrator.rows import BatchRows, SampleRows
from orchestrator.types import GroupTask, Message, PlannedRun, Rows, RunFinished

if TYPE_CHECKING:
    from orchestrator.worker import WorkerState


class Picked:
    """The images ``index`` of a set, in this order, read when asked for."""

    def __init__(self, pixels: PixelSource, index: np.ndarray) -> None:
        self.pixels, self.index = pixels, index
        self.shape = (len(index), *pixels.shape[1:])

    def __getitem__(self, indices: Any) -> np.ndarray:
        return self.pixels[self.index[indices]]


def run_analyses(task: GroupTask, state: WorkerState) -> Iterator[Message]:
    """The runs of ``task`` one after the other; what fails makes the task fail."""
    for run in task.runs:
        yield from _run(task, run, state)


def _run(task: GroupTask, run: PlannedRun, state: WorkerState) -> Iterator[Message]:
    config, attempt, started_at = run.config, task.attempts[run.run_id], provenance.now()
    state.reset_peak()
    before = time.perf_counter()
    subject, columns, domain_names = _subject(task, run, state)
    ready = time.perf_counter()
    findings = load_analysis(config.method).run(subject)
    state.synchronise()
    seconds = time.perf_counter() - ready
    metrics = engine.RunMetrics(
        2 if findings.scores is None else findings.scores.num_classes,
        subject.group_names,
        domain_names,
        columns.pop("train_group_sizes", None),
    )
    batches = BatchRows(run.run_id, attempt)
    samples = SampleRows(run.run_id, attempt, config.batch_size, domain_names)
    for record in _records(findings, subject):
        metrics.update(record)
        batches.add(record, 0)
        samples.add(record, 0)
    # Without a score of its own an analysis has no samples to tell: their entropies are those of any score run.
    wanted = {"batches": batches, **({"samples": samples} if config.record_samples and findings.kind else {})}
    for grain, collector in wanted.items():
        batch = collector.take()
        if batch is not None:
            yield Rows(run_id=run.run_id, grain=grain, batch=batch)
    summary = metrics.summary()
    peak, _ = state.memory_peak()
    row = {
        **state.stamps,
        **summary,
        **columns,
        "forwards": findings.forwards,
        "seconds": seconds,
        "decode_seconds": ready - before,
        "images_per_second": summary["images"] / seconds if summary["images"] and seconds > 0 else None,
        "peak_memory_bytes": peak,
        "group_size": 1,
        "started_at": started_at,
        "finished_at": provenance.now(),
        "analysis": None if findings.picture is None else json.dumps(findings.picture, separators=(",", ":")),
    }
    yield RunFinished(run_id=run.run_id, row=row)


def _subject(task: GroupTask, run: PlannedRun, state: WorkerState) -> tuple[Subject, dict[str, Any], tuple[str, ...]]:
    """What the run looks at, the columns of its row that say so, and the names of its images' domains."""
    config, needs = run.config, ANALYSES[run.config.method]
    settings = settings_from_json(config.method, dict(config.settings))
    blank = Subject(config=config, settings=settings, device=state.device)
    if not needs.needs_data:
        return blank, {}, ()
    benchmark = state.benchmark(task, config.benchmark, config.benchmark_options)
    # Not the worker's resident images: an analysis reads them on the host.
    images = engine.images_for(benchmark, config.scenario, config.corruption, config.severity, config.corruptions)
    stream = engine.make_stream(
        config.scenario,
        images,
        seed=config.seed,
        batch_size=config.batch_size,
        max_images=config.max_images,
        **config.scenario_options,
    )
    columns: dict[str, Any] = {
        "data_fingerprint": images.fingerprint,
        "stream_digest": stream.digest,
        "skipped_images": images.skipped,
        "train_group_sizes": getattr(benchmark, "train_group_sizes", None),
    }
    network = state.network(task, config, benchmark) if needs.needs_network else None
    if network is not None:
        columns |= {"weights_sha256": network.sha256, "weights_source": network.source}
    subject = replace(
        blank,
        images=picked(images, stream.order),
        index=stream.order,
        network=network,
        group_names=tuple(benchmark.group_names),
        class_columns=benchmark.class_columns,
        entropy_classes=getattr(benchmark, "entropy_classes", None),
    )
    return subject, columns, images.domain_names


def picked(images: ImageSet, index: np.ndarray) -> ImageSet:
    """The images at int64 ``index`` as a set of their own."""

    def part(values: np.ndarray | None) -> np.ndarray | None:
        return None if values is None else np.asarray(values)[index]

    return replace(
        images,
        pixels=Picked(images.pixels, index),
        labels=np.asarray(images.labels)[index],
        groups=part(images.groups),
        domains=part(images.domains),
    )


def _records(findings: Findings, subject: Subject) -> Iterator[StepRecord]:
    """The scores as a loop would hand them out, a batch of the stream at a time."""
    scores, index, size = findings.scores, subject.index, subject.config.batch_size
    if scores is None or index is None:
        return
    count = len(scores.label)
    domains = subject.pictures.domains
    nothing, no = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=bool)
    plpd = scores.plpd[findings.kind] if findings.kind else np.full(count, np.nan)
    whole = {
        "index": index,
        "label": scores.label,
        "group": scores.group,
        "domain": np.full(count, -1) if domains is None else np.asarray(domains),
        "prediction": scores.prediction,
        "entropy": np.where(np.isfinite(scores.entropy), scores.entropy, np.nan),
        "plpd": plpd,
        "passed_entropy": findings.passed_entropy,
        "passed_both": findings.passed_both,
    }
    for step, start in enumerate(range(0, count, size)):
        part = {name: values[None, start : start + size] for name, values in whole.items() if values is not None}
        each = np.array([min(size, count - start) * findings.forwards // count])
        yield StepRecord(step=step, forwards=each, backwards=nothing, skipped=~no, reset=no, **part)
