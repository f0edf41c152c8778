"""MLflow's client, narrowed to what the publisher does, with its failures sorted into three kinds.

Importing this module does not import mlflow; ``Remote(...)`` does.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.tracking.curves import Point
from orchestrator.tracking.naming import KEY, KIND, PARENT
from orchestrator.tracking.options import redact, sqlite_path, with_driver

T = TypeVar("T")

# Bounded patience: nothing waits for a publisher that waits, but a sweep's end does. setdefault: what the user
# has set in the environment stands.
CLIENT_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "GIT_PYTHON_REFRESH": "quiet",
}
PAGE = 1000


class OutageError(Exception):
    """The store cannot be used now (down, slow, 403, 5xx): try again later."""


class GoneError(Exception):
    """The run or experiment was deleted by hand."""


class RefusedError(Exception):
    """The store understood and refuses this content: trying again is of no use."""


@dataclass(kw_only=True)
class RemoteRun:
    """An MLflow run as a search shows it. ``keys`` are the metrics that it has points of."""

    mlflow_id: str
    kind: str
    key: str
    status: str
    deleted: bool
    tags: Mapping[str, str] = field(default_factory=dict)
    params: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()


def _sorted_failures(call: Callable[..., T]) -> Callable[..., T]:
    @functools.wraps(call)
    def wrapped(*args: Any, **kwargs: Any) -> T:
        try:
            return call(*args, **kwargs)
        except (OutageError, GoneError, RefusedError):
            raise
        except Exception as error:
            raise sort_failure(error) from error

    return wrapped


def sort_failure(error: Exception) -> OutageError | GoneError | RefusedError:
    """Which of the three kinds an error of mlflow, requests, sqlalchemy or the file system is."""
    text = redact(str(error)).strip()
    code = getattr(error, "error_code", "") or ""
    if "must be in the 'active' state" in text or code == "RESOURCE_DOES_NOT_EXIST":
        return GoneError(text)
    if "Invalid Host header" in text:
        return OutageError(
            "the server answers 403 (Invalid Host header): start it with --allowed-hosts and the host:port of "
            "the tracking URI"
        )
    if "error code 401" in text or code in ("UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED"):
        return OutageError(
            "the server answers 401: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
            "MLFLOW_TRACKING_TOKEN, in the environment"
        )
    if code in ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_ALREADY_EXISTS", "ENDPOINT_NOT_FOUND"):
        return RefusedError(first_line(text))
    return OutageError(first_line(text) or type(error).__name__)


def first_line(text: str, limit: int = 300) -> str:
    line = text.splitlines()[0] if text else ""
    return line if len(line) <= limit else line[: limit - 1] + "…"


def prepare_environment() -> None:
    """The client's environment; before mlflow is imported, since it reads some of it then."""
    for name, value in CLIENT_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


