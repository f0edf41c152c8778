"""A sweep's Ray Jobs, against a cluster of words: which is the last one, and what is shown of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from orchestrator import jobs
from orchestrator.probe import ClusterError


class FakeJobs:
    """The part of Ray's ``JobSubmissionClient`` that is asked here; ``states`` and ``logs`` one a look."""

    def __init__(self, names: list[str], *, states: list[str] | None = None, logs: list[str] | None = None) -> None:
        self.names, self.states, self.logs = names, states or ["SUCCEEDED"], logs or [""]

    def list_jobs(self) -> list[SimpleNamespace]:
        metadata = {"results": "/results"}
        status = SimpleNamespace(value=self.states[0])
        return [SimpleNamespace(submission_id=n, status=status, metadata=metadata, message="") for n in self.names]

    def get_job_status(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(value=self.states.pop(0))

    def get_job_logs(self, name: str) -> str:
        return self.logs.pop(0)

    def get_job_info(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(message="runtime_env setup failed")


def test_the_last_job_is_that_of_the_highest_number() -> None:
    names = [
        "deyo-sweep-a@2",
        "deyo-sweep-a",
        "deyo-sweep-a@10",
        "deyo-sweep-ab@11",
        "deyo-sweep-a-smoke",
        "other",
        None,
    ]
    assert jobs.last_job(FakeJobs(names), "a").name == "deyo-sweep-a@10"
    assert jobs.last_job(FakeJobs(names), "ab").name == "deyo-sweep-ab@11"
    assert jobs.last_job(FakeJobs(names), "a-smoke").name == "deyo-sweep-a-smoke"
    assert jobs.last_job(FakeJobs(names), "b") is None
    assert jobs.last_job(FakeJobs(["deyo-sweep-a.b"]), "a?b") is None


def test_a_sweep_named_like_an_expression_finds_its_own_jobs_only() -> None:
    assert jobs.last_job(FakeJobs(["deyo-sweep-axb"]), "a.b") is None
    assert jobs.last_job(FakeJobs(["deyo-sweep-a.b@2"]), "a.b").results == "/results"


def test_a_cluster_that_cannot_list_its_jobs() -> None:
    class Broken(FakeJobs):
        def list_jobs(self) -> list[SimpleNamespace]:
            raise RuntimeError("503")

    with pytest.raises(ClusterError, match="cannot be asked for: 503"):
        jobs.last_job(Broken([]), "a")


def shown(asked: FakeJobs) -> tuple[str, str]:
    said: list[str] = []
    return jobs.follow(asked, "deyo-sweep-a", said.append), "".join(said)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs.time, "sleep", lambda seconds: None)


def test_what_the_driver_prints_is_shown_once_and_without_rays_lines() -> None:
    before = "Runtime env is setting up.\n"
    head = before + "Running entrypoint for job deyo-sweep-a: python\n"
    states = ["PENDING", "RUNNING", "RUNNING", "RUNNING", "FAILED"]
    logs = [before, before + "Running entrypoint for", head + "one\n", head + "one\ntwo\n"]
    assert shown(FakeJobs([], states=states, logs=logs)) == ("FAILED", "one\ntwo\n")


def test_of_a_job_that_never_began_it_is_said_why() -> None:
    state, text = shown(FakeJobs([], states=["PENDING", "FAILED"], logs=["Runtime env is setting up.\n"]))
    assert state == "FAILED"
    assert text == "deyo-sweep-a ended before it began: runtime_env setup failed\n"
