"""A sweep's Ray Jobs, against a cluster of words: which is the last one, and what is shown of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine_runs import write_spec

from orchestrator import asking, jobs
from orchestrator.cli import main
from orchestrator.packed import pack
from orchestrator.probe import ClusterError


class FakeJobs:
    """The part of Ray's ``JobSubmissionClient`` that is asked here; ``states`` and ``logs`` one a look."""

    def __init__(self, names: list[str], *, states: list[str] | None = None, logs: list[str] | None = None) -> None:
        self.names, self.states, self.logs = names, states or ["SUCCEEDED"], logs or [""]
        self.submitted: list[dict[str, Any]] = []
        self.carried: list[set[str]] = []
        self.stopped: list[str] = []
        self.deleted: list[str] = []

    def submit_job(self, **job: Any) -> None:
        self.submitted.append(job)
        self.carried.append({path.name for path in Path(job["runtime_env"]["working_dir"]).iterdir()})

    def stop_job(self, name: str) -> None:
        self.stopped.append(name)

    def delete_job(self, name: str) -> None:
        self.deleted.append(name)

    def list_jobs(self) -> list[SimpleNamespace]:
        metadata = {"results": "/results"}
        facts = {"status": SimpleNamespace(value=self.states[0]), "metadata": metadata}
        facts |= vars(self.get_job_info("")) if self.states[0] == "FAILED" else {"message": ""}
        return [SimpleNamespace(submission_id=n, **facts) for n in self.names]

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


HEAD = "Running entrypoint for job deyo-question-1: python\n"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeJobs:
    """A cluster with a job of the sweep ``tiny`` that writes to /results, and no results here."""
    monkeypatch.chdir(tmp_path)
    asked = FakeJobs(["deyo-sweep-tiny"], logs=[HEAD])
    monkeypatch.setattr(jobs, "client", lambda address, allow_insecure: asked)
    return asked


ADDRESS = ("--address", "http://127.0.0.1:1")


def said(output: str, errors: str = "") -> str:
    """The log of a job that answers a question."""
    return f"{HEAD}{asking.ERRORS}\n{errors}\n{asking.OUTPUT}\n{output}"


def question(cluster: FakeJobs) -> str:
    """What the last job was asked."""
    command = cluster.submitted[-1]["entrypoint"]
    return command.partition(jobs.ENTRY)[2].partition(">deyo-question")[0].strip()


