"""The sweep's own MLflow run: aggregated metrics, the tables, plots and the resolved spec."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from orchestrator.tracking import artifacts, naming
from orchestrator.tracking.naming import NOTE, PREFIX
from orchestrator.tracking.options import redact
from orchestrator.tracking.remote import Remote, RemoteRun
from orchestrator.tracking.source import Source
from orchestrator.tracking.state import FAILED, FINISHED, KILLED, RUNNING, SweepInfo
from orchestrator.tracking.summary import millis, sweep_points

HEARTBEAT = PREFIX + "heartbeat"
PUBLISHER = PREFIX + "publisher"
GRANULARITY = PREFIX + "granularity"
ARTIFACTS = PREFIX + "artifacts_of"
HEARTBEAT_SECONDS = 30.0
LIVE_SECONDS = 120.0
REFRESH_SECONDS = 60.0


class Parent:
    """The parent run. ``step`` does one piece of work, ``settled`` says whether its end is published."""

    def __init__(self, remote: Remote, source: Source, info: SweepInfo, clock: Callable[[], float]) -> None:
        self._remote, self._source, self._info, self._clock = remote, source, info, clock
        self.publisher_id = uuid.uuid4().hex
        self.mlflow_id = ""
        self.experiment_id = ""
        self.settled = True
        self.gone = False
        self.final_status = ""
        self._beat = self._shown = 0.0
        self._refreshed = (0, False)
        self._artifacts_done = False
        self._artifacts_mark = ""

    @property
    def opened(self) -> bool:
        return bool(self.mlflow_id)

    def open(self, experiment_id: str, runs: Sequence[RemoteRun]) -> None:
        """Find or create the parent run, claim it for this publisher and open it."""
        mine = [r for r in runs if r.kind == "sweep" and r.key == self._info.sweep and not r.deleted]
        tags = self._tags()
        if mine:
            mlflow_id = mine[0].mlflow_id
            self._remote.log(mlflow_id, tags=tags)
            self._remote.set_status(mlflow_id, RUNNING)
            self._artifacts_mark = mine[0].tags.get(ARTIFACTS, "")
        else:
            mlflow_id = self._remote.create(experiment_id, self._info.sweep, tags=tags, start=0, parent=None)
        self.experiment_id, self.mlflow_id = experiment_id, mlflow_id
        self.settled, self._beat = False, self._clock()

    def end(self, status: str) -> None:
        """The sweep has ended; the last refresh, the artifacts and the status are due."""
        self.final_status, self.settled = status, self.gone

    def step(self) -> bool:
        """Heartbeat, refresh or end, whatever is due; whether anything was."""
        if self.gone:
            return False
        if self.final_status:
            return self._finish()
        now = self._clock()
        if now - self._shown >= REFRESH_SECONDS:
            fresh = self.refresh()
            self._shown = now
            return fresh
        if now - self._beat >= HEARTBEAT_SECONDS:
            self._remote.log(self.mlflow_id, tags={HEARTBEAT: str(int(now))})
            self._beat = now
            return True
        return False

    def refresh(self) -> bool:
        """Aggregated metrics and the table of the committed runs; whether there was anything new."""
        self._source.refresh()
        committed = len(self._source.committed())
        noted = bool(self.final_status) or committed <= artifacts.NOTE_RUNS
        if not committed or (committed, noted) == self._refreshed:
            return False
        points = sweep_points(self._source.aggregates(), millis(self._source.newest()), committed)
        tags = {PREFIX + "runs_done": str(committed)}
        if noted:
            tags[NOTE] = artifacts.note(self._info, self._source, committed)
        self._remote.log(self.mlflow_id, points=points, tags=tags)
        self._refreshed = (committed, noted)
        return True

    def still_ours(self) -> bool:
        """Whether no other publisher has claimed the sweep since."""
        tags = self._remote.tags(self.mlflow_id)
        return tags.get(PUBLISHER) == self.publisher_id

    def lose(self) -> None:
        """The parent run was deleted by hand; the runs below it go on."""
        self.gone = self.settled = True

    def give_up(self) -> None:
        """MLflow refuses something of the end: go on without the artifacts, and at last without the end."""
        self.settled, self._artifacts_done = self._artifacts_done and bool(self.final_status), True

    def set_status(self, status: str) -> None:
        self._remote.set_status(self.mlflow_id, status)

    def _finish(self) -> bool:
        if self.settled:
            return False
        self.refresh()
        if not self._artifacts_done:
            self._log_artifacts()
            self._artifacts_done = True
        self._remote.log(self.mlflow_id, tags={HEARTBEAT: "0"})
        self.set_status(end_status(self.final_status, self._source))
        self.settled = True
        return True

    def _log_artifacts(self) -> None:
        """Make and upload them, unless those of the same runs and spec are there."""
        spec = artifacts.sha256(naming.shown_value(artifacts.without_secrets(self._info.resolved)))
        mark = f"{naming.published_mark(self._source.committed())} {spec[:16]}"
        if mark == self._artifacts_mark:
            return
        with tempfile.TemporaryDirectory(prefix="deyo-sweep-") as folder:
            problems = artifacts.write(Path(folder), self._info, self._source)
            self._remote.log_folder(self.mlflow_id, Path(folder))
        tags = {ARTIFACTS: mark}
        if problems:
            tags[PREFIX + "artifact_problems"] = naming.tag_value("; ".join(problems))
        self._remote.log(self.mlflow_id, tags=tags)

    def _tags(self) -> dict[str, str]:
        text = naming.shown_value(artifacts.without_secrets(self._info.resolved))
        return {
            naming.KIND: "sweep",
            naming.KEY: self._info.sweep,
            naming.SWEEP: self._info.sweep,
            **naming.SOURCE,
            PUBLISHER: self.publisher_id,
            HEARTBEAT: str(int(self._clock())),
            GRANULARITY: self._info.granularity,
            PREFIX + "runs_planned": str(self._info.runs),
            PREFIX + "results": redact(self._info.root),
            PREFIX + "spec_sha256": artifacts.sha256(text),
        }


def is_live(parent: RemoteRun | None, now: float) -> bool:
    """Whether a publisher of a running sweep has given a sign of life in the last two minutes."""
    if parent is None or parent.deleted or parent.status != RUNNING:
        return False
    return now - float(parent.tags.get(HEARTBEAT, "0") or 0) < LIVE_SECONDS


def end_status(said: str, source: Source) -> str:
    """The sweep's MLflow status at its end: it is FINISHED only if the store has every planned run."""
    if said != FINISHED:
        return said
    missing = {run.run_id for run in source.planned()} - set(source.committed())
    if not missing:
        return FINISHED
    return FAILED if missing & set(source.failures()) else KILLED


def mlflow_status(outcome: Any) -> str:
    """The MLflow status of a sweep's outcome in words ("finished", "failed", "cancelled", "interrupted" ...)."""
    word = str(outcome).lower()
    if any(part in word for part in ("cancel", "interrupt", "kill", "stop")):
        return KILLED
    return FAILED if any(part in word for part in ("fail", "error", "broken")) else FINISHED
