"""Sweeps as Ray Jobs: submitted from a laptop, they go on when it is closed. One job a sweep."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from deyo.types import ConfigError
from orchestrator.cluster import copy_code, reread_authentication
from orchestrator.probe import ClusterError, is_loopback, probe, token_in_use
from orchestrator.provenance import code_environment
from orchestrator.spec import resolved_spec
from orchestrator.specmodel import SweepSpec

SPEC_FILE = "sweep-spec.json"
SUBMISSION_ID = "DEYO_SUBMISSION_ID"
_ENTRY = 'python -c "from orchestrator.cli.main import main; main()"'
_ANNOUNCEMENT = "Running entrypoint for job "
ENDED = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
"""States of a job that is over."""


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A sweep's job; ``attached`` if it was running already."""

    submission_id: str
    attached: bool


REPLACE_SECONDS = 60.0
"""How long Ray may take to forget the sweep's job before this one."""


def submission_id(sweep: str) -> str:
    """The job of a sweep: submitting it again finds it."""
    return f"deyo-sweep-{sweep}"


def submit(
    spec: SweepSpec,
    *,
    address: str,
    results: str,
    allow_insecure: bool = False,
    skip_bad: bool = False,
    retry: Sequence[str] | None = None,
) -> Submitted:
    """Start the sweep on the cluster behind the dashboard at ``address``, or attach to its running job.

    With ``retry`` its failed runs are run again, those that the filters name (all if there are none).

    The job carries this code and the resolved spec, and no secrets: those come from the environment of the
    cluster's hosts. ``results`` must mean the same there: an absolute path or an object store. Raises
    ``ConfigError`` or ``ClusterError``.
    """
    if "://" not in results and not Path(results).is_absolute():
        raise ConfigError(
            f"--results {results} is relative, and the sweep runs on another machine: give an absolute path that "
            "the cluster's head can write, or s3://… or gs://…"
        )
    jobs = client(address, allow_insecure=allow_insecure)
    name = submission_id(spec.name)
    flags = ["--allow-insecure"] * allow_insecure + ["--skip-bad"] * skip_bad
    verb = "run" if retry is None else " ".join(["retry --failed", *(f"--where {shlex.quote(w)}" for w in retry)])
    command = f"{_ENTRY} {verb} {SPEC_FILE} --address auto --results '{_quoted(results)}' {' '.join(flags)}"
    job = {
        "entrypoint": command.strip(),
        "submission_id": name,
        "metadata": {"sweep": spec.name, "results": results},
    }
    until = time.monotonic() + REPLACE_SECONDS
    while True:
        state = job_state(jobs, name)
        if state is not None and state not in ENDED:
            _check_results(jobs, name, results)
            return Submitted(submission_id=name, attached=True)
        if state is not None:
            jobs.delete_job(name)
        if _accepted(jobs, spec, job, may_wait=time.monotonic() < until):
            return Submitted(submission_id=name, attached=False)
        time.sleep(0.5)


def _accepted(jobs: Any, spec: SweepSpec, job: dict[str, Any], *, may_wait: bool) -> bool:
    """Whether Ray took the job; not while it still knows a deleted one of that name, or another laptop was quicker."""
    variables = {**code_environment(), SUBMISSION_ID: job["submission_id"]}
    try:
        with _package(spec) as folder:
            jobs.submit_job(**job, runtime_env={"working_dir": folder, "env_vars": variables})
    except RuntimeError as error:
        if may_wait and "already exists" in str(error):
            return False
        raise
    return True


def _check_results(jobs: Any, name: str, results: str) -> None:
    """Raises ``ConfigError`` if the running job writes elsewhere: attaching would follow another sweep."""
    there = (jobs.get_job_info(name).metadata or {}).get("results", results)
    if there != results:
        raise ConfigError(
            f"{name} is running and writes to {there}, not {results}: wait for it, cancel it, or give this sweep "
            "a name of its own (--set name=NAME)"
        )


