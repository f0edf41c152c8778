"""What tracking is asked to do, and where: the URI's meaning, its refusals, and how it is shown."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from deyo.types import ConfigError

GRANULARITIES = ("auto", "run", "group")
AUTO_GROUP_ABOVE = 2000
NO_TRACKING = ("none", "off", "null")
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")


@dataclass(frozen=True, kw_only=True)
class TrackingOptions:
    """The spec's ``mlflow`` section.

    ``uri``: an MLflow tracking URI, "none", or "auto" (``MLFLOW_TRACKING_URI``, else SQLite under the results
    root). ``granularity``: one MLflow run for each "run" or for each "group" (all seeds of one setting);
    "auto" takes groups above 2,000 runs. ``experiment``: the experiment's name, else the sweep's.
    ``close_seconds``: how long the end of a sweep waits for what is not yet published.
    """

    uri: str = "auto"
    granularity: str = "auto"
    experiment: str | None = None
    close_seconds: float = 60.0

    def __post_init__(self) -> None:
        if self.granularity not in GRANULARITIES:
            raise ConfigError(f"mlflow.granularity: {self.granularity!r} is none of {', '.join(GRANULARITIES)}")

    @classmethod
    def from_spec(cls, section: Mapping[str, Any] | None) -> TrackingOptions:
        """From the ``mlflow`` section of a resolved spec (``orchestrator.spec.resolved_spec(spec)["mlflow"]``)."""
        values = dict(section or {})
        if not values.get("enabled", True):
            return cls(uri="none")
        return cls(
            uri=values.get("tracking_uri") or "auto",
            granularity=values.get("granularity") or "auto",
            experiment=values.get("experiment"),
        )


def is_remote_root(root: str) -> bool:
    """Whether a results root is an object store (``s3://``, ``gs://``) and not a folder of this machine."""
    return "://" in root and not root.startswith("file://")


def local_root(root: str) -> Path:
    """The folder of a results root that is not an object store."""
    return Path(root.removeprefix("file://")).expanduser().absolute()


def resolve_uri(uri: str, root: str) -> str | None:
    """The tracking URI in use, or None for no tracking.

    Raises:
        ConfigError: the URI is a file store (MLflow has none since 3.13), carries a password in the spec, or
            no default exists (results in an object store, no ``MLFLOW_TRACKING_URI``).
    """
    if uri.strip().lower() in NO_TRACKING:
        return None
    if uri != "auto":
        _refuse_password(uri)
        return _checked(uri)
    from_environment = os.environ.get("MLFLOW_TRACKING_URI", "").strip()
    if from_environment:
        return _checked(from_environment)
    if is_remote_root(root):
        raise ConfigError(
            f"mlflow.tracking_uri: results are in {redact(root)}, where no SQLite database can live; name a tracking "
            "server, for example mlflow: {tracking_uri: 'http://127.0.0.1:5000'}, or mlflow: false"
        )
    return sqlite_uri(local_root(root) / "mlflow.db")


def sqlite_uri(path: Path) -> str:
    """The SQLAlchemy URI of an SQLite file."""
    return f"sqlite:///{path.absolute()}"


def sqlite_path(uri: str) -> Path | None:
    """The file behind an SQLite URI; None for other stores and in-memory databases."""
    match = re.fullmatch(r"sqlite(?:\+\w+)?:///([^?]+)(?:\?.*)?", uri)
    return Path(match[1]).absolute() if match and match[1] != ":memory:" else None


def with_driver(uri: str) -> str:
    """A PostgreSQL URI with psycopg2 as its driver, where it names none and psycopg 3 is not installed.

    SQLAlchemy takes psycopg 3 for ``postgresql://`` since 2.1; before, and in most guides, psycopg2 was meant.
    """
    if uri.startswith("postgresql://") and find_spec("psycopg") is None and find_spec("psycopg2") is not None:
        return uri.replace("postgresql://", "postgresql+psycopg2://", 1)
    return uri


def is_server(uri: str) -> bool:
    """Whether the URI names a tracking server (so that it must be reached over HTTP)."""
    return uri.startswith(("http://", "https://"))


def redact(text: str) -> str:
    """``text`` with the user and password of every URL in it replaced by ``***``."""
    return re.sub(r"(\w://)[^/\s@]+@", r"\1***@", text)


def _refuse_password(uri: str) -> None:
    if urlsplit(uri).password:
        raise ConfigError(
            f"mlflow.tracking_uri: {redact(uri)} carries a password; secrets come from the environment only: "
            "leave tracking_uri out and set MLFLOW_TRACKING_URI, or MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD for a server"
        )


def _checked(uri: str) -> str:
    scheme = uri.split(":", 1)[0].lower() if ":" in uri else ""
    if is_server(uri):
        return uri.rstrip("/")
    if scheme.split("+")[0] in _DATABASES:
        path = sqlite_path(uri)
        return sqlite_uri(path) if path and "?" not in uri else uri
    if scheme in ("", "file"):
        folder = Path(uri.removeprefix("file://").removeprefix("file:") or ".").absolute()
        target = sqlite_uri(folder.parent / "mlflow.db")
        raise ConfigError(
            f"mlflow.tracking_uri: {redact(uri)} is a folder, and MLflow's file store is gone since 3.13. "
            f'Write instead:\n    mlflow: {{tracking_uri: "{target}"}}\n'
            f"Runs already in the folder move with: mlflow migrate-filestore --source {folder} "
            f"--target {target}"
        )
    raise ConfigError(
        f"mlflow.tracking_uri: {redact(uri)} has the scheme {scheme!r}; expected http(s)://, sqlite:///, "
        "postgresql://, mysql:// or mssql://"
    )
