"""One group of runs from start to end: streams, method, loop, rows, checkpoints, metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from deyo.types import Benchmark, ConfigError, DataError, ImageSet, Method, MethodContext, Network, StepRecord, Stream
from orchestrator import checkpoints, engine, provenance
from orchestrator.attempts import classify
from orchestrator.grouping import needs_source
from orchestrator.rows import BatchRows, SampleRows
from orchestrator.types import (
    Checkpoint,
    GroupTask,
    MemoryMeasured,
    Message,
    PlannedRun,
    ProbeTask,
    Rows,
    RunConfig,
    RunFailed,
    RunFinished,
)

if TYPE_CHECKING:
    from orchestrator.worker import WorkerState

BLOCK = 64
"""Steps that the loop reports at a time; checkpoints are taken between blocks."""

PROBE_STEPS = 2
"""Steps that a probe of memory runs: the second one has what an optimiser makes in the first."""

COMPILE_FROM_PIXELS = 20_000 * 224**2
"""Groups that see fewer pixels (of images or augmented views) run through graphs of the plain network: compiling takes
longer than it saves. Small images leave a GPU waiting for launches, which graphs alone cure."""


@dataclass(kw_only=True)
class Member:
    """One run of a group: its stream, and what has been collected of it so far."""

    run: PlannedRun
    attempt: int
    stream: Stream
    decode_seconds: float
    metrics: engine.RunMetrics
    collectors: dict[str, BatchRows | SampleRows]
    resume: Checkpoint | None = None
    seconds: float = 0.0
    handed_out: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[Any, ...]:
        """Members advance together if this is equal: the loop and the method's state demand it."""
        start = self.resume.step if self.resume else 0
        return len(self.stream.order), self.stream.batch_size, self.stream.reset_at, start

    def add(self, record: StepRecord, position: int) -> None:
        self.metrics.update(record, position)
        for collector in self.collectors.values():
            collector.add(record, position)

    def take_rows(self) -> Iterator[Rows]:
        for grain, collector in self.collectors.items():
            batch = collector.take()
            if batch is not None:
                self.handed_out.setdefault(grain, []).append(batch)
                yield Rows(run_id=self.run.run_id, grain=grain, batch=batch)


def run_group(task: GroupTask, state: WorkerState) -> Iterator[Message]:
    """Run ``task``'s runs side by side; those that cannot start fail alone (if they have company).

    Where they are fewer than the task's width, the last of them is repeated, and the copies' records dropped.
    """
    config = task.runs[0].config
    started_at = provenance.now()
    benchmark = state.benchmark(task, config.benchmark, config.benchmark_options)
    network = state.network(task, config, benchmark)
    members = []
    for run in task.runs:
        try:
            members.append(_member(task, run, state, benchmark, network))
        except (DataError, ConfigError) as error:
            if len(task.runs) == 1:
                raise
            yield RunFailed(run_id=run.run_id, failure=classify(error))
    state.ahead.want(task, state)
    by_shape: dict[tuple[Any, ...], list[Member]] = {}
    for member in members:
        by_shape.setdefault(member.shape, []).append(member)
    for group in by_shape.values():
        yield from _advance(group, task, state, benchmark, network, started_at)


def probe(task: ProbeTask, state: WorkerState) -> Iterator[MemoryMeasured]:
    """Peaks of memory of one run and of two side by side; nothing of their numbers is kept."""
    config = task.run.config
    benchmark = state.benchmark(task, config.benchmark, config.benchmark_options)
    network = state.network(task, config, benchmark)
    images = state.image_set(benchmark, config)
    stream = _stream(config, images)
    state.ahead.want(task, state)
    for runs in (1, 2):
        state.methods.clear()
        state.reset_peak()
        _few_steps(_method([task.run] * runs, PROBE_STEPS, state, benchmark, network), [stream] * runs)
        peak, resident = state.memory_peak()
        yield MemoryMeasured(runs=runs, peak_bytes=peak - resident)
    state.methods.clear()


def _few_steps(method: Method, streams: Sequence[Stream]) -> None:
    for record in engine.adapt(method, streams, block=1):
        if record.step + 1 >= PROBE_STEPS:
            return


