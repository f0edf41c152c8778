"""The driver's side of tracking: hands messages to the publisher's process and never waits for it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from orchestrator.tracking import local
from orchestrator.tracking.frames import URI_VARIABLE, write_frame
from orchestrator.tracking.naming import axes, group_key
from orchestrator.tracking.options import AUTO_GROUP_ABOVE, TrackingOptions, is_server, redact
from orchestrator.tracking.parent import mlflow_status
from orchestrator.tracking.state import SweepInfo
from orchestrator.types import Failure, Plan, PlannedRun

MAX_QUEUED_ROWS = 16 * 2**20  # bytes
MAX_RESTARTS = 3
_STOP = ("stop",)


class MlflowTracker:
    """Follows a sweep in MLflow. Implements ``orchestrator.types.Tracker``.

    ``uri`` is a tracking URI (``options.resolve_uri``), ``root`` the results root, from which the publisher
    reads what it did not see. All MLflow work happens in a process of its own with a low priority: importing
    mlflow, a slow server or a crash there cost the sweep nothing. The queue to it is bounded: rows that do not
    fit are dropped here and read from the store when their run is committed.
    """

    def __init__(
        self, uri: str, sweep: str, *, root: str = "results", options: TrackingOptions = TrackingOptions()
    ) -> None:
        self._uri, self._sweep, self._root, self._options = uri, sweep, root, options
        self._queue: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._queued = 0
        self._lock = threading.Lock()
        self._lossy: set[tuple[str, int]] = set()
        self._in_flight: dict[str, tuple[PlannedRun, int]] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._feeder: threading.Thread | None = None
        self._status: dict[str, Any] = {}
        self._first: tuple[Any, ...] | None = None
        self._ended: list[tuple[Any, ...]] = []
        self._restarts = 0
        self._broken = ""
        self._closed = False

    # The protocol --------------------------------------------------------------------------------------

    def sweep_started(self, sweep: str, plan: Plan, resolved_spec: Mapping[str, Any]) -> None:
        with self._guarded():
            if not plan.todo and local.is_clean(self._root, sweep, self._uri):
                return  # nothing to run, and MLflow shows all: no process is needed
            self._queue.put(("plan", sweep, plan, resolved_spec))
            self._feeder = threading.Thread(target=self._feed, name="mlflow-feeder", daemon=True)
            self._feeder.start()

    def run_started(self, run: PlannedRun, attempt: int) -> None:
        with self._guarded():
            self._in_flight[run.run_id] = (run, attempt)
            self._queue.put(("run_started", run, attempt))

    def rows(self, run_id: str, attempt: int, grain: str, batch: pa.RecordBatch) -> None:
        if grain != "batches" or (run_id, attempt) in self._lossy:
            return
        with self._guarded():
            size = batch.nbytes
            with self._lock:
                full = self._queued + size > MAX_QUEUED_ROWS
                self._queued += 0 if full else size
            if full:
                self._lossy.add((run_id, attempt))
                self._queue.put(("lost_rows", run_id, attempt))
            else:
                self._queue.put(("rows", run_id, attempt, batch))

    def run_finished(self, run: PlannedRun, attempt: int, row: Mapping[str, Any]) -> None:
        with self._guarded():
            self._forget(run.run_id, attempt)
            self._queue.put(("run_finished", run, attempt, dict(row)))

    def run_failed(self, run: PlannedRun, attempt: int, failure: Failure) -> None:
        with self._guarded():
            self._forget(run.run_id, attempt)
            self._queue.put(("run_failed", run, attempt, failure))

    def sweep_finished(self, status: str) -> None:
        with self._guarded():
            self._ended = [("sweep_finished", mlflow_status(status))]
            self._queue.put(self._ended[0])

    def degraded(self) -> str | None:
        """The banner while MLflow does not keep up; None while it does."""
        status, where = self._status, redact(self._uri)
        waiting = status.get("waiting", 0)
        later = f"`deyo-sweep sync-mlflow {self._sweep}` publishes the rest"
        if self._broken:
            return f"MLflow degraded: {self._broken}; the sweep goes on; {later}"
        if status.get("outage"):
            runs = f"{waiting} finished runs wait; " if waiting else ""
            end = later if self._closed else f"the sweep goes on and publishes later; or {later}"
            return f"MLflow degraded ({where}): {status['outage']}; {runs}{end}"
        if self._closed and not status.get("idle"):
            what = f"{waiting} finished runs are" if waiting else "the sweep's own run and its artifacts are"
            return f"MLflow ({where}): {what} not published yet; {later}"
        if status.get("refused"):
            return f"MLflow ({where}) refused {status['refused']} items, the first: {status['first_refusal']}"
        if status.get("deleted"):
            return (
                f"MLflow ({where}): {status['deleted']} runs were deleted there by hand and stay so; "
                f"`deyo-sweep sync-mlflow {self._sweep} --restore` brings them back"
            )
        return None

    def close(self) -> None:
        """Wait for what is not published, at most ``options.close_seconds`` and not at all for a dead server."""
        if self._feeder is None or self._closed:
            return
        self._status["idle"] = False
        self._queue.put(("close", self._options.close_seconds))
        self._queue.put(_STOP)
        try:
            self._feeder.join(self._options.close_seconds + 30)
        finally:
            self._closed = True
            self._end_process()
            if self._first is not None and self._status.get("idle") and self.degraded() is None:
                granularity = self._first[1].granularity
                local.remember(self._root, self._sweep, self._uri, granularity, clean=True)

    # The link ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _guarded(self) -> Any:
        """No fault of tracking reaches the driver."""
        try:
            yield
        except Exception as error:
            self._broken = f"{type(error).__name__}: {error}"

    def _forget(self, run_id: str, attempt: int) -> None:
        self._in_flight.pop(run_id, None)
        self._lossy.discard((run_id, attempt))

    def _feed(self) -> None:
        """The thread that writes to the publisher; it alone waits where the pipe is full."""
        while True:
            message = self._queue.get()
            if message is _STOP:
                self._wait_for_end()
                return
            if message[0] == "rows":
                with self._lock:
                    self._queued -= message[3].nbytes
            if self._broken:
                continue
            try:
                self._send(self._prepared(message))
            except OSError:
                self._restart(message)
            except Exception as error:
                self._broken = f"{type(error).__name__}: {error}"

    def _prepared(self, message: tuple[Any, ...]) -> tuple[Any, ...]:
        if message[0] != "plan":
            return message
        _, sweep, plan, resolved = message
        granularity = self._granularity(plan)
        local.remember(self._root, sweep, self._uri, granularity, clean=False)
        sizes: Mapping[str, int] = {}
        if granularity == "group":
            sizes = Counter(group_key(axes(r.config)) for r in plan.runs)
        info = SweepInfo(
            sweep=sweep,
            root=self._root,
            granularity=granularity,
            runs=len(plan.runs),
            sizes=dict(sizes),
            resolved=dict(resolved),
            experiment=self._options.experiment or sweep,
            artifacts=None if is_server(self._uri) else local.artifacts_uri(self._root, sweep),
        )
        self._first = ("sweep", info)
        self._start_process()
        return self._first

    def _granularity(self, plan: Plan) -> str:
        """As asked for; "auto" stays what it was when the sweep was begun, so that a sweep has one kind of run."""
        if self._options.granularity != "auto":
            return self._options.granularity
        before = local.recall(self._root, self._sweep).get("granularity")
        return before or ("group" if len(plan.runs) > AUTO_GROUP_ABOVE else "run")

    def _start_process(self) -> None:
        here = str(Path(__file__).resolve().parents[2])
        environment = {
            **os.environ,
            URI_VARIABLE: self._uri,
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(p for p in (here, os.environ.get("PYTHONPATH")) if p),
        }
        with local.log_file(self._root, self._sweep) as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator.tracking.process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        threading.Thread(target=self._listen, args=(self._process,), name="mlflow-status", daemon=True).start()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with contextlib.suppress(ValueError):
                self._status = json.loads(line)

    def _send(self, message: tuple[Any, ...]) -> None:
        if self._process is None or self._process.stdin is None:
            raise OSError("no publisher")
        write_frame(self._process.stdin, message)
        if self._queue.empty() or message[0] in ("sweep", "close"):
            self._process.stdin.flush()

    def _restart(self, message: tuple[Any, ...]) -> None:
        """The publisher died. A new one reads from the store what this one had not published."""
        self._end_process()
        self._restarts += 1
        if self._restarts > MAX_RESTARTS or self._first is None:
            log = local.log_path(self._root, self._sweep)
            self._broken = f"the publisher died {self._restarts} times (log: {log})"
            return
        try:
            self._start_process()
            self._send(self._first)
            for run, attempt in list(self._in_flight.values()):
                self._send(("run_started", run, attempt))
                self._send(("lost_rows", run.run_id, attempt))
            for ended in self._ended:
                self._send(ended)
            if message[0] not in ("rows", "run_started"):
                self._send(message)
        except OSError as error:
            self._broken = f"no publisher: {error}"

    def _wait_for_end(self) -> None:
        if self._process is not None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self._process.wait(self._options.close_seconds + 25)

    def _end_process(self) -> None:
        """The process has had its time: its input ends, and after a grace it is ended."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        for end in (lambda: None, process.terminate, process.kill):
            end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(3)
                return
