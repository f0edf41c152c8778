"""Sweeps as Ray Jobs: submitted from a laptop, they go on when it is closed. One running job a sweep."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
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
ENTRY = 'python -c "from orchestrator.cli.main import main; main()"'
_ANNOUNCEMENT = "Running entrypoint for job "
ENDED = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
"""States of a job that is over."""


@dataclass(frozen=True, kw_only=True)
class SweepJob:
    """A sweep's Ray Job: its id, its state, where it writes (``""``: not said), what Ray says of it."""

    name: str
    state: str
    results: str = ""
    message: str = ""

    @property
    def ended(self) -> bool:
        """Whether the job is over."""
        return self.state in ENDED


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A sweep's job; ``attached`` if it was running already."""

    submission_id: str
    attached: bool


SUBMIT_SECONDS = 60.0
"""How long to go on if other laptops submit the same sweep at the same moment."""


def submission_id(sweep: str, number: int = 1) -> str:
    """The ``number``-th job of a sweep.

    Ray watches a job for a second or two after its end, by its id: a job that took the id of the one before it
    would be marked failed by that watch. The sign before the number stands in no sweep's name.
    """
    return f"deyo-sweep-{sweep}" if number == 1 else f"deyo-sweep-{sweep}@{number}"


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
    relative = [f"{name}: {path}" for name, path in spec.data.items() if not Path(path).expanduser().is_absolute()]
    if relative:
        raise ConfigError(
            f"data paths are relative ({', '.join(relative)}), and the sweep runs on another machine: give absolute"
        )
    jobs = client(address, allow_insecure=allow_insecure)
    flags = ["--allow-insecure"] * allow_insecure + ["--skip-bad"] * skip_bad
    verb = "run" if retry is None else " ".join(["retry --failed", *(f"--where {shlex.quote(w)}" for w in retry)])
    command = f"{ENTRY} {verb} {SPEC_FILE} --address auto --results '{_quoted(results)}' {' '.join(flags)}"
    job = {"entrypoint": command.strip(), "metadata": {"sweep": spec.name, "results": results}}
    until = time.monotonic() + SUBMIT_SECONDS
    while True:
        number, last = _last_job(jobs, spec.name)
        if last is not None and not last.ended:
            _check_results(last, results)
            return Submitted(submission_id=last.name, attached=True)
        name = submission_id(spec.name, number + 1)
        if _accepted(jobs, spec, {**job, "submission_id": name}, may_wait=time.monotonic() < until):
            return Submitted(submission_id=name, attached=False)
        time.sleep(0.5)


def _accepted(jobs: Any, spec: SweepSpec, job: dict[str, Any], *, may_wait: bool) -> bool:
    """Whether Ray took the job; not if another laptop was quicker."""
    variables = {**code_environment(), SUBMISSION_ID: job["submission_id"]}
    try:
        with package(spec) as folder:
            jobs.submit_job(**job, runtime_env={"working_dir": folder, "env_vars": variables})
    except RuntimeError as error:
        if may_wait and "already exists" in str(error):
            return False
        raise
    return True


def _check_results(running: SweepJob, results: str) -> None:
    """Raises ``ConfigError`` if the running job writes elsewhere: attaching would follow another sweep."""
    if running.results not in ("", results):
        raise ConfigError(
            f"{running.name} is running and writes to {running.results}, not {results}: wait for it, cancel it, or "
            "give this sweep a name of its own (--set name=NAME)"
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


def last_job(jobs: Any, sweep: str) -> SweepJob | None:
    """The job of ``sweep`` that was submitted last; None if the cluster knows none."""
    return _last_job(jobs, sweep)[1]


def _last_job(jobs: Any, sweep: str) -> tuple[int, SweepJob | None]:
    """How many jobs of ``sweep`` the cluster has had, and the last one."""
    named = re.compile(re.escape(submission_id(sweep)) + r"(?:@(\d+))?")
    try:
        listed = jobs.list_jobs()
    except RuntimeError as error:
        raise ClusterError(f"the jobs of {sweep} cannot be asked for: {error}") from error
    matches = ((named.fullmatch(job.submission_id or ""), job) for job in listed)
    number, last = max(((int(m[1] or 1), job) for m, job in matches if m), key=lambda n: n[0], default=(0, None))
    return number, None if last is None else _sweep_job(last)


def _sweep_job(details: Any) -> SweepJob:
    return SweepJob(
        name=details.submission_id,
        state=str(details.status.value),
        results=(details.metadata or {}).get("results", ""),
        message=details.message or "",
    )


def existing_job(jobs: Any, sweep: str, address: str) -> SweepJob:
    """The last job of ``sweep``. Raises ``ConfigError`` if the cluster knows none."""
    if (found := last_job(jobs, sweep)) is None:
        raise ConfigError(
            f"the cluster at {address} has no job {submission_id(sweep)}: `deyo-sweep submit SPEC --address {address}` "
            "starts it (a head that was started anew has forgotten earlier jobs; `status` without --address reads the "
            "results)"
        )
    return found


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


def follow(jobs: Any, name: str, write: Callable[[str], object], *, patience: float = math.inf) -> str:
    """Write what the job's driver prints, from its beginning, until it ends or ``patience`` seconds are over; its
    last state.

    Of a job that ended before its driver began, what Ray says of it.
    """
    shown: int | None = None
    until = time.monotonic() + patience
    while True:
        state = job_state(jobs, name)
        text = "" if state in ("PENDING", None) else jobs.get_job_logs(name)
        if shown is None:
            shown = _begin(text)
        if shown is not None and len(text) > shown:
            write(text[shown:])
            shown = len(text)
        if state is None or state in ENDED or time.monotonic() >= until:
            break
        time.sleep(1.0)
    if shown is None and state in ENDED:
        write(f"{name} ended before it began: {jobs.get_job_info(name).message}\n")
    return state or "unknown"


def _begin(text: str) -> int | None:
    """Where the driver's output begins: after the line with which Ray announces it; None if that is not there."""
    announced = text.find(_ANNOUNCEMENT)
    line_end = text.find("\n", announced)
    return None if min(announced, line_end) < 0 else line_end + 1


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
def package(spec: SweepSpec | None, *, for_tables: bool = False) -> Iterator[str]:
    """A folder with the code and the spec, if there is one, to be uploaded as the job's working directory; with the
    paper's numbers ``for_tables``."""
    with tempfile.TemporaryDirectory(prefix="deyo-submit-") as folder:
        copy_code(Path(folder))
        if for_tables:
            _copy_papers_numbers(Path(folder))
        if spec is not None:
            (Path(folder) / SPEC_FILE).write_text(json.dumps(resolved_spec(spec), indent=1))
        yield folder


def _copy_papers_numbers(folder: Path) -> None:
    from orchestrator.tables.paper import FOLDER

    if FOLDER.is_dir():
        shutil.copytree(FOLDER, folder / FOLDER.relative_to(FOLDER.parents[1]))
