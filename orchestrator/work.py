"""From planned runs to what the scheduler and the workers take."""

from __future__ import annotations

from typing import Protocol

from orchestrator.flight import Options
from orchestrator.grouping import group_key, images_key, kind_key, network_key, pretrain_key
from orchestrator.pool import Job
from orchestrator.types import PlannedRun, PretrainTask, RunConfig


class KnowsDurations(Protocol):
    """Says how long a run will take."""

    def seconds(self, config: RunConfig) -> float: ...


def job_for(run: PlannedRun, options: Options, durations: KnowsDurations) -> Job:
    """A planned run as the scheduler sees it."""
    config = run.config
    return Job(
        run=run,
        group=group_key(config),
        network=network_key(config),
        images=images_key(config),
        kind=kind_key(config),
        cost=durations.seconds(config),
        priority=options.priority,
        gpu=options.gpu,
        needs=pretrain_key(config) if config.pretrain_seed is not None else "",
    )


def pretraining_for(job: Job, task_id: str, options: Options) -> PretrainTask:
    """The task that makes the checkpoint which ``job`` starts from."""
    config = job.run.config
    return PretrainTask(
        task_id=task_id,
        key=job.needs,
        model=config.model,
        benchmark=config.benchmark,
        benchmark_options=config.benchmark_options,
        seed=config.pretrain_seed or 0,
        locations=options.locations,
    )