def client(address: str, *, allow_insecure: bool = False) -> Any:
    """A client for the Ray Jobs behind a dashboard. Raises ``ClusterError`` within seconds if it is not usable."""
    if not address.startswith(("http://", "https://")):
        raise ConfigError(f"{address} is no dashboard: write --address http://HOST:8265")
    probe(address)
    if not allow_insecure and not is_loopback(address):
        _refuse_open(address)
    return connect(address)


def connect(address: str) -> Any:
    """``client`` without its checks. Raises ``ClusterError`` if the dashboard does not answer or refuses the token."""
    os.environ["RAY_AUTH_MODE"] = token_in_use().mode
    from ray.exceptions import RayError
    from ray.job_submission import JobSubmissionClient

    for chatty in ("ray.dashboard.modules.dashboard_sdk", "ray._private.runtime_env.packaging"):
        logging.getLogger(chatty).setLevel(logging.WARNING)

    reread_authentication()
    try:
        return JobSubmissionClient(address)
    except (ConnectionError, RuntimeError, RayError) as error:
        raise ClusterError(f"{address} takes no job: {str(error).strip().splitlines()[0][:300]}") from None


def existing_job(jobs: Any, sweep: str, address: str) -> tuple[str, str]:
    """The job of ``sweep`` and its state. Raises ``ConfigError`` if the cluster knows none."""
    name = submission_id(sweep)
    if (state := job_state(jobs, name)) is None:
        raise ConfigError(
            f"the cluster at {address} has no job {name}: `deyo-sweep submit SPEC --address {address}` starts it "
            "(a head that was started anew has forgotten earlier jobs; `status` without --address reads the results)"
        )
    return name, state


def job_state(jobs: Any, name: str) -> str | None:
    """PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED; None for no such job."""
    try:
        return str(jobs.get_job_status(name).value)
    except RuntimeError as error:
        if "404" in str(error) or "does not exist" in str(error):
            return None
        raise ClusterError(f"the job {name} cannot be asked for: {error}") from error


def stop(jobs: Any, name: str, *, patience: float = 60.0) -> str:
    """Stop a job in order (SIGTERM) and wait for its end; its last state."""
    jobs.stop_job(name)
    until = time.monotonic() + patience
    while (state := job_state(jobs, name)) not in ENDED and time.monotonic() < until:
        time.sleep(0.5)
    return state or "unknown"


def follow(jobs: Any, name: str) -> Iterator[str]:
    """What the job's driver prints, from its beginning, until it ends.

    Ray appends to the output of earlier jobs of the same name: those are left out.
    """
    shown: int | None = None
    while True:
        state = job_state(jobs, name)
        text = "" if state == "PENDING" else jobs.get_job_logs(name)
        if shown is None and text:
            shown = _begin(text)
        if shown is not None and len(text) > shown:
            yield text[shown:]
            shown = len(text)
        if state is None or state in ENDED:
            return
        time.sleep(1.0)


def _begin(text: str) -> int:
    """Where the output of the last job begins: after the line with which Ray announces it."""
    announced = text.rfind(_ANNOUNCEMENT)
    line_end = text.find("\n", announced)
    return 0 if announced < 0 else len(text) if line_end < 0 else line_end + 1


def _refuse_open(address: str) -> None:
    try:
        probe(address, authenticated=False)
    except ClusterError:
        return
    raise ClusterError(
        f"{address} takes jobs from anyone who reaches it: it has no authentication. Start the cluster with "
        "RAY_AUTH_MODE=token, or pass --allow-insecure"
    )


def _quoted(text: str) -> str:
    if "'" in text or urlsplit(text).password:
        raise ConfigError(f"--results {text!r}: neither quotes nor passwords can stand there")
    return text


@contextlib.contextmanager
def _package(spec: SweepSpec) -> Iterator[str]:
    """A folder with the code and the spec, to be uploaded as the job's working directory."""
    with tempfile.TemporaryDirectory(prefix="deyo-submit-") as folder:
        copy_code(Path(folder))
        (Path(folder) / SPEC_FILE).write_text(json.dumps(resolved_spec(spec), indent=1))
        yield folder
