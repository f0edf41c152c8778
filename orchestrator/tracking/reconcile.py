"""Compares MLflow with the store: what must still be published, and what shows as RUNNING but is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.tracking.naming import PUBLISHED, STALE, published_mark
from orchestrator.tracking.remote import RemoteRun
from orchestrator.tracking.source import Source
from orchestrator.tracking.state import FAILED, FINISHED, KILLED, RUNNING
from orchestrator.tracking.unitwriter import REPLACED
from orchestrator.types import Failure


@dataclass(kw_only=True)
class Differences:
    """``publish``: run_id -> attempt, one run for each unit that lacks something.

    ``stranded``: MLflow runs left RUNNING by a publisher that was killed, with the status that they should
    have. ``deleted``: runs that someone deleted in MLflow. ``stale``: runs whose tag of that name must change, with
    its value: "true" for those that the store no longer counts, since a newer run of the same config took their place.
    """

    publish: dict[str, int] = field(default_factory=dict)
    stranded: list[tuple[RemoteRun, str]] = field(default_factory=list)
    deleted: list[RemoteRun] = field(default_factory=list)
    stale: list[tuple[RemoteRun, str]] = field(default_factory=list)


def by_key(runs: Sequence[RemoteRun], kind: str) -> dict[str, RemoteRun]:
    """The MLflow run of each unit: an active one before a deleted one, else the first that was created.

    Runs that the publisher itself replaced count as not there.
    """
    found: dict[str, RemoteRun] = {}
    for run in runs:
        if run.kind != kind or (run.deleted and run.tags.get(REPLACED) == "true"):
            continue
        before = found.get(run.key)
        if before is None or (before.deleted and not run.deleted):
            found[run.key] = run
    return found


def compare(source: Source, known: Mapping[str, RemoteRun], granularity: str) -> Differences:
    """What a publisher has to do for the store's committed runs. Takes a new look at the store."""
    source.refresh()
    committed = source.committed()
    if granularity == "group":
        wanted = {key: {r: committed[r] for r in members} for key, members in source.groups().items()}
    else:
        wanted = {run_id: {run_id: attempt} for run_id, attempt in committed.items()}
    failures = source.failures()
    found = Differences()
    lacking = set()
    for key, attempts in wanted.items():
        run = known.get(key)
        if run is not None and (run.deleted or _shows(run, attempts)):
            continue
        lacking.add(key)
        run_id = next(iter(attempts))
        found.publish[run_id] = attempts[run_id]
    for key, run in known.items():
        if run.deleted:
            found.deleted.append(run)
            continue
        stale = "true" if run.status == FINISHED and key not in wanted else "false"
        if stale != run.tags.get(STALE, "false"):
            found.stale.append((run, stale))
        if run.status == RUNNING and key not in lacking:
            found.stranded.append((run, _end_status(key, wanted, failures, granularity)))
    return found


def _shows(run: RemoteRun, attempts: Mapping[str, int]) -> bool:
    return run.tags.get(PUBLISHED) == published_mark(attempts)


def _end_status(
    key: str, wanted: Mapping[str, Mapping[str, int]], failures: Mapping[str, Failure], granularity: str
) -> str:
    if granularity == "run" and key in wanted:
        return FINISHED  # killed between the last point and the end
    return FAILED if key in failures else KILLED