@contextmanager
def _first_use(uri: str) -> Iterator[None]:
    """One process at a time through the first use of an SQLite file.

    Eight processes that open a fresh database at once run its migrations at once, and seven of them die
    ("duplicate column name"). A lock beside the file makes the first one create it and the others find it.
    """
    path = sqlite_path(uri)
    if path is None:
        yield
        return
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f".{path.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Remote:
    """One MLflow tracking store. Every method raises ``OutageError``, ``GoneError`` or ``RefusedError`` alone."""

    def __init__(self, uri: str) -> None:
        prepare_environment()
        self._client = _connect(with_driver(uri))

    @_sorted_failures
    def experiment(self, name: str, *, tags: Mapping[str, str], artifacts: str | None) -> str:
        """The experiment's id; it is created if there is none. ``GoneError`` if it was deleted by hand."""
        found = self._client.get_experiment_by_name(name)
        if found is None:
            return self._client.create_experiment(name, artifact_location=artifacts, tags=dict(tags))
        if found.lifecycle_stage != "active":
            raise GoneError(f"the experiment {name!r} was deleted in MLflow")
        return found.experiment_id

    @_sorted_failures
    def find_experiment(self, name: str) -> str | None:
        """The experiment's id, or None."""
        found = self._client.get_experiment_by_name(name)
        return found.experiment_id if found else None

    @_sorted_failures
    def restore_experiment(self, name: str) -> None:
        """Bring an experiment back that was deleted by hand."""
        found = self._client.get_experiment_by_name(name)
        if found is not None and found.lifecycle_stage != "active":
            self._client.restore_experiment(found.experiment_id)

    @_sorted_failures
    def runs(self, experiment_id: str) -> list[RemoteRun]:
        """All runs of ours in the experiment, deleted ones too, newest last."""
        from mlflow.entities import ViewType

        found: list[RemoteRun] = []
        token: str | None = None
        while True:
            page = self._client.search_runs(
                [experiment_id],
                run_view_type=ViewType.ALL,
                max_results=PAGE,
                order_by=["attributes.start_time ASC"],
                page_token=token,
            )
            found += [_remote_run(r) for r in page if KIND in r.data.tags]
            token = page.token
            if not token:
                return found

    @_sorted_failures
    def create(self, experiment_id: str, name: str, *, tags: Mapping[str, str], start: int, parent: str | None) -> str:
        """A new run, RUNNING; its MLflow id."""
        nested = {PARENT: parent} if parent else {}
        run = self._client.create_run(experiment_id, start_time=start or None, tags={**tags, **nested}, run_name=name)
        return run.info.run_id

    @_sorted_failures
    def log(
        self,
        mlflow_id: str,
        *,
        points: Sequence[Point] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Points, params and tags in as few requests as MLflow's limits allow (the client cuts the chunks)."""
        from mlflow.entities import Metric, Param, RunTag

        self._client.log_batch(
            mlflow_id,
            metrics=[Metric(p.key, p.value, p.timestamp, p.step) for p in points],
            params=[Param(k, v) for k, v in (params or {}).items()],
            tags=[RunTag(k, v) for k, v in (tags or {}).items()],
            synchronous=True,
        )

    @_sorted_failures
    def log_dataset(self, mlflow_id: str, *, name: str, digest: str, source: str, profile: str) -> None:
        """The run's input: the test images, by their fingerprint."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        data = Dataset(
            name=name[:500], digest=digest[:36], source_type="code", source=source, schema=None, profile=profile
        )
        self._client.log_inputs(mlflow_id, [DatasetInput(data, [InputTag("mlflow.data.context", "test")])])

    @_sorted_failures
    def history(self, mlflow_id: str, key: str) -> dict[int, float]:
        """step -> value of one metric."""
        return {m.step: m.value for m in self._client.get_metric_history(mlflow_id, key)}

    @_sorted_failures
    def tags(self, mlflow_id: str) -> dict[str, str]:
        """A run's tags."""
        return dict(self._client.get_run(mlflow_id).data.tags)

    @_sorted_failures
    def set_status(self, mlflow_id: str, status: str, end: int | None = None) -> None:
        """RUNNING, FINISHED, FAILED or KILLED. A run that has ended is opened again by RUNNING."""
        if status == "RUNNING":
            self._client.update_run(mlflow_id, status=status)
        else:
            self._client.set_terminated(mlflow_id, status=status, end_time=end)

    @_sorted_failures
    def delete(self, mlflow_id: str) -> None:
        """Move a run to MLflow's trash."""
        self._client.delete_run(mlflow_id)

    @_sorted_failures
    def restore(self, mlflow_id: str) -> None:
        """Bring a run back from the trash."""
        self._client.restore_run(mlflow_id)

    @_sorted_failures
    def log_folder(self, mlflow_id: str, folder: Path) -> None:
        """All files of a folder as artifacts."""
        self._client.log_artifacts(mlflow_id, str(folder))

    @_sorted_failures
    def probe(self) -> None:
        """The cheapest call that the store must answer."""
        self._client.search_experiments(max_results=1)


@_sorted_failures
def _connect(uri: str) -> Any:
    with _first_use(uri):
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        if sqlite_path(uri) is not None:
            client.search_experiments(max_results=1)  # creates the tables
        return client


def _remote_run(run: Any) -> RemoteRun:
    return RemoteRun(
        mlflow_id=run.info.run_id,
        kind=run.data.tags[KIND],
        key=run.data.tags.get(KEY, ""),
        status=run.info.status,
        deleted=run.info.lifecycle_stage != "active",
        tags=run.data.tags,
        params=frozenset(run.data.params),
        keys=frozenset(run.data.metrics),
    )
