"""A verb that only reads, run where the results lie: on the cluster's head, as a Ray Job of its own.

What a sweep writes through ``submit`` may be in a folder of the head that no other machine sees.
"""

from __future__ import annotations

import contextlib
import shlex
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deyo.types import ConfigError
from orchestrator import jobs
from orchestrator.probe import ClusterError
from orchestrator.provenance import code_environment
from orchestrator.specmodel import SweepSpec

ERRORS, OUTPUT = "--- errors ---", "--- output ---"
"""Lines of the job's log, after which stands what was said on standard error, and on standard output."""

PATIENCE = 120.0
"""Seconds for an answer: the head has to unpack the code, and Python and PyTorch to start there."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the verb printed there on standard output and on standard error, and whether it ended well."""

    text: str
    notes: str
    ok: bool


def results_of(asked: Any, sweep: str, address: str) -> str:
    """Where the sweep's last job writes. Raises ``ConfigError`` if the cluster knows no such job."""
    job = jobs.existing_job(asked, sweep, address)
    if not job.results:
        raise ConfigError(f"{job.name} does not say where it writes: log in on the head, and ask there with --results")
    return job.results


def ask_head(asked: Any, words: Sequence[str], spec: SweepSpec | None = None, *, patience: float = PATIENCE) -> Answer:
    """The answer to ``deyo-sweep WORDS`` given on the head; ``jobs.SPEC_FILE`` among the words means ``spec``.

    The job carries this code, the paper's numbers and no secrets, and takes no CPU or GPU from sweeps. Raises
    ``ClusterError`` if there is no answer within ``patience`` seconds.
    """
    name = f"deyo-question-{uuid.uuid4().hex[:12]}"
    verb = f"{jobs.ENTRY} {shlex.join(words)}"  # its folder is that of every question that carries the same code
    command = f"echo '{ERRORS}'; {verb} >{name}; code=$?; echo; echo '{OUTPUT}'; cat {name}; rm -f {name}; exit $code"
    with jobs.package(spec, for_tables=True) as folder:
        asked.submit_job(
            submission_id=name,
            entrypoint=command,
            runtime_env={"working_dir": folder, "env_vars": dict(code_environment())},
            metadata={"question": words[0]},
        )
    said: list[str] = []
    state = ""
    try:
        state = jobs.follow(asked, name, said.append, patience=patience)
        if state not in jobs.ENDED:
            raise ClusterError(f"the head gave no answer to `deyo-sweep {shlex.join(words)}` within {patience:g} s")
    finally:
        if state not in jobs.ENDED:  # also where who asks was interrupted
            with contextlib.suppress(RuntimeError):
                asked.stop_job(name)
        _forget(asked, name)
    errors, _, text = "".join(said).partition(f"\n{OUTPUT}\n")
    _, _, notes = f"\n{errors}".rpartition(f"\n{ERRORS}\n")  # Ray repeats the question first, which may have many lines
    return Answer(text=text, notes=notes.strip(), ok=state == "SUCCEEDED")


def _forget(asked: Any, name: str) -> None:
    """Take the job out of the cluster's list: it is no sweep. Ray refuses for a moment after its end."""
    for _ in range(5):
        with contextlib.suppress(RuntimeError):
            asked.delete_job(name)
            return
        time.sleep(0.5)