def _stream(config: RunConfig, images: ImageSet) -> Stream:
    return engine.make_stream(
        config.scenario,
        images,
        seed=config.seed,
        batch_size=config.batch_size,
        max_images=config.max_images,
        **config.scenario_options,
    )


def _member(task: GroupTask, run: PlannedRun, state: WorkerState, benchmark: Benchmark, network: Network) -> Member:
    config, attempt = run.config, task.attempts[run.run_id]
    before = time.perf_counter()
    images = state.image_set(benchmark, config)
    decode_seconds = time.perf_counter() - before
    stream = _stream(config, images)
    collectors: dict[str, BatchRows | SampleRows] = {"batches": BatchRows(run.run_id, attempt)}
    if config.record_samples:
        collectors["samples"] = SampleRows(run.run_id, attempt, config.batch_size, images.domain_names)
    classes = network.num_classes if benchmark.class_columns is None else len(benchmark.class_columns)
    _check_classes(config, images, benchmark, classes)
    return Member(
        run=run,
        attempt=attempt,
        stream=stream,
        decode_seconds=decode_seconds,
        metrics=engine.RunMetrics(
            classes,
            benchmark.group_names,
            images.domain_names,
            getattr(benchmark, "train_group_sizes", None),
        ),
        collectors=collectors,
        resume=task.resume.get(run.run_id),
    )


def _check_classes(config: RunConfig, images: ImageSet, benchmark: Benchmark, classes: int) -> None:
    """Raises ``ConfigError`` where the labels cannot be the network's ``classes``."""
    if len(images) and (largest := int(images.labels.max())) >= classes:
        raise ConfigError(f"{config.model} has {classes} classes, and labels of {images.name} go up to {largest}")
    shown = getattr(benchmark, "shown_classes", None)
    if shown is not None and shown != classes:
        raise ConfigError(
            f"{config.model} has {classes} classes, and {benchmark.name} {shown} class folders. Say benchmark_options "
            f"classes: imagenet where they are named by wnids, num_classes: {classes} where they are the first classes"
        )


def _advance(
    members: Sequence[Member],
    task: GroupTask,
    state: WorkerState,
    benchmark: Benchmark,
    network: Network,
    started_at: str,
) -> Iterator[Message]:
    state.reset_peak()
    before = state.memory_taken()
    copies = max(0, task.width - len(members))
    filled = [*members, *[members[-1]] * copies]
    method = _method([m.run for m in filled], len(members[0].stream), state, benchmark, network)
    start = 0
    if members[0].resume:
        start = members[0].resume.step
        yield from _restore(members, copies, method)
    saving = _Saving(task.checkpoint_seconds, ahead=state.device.type == "cuda")
    clock = _Clock(state, saving)
    records = engine.adapt(
        method, [m.stream for m in filled], start_step=start, block=BLOCK, may_be_ahead=saving.may_be_ahead
    )
    for record in clock.timed(records):
        for position, member in enumerate(members):
            member.add(record, position)
        if (record.step + 1 - start) % BLOCK:
            continue
        for member in members:
            yield from member.take_rows()
        more = record.step + 1 < len(members[0].stream)
        if more and saving.due():
            yield from _checkpoints(members, len(filled), method, record.step + 1, clock.seconds / len(filled))
            saving.done()
    memory = state.memory_of(method, before)
    for member in members:
        yield from member.take_rows()
        row = _row(member, state, network, clock.seconds / len(filled), len(filled), memory)
        yield RunFinished(run_id=member.run.run_id, row={**row, "started_at": started_at})


def _row(
    member: Member, state: WorkerState, network: Network, seconds: float, width: int, memory: tuple[int, int]
) -> dict[str, Any]:
    """The finished run's columns, but for its identity and axes, which the driver knows.

    ``memory``: peak bytes of the whole process and of the group alone.
    """
    summary = member.metrics.summary()
    peak, of_group = memory
    total = member.seconds + seconds
    return {
        **state.stamps,
        **summary,
        "skipped_images": member.stream.images.skipped,
        "seconds": total,
        "decode_seconds": member.decode_seconds,
        "images_per_second": summary["images"] / total if total > 0 else None,
        "peak_memory_bytes": peak,
        "group_memory_bytes": of_group,
        "group_size": width,
        "finished_at": provenance.now(),
        "weights_sha256": network.sha256,
        "weights_source": network.source,
        "data_fingerprint": member.stream.images.fingerprint,
        "stream_digest": member.stream.digest,
    }


