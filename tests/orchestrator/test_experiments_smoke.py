"""Every spec's reduced form, by the very commands of its header: run, table and report, in one process."""

from __future__ import annotations

import json
import re
import shlex
from collections import defaultdict

import pytest

from experiments import index
from orchestrator import open_results
from orchestrator.cli.main import run as deyo_sweep
from orchestrator.spec import load_spec

SPECS = index.spec_files()
COLLAPSED_IS_A_RESULT = "every run finishes; how well it did is not asked of a few batches"
FIGURES = {
    "f1": [r"Accuracy by group: "],
    "f2": [r"accuracy within the quartiles of entropy", r"Grad-CAM at .* right ones above, wrong ones below"],
    "f3": [r"under each transform that destroys the object"],
    "f4": [rf"Patch PLPD \({mode} statistics\): accuracy and share of the four areas" for mode in ("running", "batch")],
    "f5": [r"risk-coverage curves"],
    "f6": [rf"Patch PLPD \({mode} statistics\): accuracy and share of the four areas" for mode in ("running", "batch")],
    "f7": [rf"Accuracy for each {swept}; .* EATA" for swept in ("transform", "patches P×P", "τ_PLPD")],
    "f8": [rf"Accuracy for each {swept}; .* EATA" for swept in ("τ_Ent / ln C", "Ent_0 / ln C", "PLPD_0")],
    "f9": [rf"Accuracy for each {swept}; .* EATA" for swept in ("transform", "patches P×P", "τ_PLPD")],
}
"""What the captions in the report of each figure's spec say."""
SWITCHES = ("filter_entropy", "filter_plpd", "weight_entropy", "weight_plpd")
SWEPT = {
    "t6": SWITCHES,
    "t15": SWITCHES,
    "t16": SWITCHES,
    "t17": ("transform", "patches", "plpd_threshold"),
    "f7": ("transform", "patches", "plpd_threshold"),
    "f8": ("entropy_margin", "entropy_reference", "plpd_reference"),
    "f9": ("transform", "patches", "plpd_threshold"),
}
"""What the ablations and the sensitivity sweeps vary."""


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
    experiment = path.stem.partition("_")[0]
    captions = re.findall(r"<figure><svg.*?<figcaption>(.*?)</figcaption>", page, re.DOTALL)
    for figure in FIGURES.get(experiment, ()):
        assert any(re.search(figure, caption) for caption in captions), (figure, captions)
    for setting in SWEPT.get(experiment, ()):
        assert moves_a_number(setting, runs), f"{setting}: every row of the table is the same"


def moves_a_number(setting, runs):
    """Whether there are runs of DeYO that differ in this setting alone, and in accuracy."""
    found = defaultdict(set)
    for row in runs:
        if row["method"] == "deyo":
            others = {name: value for name, value in json.loads(row["settings"]).items() if name != setting}
            found[row["corruption"], json.dumps(others, sort_keys=True)].add(row["accuracy"])
    return any(len(accuracies) > 1 for accuracies in found.values())


def test_the_figures_and_what_is_swept_are_those_of_the_specs():
    names = {path.stem.partition("_")[0]: path for path in SPECS}
    assert set(FIGURES) == {name for name in names if name.startswith("f")}
    layouts = {
        name: re.findall(r"--layout (\S+)", " ".join(index.read_header(path).commands)) for name, path in names.items()
    }
    assert set(SWEPT) == {name for name, found in layouts.items() if {"ablation", "sensitivity"} & set(found)}