def run_as_ray_would(command: str, folder: Path) -> str:
    """A job's log: Ray's announcement, which repeats the command, and what it prints, in the job's folder."""
    command = command.replace(jobs.ENTRY, f"{sys.executable} verb.py")
    done = subprocess.run(
        command, shell=True, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return f"Running entrypoint for job deyo-question-1: {command}\n{done.stdout}"


def test_questions_in_one_folder_do_not_meet_and_what_they_print_is_told_apart(
    cluster: FakeJobs, tmp_path: Path
) -> None:
    """Ray unpacks equal code once, so that all questions run in one folder, several at a time."""
    program = "import sys; print('warned', file=sys.stderr); print(sys.argv[1:]); print('end')"
    (tmp_path / "verb.py").write_text(program)
    commands = []
    for sql in ("SELECT 1\n\nFROM runs", "SELECT '2'"):
        cluster.logs, cluster.states = [said("")], ["SUCCEEDED"]
        asking.ask_head(cluster, ["query", sql])
        commands.append(cluster.submitted[-1]["entrypoint"])
    files = [command.partition(" >")[2].partition(";")[0] for command in commands]
    assert files[0] != files[1]
    assert all(file.startswith("deyo-question-") for file in files)
    cluster.logs, cluster.states = [run_as_ray_would(commands[0], tmp_path)], ["SUCCEEDED"]
    answer = asking.ask_head(cluster, ["query"])
    assert answer.notes == "warned"
    assert answer.text == "['query', 'SELECT 1\\n\\nFROM runs']\nend\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["verb.py"]


def test_logs_are_asked_of_the_head_where_the_results_lie(
    cluster: FakeJobs, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.logs = [said("=== 0123 attempt 1\nSegmentation fault\n")]
    assert main.run(["logs", "tiny", "0123", "--tail", "5", *ADDRESS]) == 0
    assert capsys.readouterr().out == "=== 0123 attempt 1\nSegmentation fault\n"
    (job,) = cluster.submitted
    assert question(cluster) == "logs tiny 0123 --tail 5 --results /results"
    assert cluster.deleted == [job["submission_id"]]
    assert cluster.carried == [{"orchestrator", "deyo", "experiments"}]


def test_explain_takes_the_spec_along(cluster: FakeJobs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = str(write_spec(tmp_path))
    assert main.run(["explain", "0123", *ADDRESS]) == 2
    assert "needs the sweep" in capsys.readouterr().err
    cluster.logs, cluster.states = [said("", "error: no run begins with '0123'\n")], ["FAILED", "FAILED"]
    assert main.run(["explain", "0123", spec, *ADDRESS]) == 2
    assert capsys.readouterr().err == "error: no run begins with '0123'\n"
    assert question(cluster) == "explain 0123 sweep-spec.json --results /results"
    assert cluster.carried == [{"orchestrator", "deyo", "experiments", "sweep-spec.json"}]


def test_explain_takes_a_sweep_s_name_and_where_its_results_lie(cluster: FakeJobs) -> None:
    cluster.logs, cluster.states = [said("0123: done\n")], ["SUCCEEDED"]
    assert main.run(["explain", "0123", "tiny", "--results", "/elsewhere", *ADDRESS]) == 0
    assert question(cluster) == "explain 0123 --results /elsewhere"


def test_tables_and_queries_are_asked_of_the_head_in_the_words_typed(
    cluster: FakeJobs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.logs = [said("method,accuracy\ndeyo,61.0\n", "note: 3 runs are missing\n")]
    words = ["--format", "csv", "--where", "seed=1", "--where", "method=deyo", "--seeds", "--compare", "paper"]
    output = tmp_path / "new" / "table.csv"
    assert main.run(["table", "tiny", *words, "--output", str(output), *ADDRESS]) == 0
    assert output.read_text() == "method,accuracy\ndeyo,61.0\n"
    assert capsys.readouterr() == ("", "note: 3 runs are missing\n")
    words = ["--format", "csv", "--compare", "paper", "--seeds", "--where", "method=deyo", "--where", "seed=1"]
    asked = question(cluster).split()
    assert (asked[:2], asked[-4:]) == (["table", "tiny"], ["--width", "100", "--results", "/results"])
    assert sorted(asked[2:-4]) == sorted(words)

    cluster.logs, cluster.states = [said("n\n1\n")], ["SUCCEEDED"]
    assert main.run(["query", "SELECT count(*) AS n FROM runs", "tiny", "--json", *ADDRESS]) == 0
    assert capsys.readouterr().out == "n\n1\n"
    assert question(cluster) == "query 'SELECT count(*) AS n FROM runs' tiny --json --results /results"


def test_a_report_is_made_on_the_head_and_written_here(
    cluster: FakeJobs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "there"
    (made / "plots").mkdir(parents=True)
    (made / "report.html").write_text("<p>a page</p>")
    (made / "plots" / "accuracy.png").write_bytes(bytes(range(256)) * 400)
    cluster.logs = [said(pack(made), "note: 3 runs are missing\n")]
    output = tmp_path / "here"
    assert main.run(["report", "tiny", "--plots", "png", "--json", "--output", str(output), *ADDRESS]) == 0
    assert question(cluster) == "report tiny --plots png --packed --results /results"
    printed = capsys.readouterr()
    files = {"page": str(output / "report.html"), "plots": [str(output / "plots" / "accuracy.png")]}
    assert (json.loads(printed.out), printed.err) == (files, "note: 3 runs are missing\n")
    for path in ("report.html", "plots/accuracy.png"):
        assert (output / path).read_bytes() == (made / path).read_bytes()

    cluster.logs, cluster.states = [said(pack(made)[: len(pack(made)) // 2])], ["SUCCEEDED"]
    assert main.run(["report", "tiny", *ADDRESS]) == 2
    assert "did not arrive whole" in capsys.readouterr().err


def test_a_table_of_a_spec_takes_it_along(cluster: FakeJobs, tmp_path: Path) -> None:
    cluster.logs = [said("a table\n")]
    assert main.run(["table", str(write_spec(tmp_path)), "--set", "seeds=[1]", "--width", "80", *ADDRESS]) == 0
    assert question(cluster) == "table sweep-spec.json --width 80 --results /results"
    assert cluster.carried == [{"orchestrator", "deyo", "experiments", "sweep-spec.json"}]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["table", "tiny", "--compare", "other.yaml"], "a sweep's name is expected"),
        (["query", "SELECT 1"], "needs the sweep as well"),
        (["query", "SELECT 1", "tiny", "--format", "parquet"], "csv or json"),
    ],
)
def test_what_the_head_cannot_be_asked(
    cluster: FakeJobs, words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run([*words, *ADDRESS]) == 2
    assert why in capsys.readouterr().err
    assert not cluster.submitted


def test_status_has_the_counts_of_results_on_the_head(cluster: FakeJobs, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.states, cluster.logs = ["RUNNING", "SUCCEEDED"], ["", said("tiny: 3/8 done, 0 failed, 5 left\n")]
    assert main.run(["status", "tiny", *ADDRESS]) == 0
    assert capsys.readouterr().out.splitlines() == ["tiny: 3/8 done, 0 failed, 5 left", "job: deyo-sweep-tiny RUNNING"]
    cluster.states, cluster.logs = ["RUNNING", "SUCCEEDED"], ["", said('{\n "done": 3\n}\n', "{a warning}\n")]
    assert main.run(["status", "tiny", "--json", *ADDRESS]) == 0
    assert json.loads(capsys.readouterr().out) == {"done": 3, "job": "deyo-sweep-tiny RUNNING"}


def test_status_says_why_a_job_failed_that_never_began(cluster: FakeJobs, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.states, cluster.logs = ["FAILED", "FAILED"], ["", said("", "error: no sweep 'tiny' under /results\n")]
    assert main.run(["status", "tiny", *ADDRESS]) == 0
    assert capsys.readouterr().out == "job: deyo-sweep-tiny FAILED: runtime_env setup failed\n"


def test_a_sweep_that_has_no_results_yet_has_the_state_of_its_job(
    cluster: FakeJobs, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.states, cluster.logs = ["PENDING", "FAILED"], [said("", "error: no sweep 'tiny' under /results\n")]
    assert main.run(["status", "tiny", *ADDRESS]) == 0
    printed = capsys.readouterr()
    assert printed.out == "job: deyo-sweep-tiny PENDING\n"
    assert printed.err == "no counts: error: no sweep 'tiny' under /results\n"


def test_a_head_that_does_not_answer_is_not_waited_for(cluster: FakeJobs) -> None:
    cluster.states = ["RUNNING"]
    with pytest.raises(ClusterError, match=r"no answer to `deyo-sweep logs tiny` within 0 s"):
        asking.ask_head(cluster, ["logs", "tiny"], patience=0.0)
    assert cluster.stopped == cluster.deleted
