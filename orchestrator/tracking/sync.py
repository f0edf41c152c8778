"""``deyo-sweep sync-mlflow``: publish from the store whatever MLflow does not show, once more or at last."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deyo.types import ConfigError
from orchestrator.tracking import local, reconcile
from orchestrator.tracking.naming import axes, group_key
from orchestrator.tracking.options import AUTO_GROUP_ABOVE, TrackingOptions, is_server
from orchestrator.tracking.parent import GRANULARITY, end_status, is_live
from orchestrator.tracking.publisher import Publisher
from orchestrator.tracking.remote import OutageError, Remote, RemoteRun
from orchestrator.tracking.source import StoreSource
from orchestrator.tracking.state import FINISHED, RUNNING, SweepInfo

MAX_FAILURES = 3


class LiveError(ConfigError):
    """A running sweep publishes itself."""


@dataclass(kw_only=True)
class SyncReport:
    """``published`` runs became visible; ``restored`` came back from MLflow's trash, ``deleted`` were left there;
    ``refused`` is what MLflow would not take; ``total`` committed runs are in the store."""

    published: int
    total: int
    restored: int
    deleted: int
    refused: int
    first_refusal: str
    experiment_id: str


def sync(
    uri: str,
    root: str,
    sweep: str,
    *,
    options: TrackingOptions = TrackingOptions(),
    resolved: Mapping[str, Any] | None = None,
    restore: bool = False,
    force: bool = False,
    progress: Callable[[int, int], None] = lambda done, waiting: None,
) -> SyncReport:
    """Publish what is missing, without doubling a point, and end runs that a killed sweep left RUNNING.

    ``restore`` brings back runs that were deleted in MLflow by hand; ``force`` goes on even if another
    publisher seems to be at work. ``progress(done, waiting)`` is called as it goes.

    Raises:
        LiveError: the sweep is running.
        OutageError: MLflow cannot be used, three times in a row.
        ConfigError: there are no results of this sweep.
    """
    source = StoreSource(root, sweep)
    source.refresh()
    if not source.exists():
        raise ConfigError(f"no results of a sweep {sweep!r} under {root}; --results PATH names another root")
    remote = Remote(uri)
    name = options.experiment or sweep
    runs, restored = _existing(remote, name, restore)
    parent = next((r for r in runs if r.kind == "sweep" and r.key == sweep and not r.deleted), None)
    if is_live(parent, time.time()) and not force:
        raise LiveError(
            f"the sweep {sweep!r} is running and publishes itself; if it is not (its machine died within the "
            "last two minutes), wait or add --force"
        )
    publisher = Publisher(remote, source, _info(uri, root, sweep, options, source, parent, resolved or {}))
    publisher.sweep_finished(_outcome(source, parent))
    _work(publisher, progress)
    status = publisher.status()
    return SyncReport(
        published=status.published,
        total=len(source.committed()),
        restored=restored,
        deleted=status.deleted,
        refused=status.refused,
        first_refusal=status.first_refusal,
        experiment_id=status.experiment_id,
    )


def _existing(remote: Remote, experiment: str, restore: bool) -> tuple[list[RemoteRun], int]:
    """The experiment's runs; with ``restore`` those that were deleted by hand are brought back first, and counted."""
    if restore:
        remote.restore_experiment(experiment)
    found = remote.find_experiment(experiment)
    if found is None:
        return [], 0
    runs, restored = remote.runs(found), 0
    if restore:
        for kind in ("sweep", "run", "group"):
            for run in reconcile.by_key(runs, kind).values():
                if run.deleted:
                    remote.restore(run.mlflow_id)
                    run.deleted = False
                    restored += 1
    return runs, restored


def _info(
    uri: str,
    root: str,
    sweep: str,
    options: TrackingOptions,
    source: StoreSource,
    parent: RemoteRun | None,
    resolved: Mapping[str, Any],
) -> SweepInfo:
    planned = source.planned()
    total = len(planned) or len(source.committed())
    granularity = options.granularity
    if granularity == "auto":
        before = local.recall(root, sweep).get("granularity") or (parent.tags.get(GRANULARITY) if parent else None)
        granularity = before or ("group" if total > AUTO_GROUP_ABOVE else "run")
    sizes = Counter(group_key(axes(run.config)) for run in planned) if granularity == "group" else {}
    return SweepInfo(
        sweep=sweep,
        root=root,
        granularity=granularity,
        runs=total,
        sizes=dict(sizes),
        resolved=resolved,
        experiment=options.experiment or sweep,
        artifacts=None if is_server(uri) else local.artifacts_uri(root, sweep),
    )


def _outcome(source: StoreSource, parent: RemoteRun | None) -> str:
    """The sweep's status by the store; of one that is not whole, what MLflow says already."""
    status = end_status(FINISHED, source)
    if status != FINISHED and parent is not None and parent.status not in (RUNNING, FINISHED):
        return parent.status
    return status


def _work(publisher: Publisher, progress: Callable[[int, int], None]) -> None:
    failures = 0
    while not publisher.idle():
        try:
            worked = publisher.step()
        except OutageError:
            failures += 1
            if failures >= MAX_FAILURES:
                raise
            time.sleep(failures)
            continue
        failures = 0
        progress(publisher.published, publisher.ledger.waiting())
        if not worked and not publisher.idle():
            time.sleep(0.2)
