"""Every spec's reduced form, by the very commands of its header: run, table and report, in one process."""

from __future__ import annotations

import shlex

import pytest

from experiments import index
from orchestrator import open_results
from orchestrator.cli.main import run as deyo_sweep
from orchestrator.spec import load_spec

SPECS = index.spec_files()
COLLAPSED_IS_A_RESULT = "every run finishes; how well it did is not asked of a few batches"


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """One results root and one cache for all specs: networks and corrupted images are made once."""
    root = tmp_path_factory.mktemp("experiments")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEYO_CACHE", str(root / "cache"))
        yield root / "results"


def command(line: str, results: object, *more: str) -> list[str]:
    """The arguments of a header's command, for the reduced form."""
    words = shlex.split(line)[1:]
    words[1] = str(index.FOLDER.parent / words[1])
    return [*words, "--smoke", "--results", str(results), *more]


@pytest.mark.slow
@pytest.mark.parametrize("path", SPECS, ids=[p.stem for p in SPECS])
def test_the_reduced_form_runs_end_to_end(path, places, capsys):
    header = index.read_header(path)
    for line in header.commands:
        verb = line.split()[1]
        more = {"run": ("--in-process", "--set", "mlflow=false"), "report": ("--plots", "none")}.get(verb, ())
        assert deyo_sweep(command(line, places, *more)) == 0, (line, capsys.readouterr())
    spec = load_spec(path, smoke=True)
    results = open_results(str(places), spec.name)
    runs = results.runs().to_pylist()
    assert len(runs) == len(results.plan().runs), COLLAPSED_IS_A_RESULT
    assert all(row["images"] or row["analysis"] for row in runs)
    page = (places / "reports" / spec.name / "report.html").read_text(encoding="utf-8")
    assert "<svg" in page
