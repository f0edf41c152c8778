"""Whether the tracking store can be used, answered in seconds and without importing mlflow."""

from __future__ import annotations

import base64
import os
import urllib.error
import urllib.request

from orchestrator.tracking.options import is_server, redact, sqlite_path

_HINTS = {
    401: "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, in the environment",
    403: "if the body says Invalid Host header, start the server with --allowed-hosts and this host:port",
    404: "is this an MLflow server, and is its --static-prefix part of the URI?",
}


def check_tracking(uri: str | None, timeout: float = 3.0) -> str | None:
    """None if the store answers (or there is none), else what is wrong and what to do.

    A server that does not answer is no reason to stop: the sweep runs and is published later. Databases other
    than SQLite are only tried by the publisher.
    """
    if uri is None:
        return None
    if is_server(uri):
        return _check_server(uri, timeout)
    path = sqlite_path(uri)
    return None if path is None else _check_folder(uri)


def _check_server(uri: str, timeout: float) -> str | None:
    where = redact(uri)
    for call in ("/health", "/api/2.0/mlflow/experiments/search?max_results=1"):
        request = urllib.request.Request(uri + call, headers=_credentials())
        try:
            with urllib.request.urlopen(request, timeout=timeout):
                pass
        except urllib.error.HTTPError as error:
            body = error.read(200).decode(errors="replace").strip()
            hint = _HINTS.get(error.code, "see the server's log")
            return f"MLflow at {where} answers {error.code} ({redact(body) or error.reason}); {hint}"
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            return f"MLflow at {where} does not answer within {timeout:g} s ({reason}); start it, or check the URI"
    return None


def _check_folder(uri: str) -> str | None:
    path = sqlite_path(uri)
    assert path is not None
    at = path if path.exists() else next(p for p in path.parents if p.exists())
    if not os.access(at, os.W_OK):
        return f"MLflow's database {path} cannot be written ({at} is not writable)"
    return None


def _credentials() -> dict[str, str]:
    token = os.environ.get("MLFLOW_TRACKING_TOKEN")
    user, password = os.environ.get("MLFLOW_TRACKING_USERNAME"), os.environ.get("MLFLOW_TRACKING_PASSWORD")
    if user and password:
        return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}
    return {"Authorization": f"Bearer {token}"} if token else {}
