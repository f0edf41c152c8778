"""The table at the end of ``run``: of the code that the sweep began with, and never the reason for its exit code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import store_runs as sr
import typer

from orchestrator.cli import run as verb
from orchestrator.outcome import SweepOutcome, SweepStatus
from orchestrator.store import ParquetStore

ROOT = Path(__file__).resolve().parents[2]
SPEC = """\
name: little
runs:
  - {benchmark: digits-c, corruptions: [fog], models: [small-resnet-bn], methods: [deyo]}
"""
EDITED_MEANWHILE = """\
import sys
from pathlib import Path

import orchestrator
from orchestrator import session
from orchestrator.cli.main import run
from orchestrator.outcome import SweepOutcome, SweepStatus
from orchestrator.store import ParquetStore


def run_spec(spec, **options):
    print("torch" in sys.modules)
    ParquetStore("results", spec.name).close()
    for file in Path(orchestrator.__file__).parent.rglob("*.py"):
        file.write_text("raise SystemError('edited')")
    ended = {"status": SweepStatus.FINISHED, "total": 1, "done": 1, "committed": 1, "failures": {}, "pending": 0}
    return SweepOutcome(sweep=spec.name, seconds=1.0, **ended)


session.run_spec = run_spec
sys.exit(run(["run", "little.yaml", "--results", "results"]))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the results of one run."""
    monkeypatch.chdir(tmp_path)
    store = ParquetStore("results", "little")
    sr.run_once(store, sr.planned(), samples=False, seconds=2.0)
    store.close()
    return tmp_path


def outcome(pending: int = 0) -> SweepOutcome:
    return SweepOutcome(
        sweep="little",
        status=SweepStatus.FINISHED,
        total=1 + pending,
        done=1,
        committed=1,
        failures={},
        pending=pending,
        seconds=1.0,
    )


def test_code_edited_during_a_sweep_does_not_change_its_end(folder: Path) -> None:
    (folder / "little.yaml").write_text(SPEC)
    shutil.copytree(ROOT / "orchestrator", folder / "orchestrator", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    command = [sys.executable, "-c", EDITED_MEANWHILE]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "edited" in (folder / "orchestrator" / "session.py").read_text()
    assert done.stdout.splitlines()[0] == "False", "the driver has loaded torch"
    assert "50.0" in done.stdout
    assert "no table" not in done.stderr


@pytest.mark.parametrize("pending", [0, 1])
def test_an_error_of_the_table_does_not_change_the_exit_code(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], pending: int
) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("orchestrator.tables.load.load", broken)
    if pending:
        with pytest.raises(typer.Exit) as ended:
            verb.finish(outcome(pending), "results", quiet=False)
        assert ended.value.exit_code == 1
    else:
        verb.finish(outcome(), "results", quiet=False)
    said = capsys.readouterr()
    line = "no table (RuntimeError: two lines); `deyo-sweep table little --results results` prints it"
    assert line in said.err.splitlines()
    assert "little: 1 of" in said.out
