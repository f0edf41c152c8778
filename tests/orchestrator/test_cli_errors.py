"""What the command line says of paths that cannot be used: one clear line and exit code 2, never a traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from engine_runs import write_spec

from orchestrator.cli.main import VERBS
from orchestrator.cli.main import run as command_line

DASHBOARD = ["--address", "http://127.0.0.1:1"]
TAKING_A_SPEC: dict[str, list[str]] = {
    "plan": [],
    "prepare": [],
    "pretrain": ["--in-process"],
    "run": ["--in-process"],
    "submit": DASHBOARD,
    "doctor": [],
}
TAKING_A_SWEEP: dict[str, list[str]] = {
    "status": [],
    "watch": [],
    "logs": [],
    "cancel": [],
    "retry": ["--failed", "--in-process"],
    "table": [],
    "report": [],
    "results": [],
    "fsck": [],
    "ui": ["--no-open"],
    "sync-mlflow": [],
}
WITHOUT_RESULTS = {"prepare", "pretrain"}
BEFORE_ITS_SPEC: dict[str, list[str]] = {"explain": ["0123"], "query": ["SELECT 1"]}
WITHOUT_A_SWEEP = {"bench"}
ALL = {**TAKING_A_SPEC, **TAKING_A_SWEEP, **BEFORE_ITS_SPEC}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a spec, a file and a folder in it, from which commands are given."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEYO_CACHE", str(tmp_path / "cache"))
    write_spec(tmp_path)
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder.yaml").mkdir()
    return tmp_path


def words(verb: str, spec: str) -> list[str]:
    if verb in BEFORE_ITS_SPEC:
        return [verb, *BEFORE_ITS_SPEC[verb], spec]
    return [verb, spec, *ALL[verb]]


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """The one line of an error."""
    assert command_line(arguments) == 2, arguments
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1, said
    assert said[0].startswith("error: ")
    return said[0]


def test_every_verb_is_tried() -> None:
    assert set(ALL) | WITHOUT_A_SWEEP == set(VERBS)


@pytest.mark.parametrize("verb", ALL)
def test_a_spec_that_is_not_there(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, words(verb, "missing.yaml"))
    assert "no spec file 'missing.yaml'" in said
    assert "tiny.yaml" in said


@pytest.mark.parametrize("verb", ALL)
def test_a_spec_that_is_a_folder(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "'folder.yaml' is a folder" in refused(capsys, words(verb, "folder.yaml"))


@pytest.mark.parametrize("verb", ALL)
def test_a_spec_that_cannot_be_read(verb: str, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "odd.yaml").write_bytes(b"name: \xff\n")
    assert "odd.yaml:1: not UTF-8" in refused(capsys, words(verb, "odd.yaml"))
    if os.geteuid():
        (folder / "odd.yaml").chmod(0)
        assert "cannot be read" in refused(capsys, words(verb, "odd.yaml"))


@pytest.mark.parametrize("results", ["file", "file/deeper"])
@pytest.mark.parametrize("verb", sorted(set(ALL) - WITHOUT_RESULTS))
def test_a_results_root_on_a_file(verb: str, results: str, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    said = refused(capsys, [*words(verb, "tiny.yaml"), "--results", results])
    assert said == f"error: --results {results}: {folder / 'file'} is a file; results are kept in a folder"


@pytest.mark.skipif(not os.path.isdir("/sys"), reason="needs a file system in which no folder can be made")
@pytest.mark.parametrize("verb", ["run", "retry"])
def test_a_results_root_that_cannot_be_written(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "/sys/deyo" in refused(capsys, [*words(verb, "tiny.yaml"), "--results", "/sys/deyo"])


@pytest.mark.parametrize("verb", sorted(TAKING_A_SWEEP))
def test_a_sweep_that_is_not_there(verb: str, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert "no sweep 'tiny' under ./results; there is none yet" in refused(capsys, words(verb, "tiny"))
    (folder / "results" / "tinier").mkdir(parents=True)
    (folder / "results" / "tinier" / "spec.yaml").write_text("")
    assert "did you mean 'tinier'" in refused(capsys, words(verb, "tiny"))


@pytest.mark.parametrize("verb", ["prepare", "pretrain", "run"])
def test_a_cache_that_is_a_file(
    verb: str, capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEYO_CACHE", str(folder / "file"))
    code = command_line(words(verb, "tiny.yaml"))
    said = capsys.readouterr()
    assert code == (1 if verb == "pretrain" else 2)
    assert str(folder / "file") in said.out + said.err
    assert "Traceback" not in said.out + said.err


@pytest.fixture
def done(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The ids of two runs of a finished sweep."""
    write_spec(folder, methods="[no-adapt]", seeds=[0, 1], images=32)
    assert command_line(["run", "tiny.yaml", "--in-process", "--quiet"]) == 0
    from orchestrator import open_results

    capsys.readouterr()
    return open_results("results", "tiny").runs(columns=["run_id"])["run_id"].to_pylist()


def test_runs_and_outputs_that_are_wrong(done: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown run, a prefix of two, and files and folders in the way of what is written."""
    assert len(done) == 2
    for verb in (["plan", "tiny.yaml", "--run"], ["logs", "tiny"], ["explain"]):
        assert "begins with 'zzz'" in refused(capsys, [*verb, "zzz"])
        assert "2 runs begin with ''" in refused(capsys, [*verb, ""])
    for verb in (["table", "tiny"], ["query", "SELECT 1"]):
        assert "Is a directory" in refused(capsys, [*verb, "--output", "folder.yaml"])
        assert "--output file/x: cannot be written" in refused(capsys, [*verb, "--output", "file/x"])
    assert "is a file" in refused(capsys, ["report", "tiny", "--output", "file"])


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["--version"]) == 0
    assert capsys.readouterr().out.split()[0] == "deyo-sweep"