def _method(
    runs: Sequence[PlannedRun], steps: int, state: WorkerState, benchmark: Benchmark, network: Network
) -> Method:
    """The method over ``runs`` side by side, for streams of ``steps`` batches."""
    config = runs[0].config
    settings = [engine.settings_from_json(config.method, dict(run.config.settings)) for run in runs]
    context = MethodContext(
        network=network,
        seeds=[run.config.seed for run in runs],
        batch_size=config.batch_size,
        device=state.device,
        precision=config.precision,
        class_columns=benchmark.class_columns,
        entropy_classes=getattr(benchmark, "entropy_classes", None),
        source=benchmark.source_images() if any(needs_source(run.config) for run in runs) else None,
        options={"fisher_kept": state.fisher_kept},
    )
    if state.device.type != "cuda":
        return engine.create_method(config.method, context, settings)
    columns = None if benchmark.class_columns is None else tuple(benchmark.class_columns)
    images = len(runs) * steps * config.batch_size * getattr(settings[0], "views", 1)
    compile = images * benchmark.image_size**2 >= COMPILE_FROM_PIXELS
    key = (network.sha256, columns, benchmark.image_size)
    return state.methods.get(config.method, context, settings, key=key, compile=compile)


def _restore(members: Sequence[Member], copies: int, method: Method) -> Iterator[Message]:
    """Put the members where their checkpoints were taken; their earlier rows are handed out again."""
    saved = [checkpoints.unpack(m.resume.blob) for m in members if m.resume]
    method.load_state_dict(checkpoints.merge([*saved, *saved[-1:] * copies]))
    for member, past in zip(members, saved):
        member.metrics.load_state_dict(past.metrics)
        member.seconds = past.seconds
        for grain, batches in past.rows.items():
            for batch in batches:
                renumbered = checkpoints.renumber(batch, member.attempt)
                member.handed_out.setdefault(grain, []).append(renumbered)
                yield Rows(run_id=member.run.run_id, grain=grain, batch=renumbered)


def _checkpoints(
    members: Sequence[Member], width: int, method: Method, step: int, seconds: float
) -> Iterator[Checkpoint]:
    method_state = method.state_dict()
    for position, member in enumerate(members):
        blob = checkpoints.pack(
            method_state,
            position,
            width,
            member.metrics.state_dict(),
            member.handed_out,
            member.seconds + seconds,
        )
        yield Checkpoint(run_id=member.run.run_id, step=step, blob=blob)


class _Saving:
    """When a checkpoint is due: after so many ``seconds``, at the end of a block beyond which the method has not gone.

    ``ahead``: until then it may go on before a block's records are read.
    """

    def __init__(self, seconds: float, *, ahead: bool) -> None:
        self.seconds, self.ahead = seconds, ahead
        self.last = time.monotonic()
        self.at_rest = True

    def may_be_ahead(self, possible: bool) -> bool:
        """Asked before a block is handed out: whether the method may go on meanwhile."""
        self.at_rest = not (possible and self.ahead) or self._over()
        return not self.at_rest

    def due(self) -> bool:
        return self.at_rest and self._over()

    def done(self) -> None:
        self.last = time.monotonic()

    def _over(self) -> bool:
        return time.monotonic() - self.last >= self.seconds


class _Clock:
    """Seconds spent in the loop alone, the device synchronised at both ends.

    Where the method goes on while records are read (it is not ``at_rest``), reading them takes none of its time, and
    what passes counts as the method's.
    """

    def __init__(self, state: WorkerState, saving: _Saving) -> None:
        self.state, self.saving = state, saving
        self.seconds = 0.0

    def timed(self, records: Iterator[StepRecord]) -> Iterator[StepRecord]:
        since = time.perf_counter()
        while True:
            record = next(records, None)
            if record is None:
                self.state.synchronise()
            now = time.perf_counter()
            self.seconds, since = self.seconds + now - since, now
            if record is None:
                return
            yield record
            if self.saving.at_rest:
                since = time.perf_counter()
