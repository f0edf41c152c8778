"""Every spec in ``experiments/``: it expands, its header tells the truth, and the index is the specs' own."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from safetensors.torch import save_file
from tables_fakes import planned, samples, sweep

from deyo.benchmarks.registry import BUILT_IN, benchmark_class, benchmark_info
from deyo.networks import ANCHORS
from deyo.networks.files import build_architecture
from deyo.streams.label_shift import INFINITE_RATIO, PUBLISHED_SEEDS
from experiments import index, reference
from orchestrator.catalog import Catalog
from orchestrator.expand import expand
from orchestrator.plan import make_plan
from orchestrator.spec import load_spec
from orchestrator.tables.differences import compared
from orchestrator.tables.layouts import layout
from orchestrator.tables.paper import published
from orchestrator.tables.request import Request
from orchestrator.types import RunStatus

SPECS = index.spec_files()
CATALOG = Catalog()
TABLES = [f"t{n}" for n in (*range(1, 5), "5a", "5b", *range(6, 9), "9a", "9b", *range(10, 21))]
FIGURES = [f"f{n}" for n in range(1, 10)]

each = pytest.mark.parametrize("path", SPECS, ids=[p.stem for p in SPECS])


@pytest.fixture(scope="module", autouse=True)
def weights(tmp_path_factory):
    """A stand-in for the weight file that ``cifar10_wild.yaml`` names: planning reads its shapes and its sha256."""
    folder = tmp_path_factory.mktemp("weights")
    module = build_architecture("cifar-resnet26-gn", {}).build(10)
    save_file(module.state_dict(), folder / "cifar10_resnet26_gn_memo.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEYO_WEIGHTS", str(folder))
        yield


def test_every_table_and_figure_has_a_spec():
    found = [p.stem.partition("_")[0] for p in SPECS]
    assert [name for name in found if re.fullmatch(r"[tfp]\d+[ab]?", name)] == [*TABLES, *FIGURES, "p1"]


@each
def test_it_plans_in_both_forms(path):
    full = make_plan(load_spec(path), catalog=CATALOG)
    smoke = make_plan(load_spec(path, smoke=True), catalog=CATALOG)
    assert {run.status for run in (*full.runs, *smoke.runs)} == {RunStatus.NEW}
    assert full.sweep == path.stem.replace("_", "-")
    assert len(smoke.runs) <= 40
    assert {r.config.benchmark for r in smoke.runs} <= {"digits-c", "colored-digits", "synthetic"}
    assert {r.config.method for r in smoke.runs} == {r.config.method for r in full.runs}
    assert {r.config.scenario for r in smoke.runs} == {r.config.scenario for r in full.runs}


@each
def test_its_header_is_complete_and_its_cost_is_computed(path):
    header = index.read_header(path)
    assert set(header.fields) == set(index.KEYS)
    assert f"deyo-sweep run experiments/{path.name}" in header.commands
    assert all(f"experiments/{path.name}" in command for command in header.commands)
    assert index.with_cost(path) == path.read_text(encoding="utf-8"), "run `python -m experiments.index`"
    for name in re.findall(r"--layout (\S+)", " ".join(header.commands)):
        layout(name)


@each
def test_every_alternative_that_it_offers_is_a_different_valid_spec(path):
    runs = expand(load_spec(path), CATALOG)
    for changes in index.overrides(path):
        assert expand(load_spec(path, changes), CATALOG) != runs, changes


OPEN_POINTS = {
    "memo": (r"MEMO", r"settings\.memo"),
    "sentry": (r"SENTRY", r"settings\.sentry\.learning_rate"),
    "visda-2021": (r"over 1,000 classes", r"classes: 200"),
    "imagenet-r": (r"fractions of ln 1000", r"entropy_classes: 200"),
    "pretraining by PLPD": (r"Unsaid, and chosen", r"\+plpd\+epochs"),
    "entropy_copies": (r"mean of the copies' entropies", r""),
    "AugMix at 28 pixels": (r"AugMix at 28 pixels|At 28 pixels .* AugMix", r""),
}
"""What the paper leaves open, by what brings it into a spec: the header's words, and the override that it offers."""


def open_points(path):
    """Those of ``OPEN_POINTS`` that concern a spec."""
    for run in expand(load_spec(path), CATALOG):
        yield from {run.method, run.benchmark} & set(OPEN_POINTS)
        copies = bool(run.settings.get("entropy_copies"))
        if copies:
            yield "entropy_copies"
        if "+plpd" in run.model:
            yield "pretraining by PLPD"
        augmix = copies or run.method == "memo" or run.settings.get("transform") == "augmix"
        if augmix and run.benchmark == "colored-mnist":
            yield "AugMix at 28 pixels"


@each
def test_it_says_what_was_chosen_where_the_paper_is_silent(path):
    offered = " ".join(change for changes in index.overrides(path) for change in changes)
    silent = " ".join(index.read_header(path).fields["Silent"].split())
    for point in set(open_points(path)):
        words, override = OPEN_POINTS[point]
        assert re.search(words, silent), (point, words)
        assert re.search(override, offered), (point, override)


def test_label_shifts_on_imagenet_c_have_the_published_orders():
    shifted = [
        (path.stem, run)
        for path in SPECS
        for run in expand(load_spec(path), CATALOG)
        if (run.benchmark, run.scenario) == ("imagenet-c", "label-shift")
    ]
    assert {name.partition("_")[0] for name, _ in shifted} == {"t5a", "t9a", "t16", "f9"}
    for name, run in shifted:
        assert run.seed in PUBLISHED_SEEDS, name
        assert run.scenario_options["imbalance_ratio"] == INFINITE_RATIO, name


@pytest.mark.parametrize("experiment", sorted({p.experiment for p in published()}))
def test_the_full_form_has_a_run_for_each_published_number(experiment):
    """By benchmark, scenario, severity, network, method and settings, as ``--compare paper`` matches them."""
    (path,) = [p for p in SPECS if p.stem.partition("_")[0] == experiment.lower()]
    runs = expand(load_spec(path), CATALOG)
    for number in published():
        if number.experiment != experiment:
            continue
        method = "score" if experiment == "T14" else number.method
        assert any(
            (run.benchmark, run.scenario, run.severity, run.model.split("+")[0], run.method)
            == (number.benchmark, number.scenario, number.severity, number.model, method)
            and all(run.settings[name] == value for name, value in number.settings.items())
            and number.corruption in ("", "average", run.corruption)
            for run in runs
        ), number


@pytest.mark.parametrize("experiment", sorted({p.experiment for p in published()}))
def test_its_table_shows_each_published_number(experiment):
    """In the full form, by the command of the spec's header, whatever the runs' own numbers are."""
    (path,) = [p for p in SPECS if p.stem.partition("_")[0] == experiment.lower()]
    runs = expand(load_spec(path), CATALOG)
    groups = {"average_accuracy": 0.5, "worst_group_accuracy": 0.4}
    data = sweep(runs, lambda c: 0.5, extra=lambda c: groups if c.scenario == "biased" else {})
    recorded = [samples(run) for run in planned(runs) if run.config.record_samples]
    data = replace(data, samples=lambda ids: pa.Table.from_batches(recorded) if recorded else None)
    shown: Counter[float] = Counter()
    for command in index.read_header(path).commands:
        words = shlex.split(command)
        if words[1] == "table" and "paper" in words:
            tables = compared(data, Request(layout=words[words.index("--layout") + 1]), paper=True)
            shown += Counter(number for table in tables for number in papers_numbers(table))
    wanted = Counter(p.value for p in published() if p.experiment == experiment)
    assert set(shown) == set(wanted)
    assert shown >= wanted


def papers_numbers(table):
    """The numbers of the paper that stand in a table."""
    for row, line in zip(table.rows, table.cells):
        for column, cell in zip(table.columns, line):
            if cell is not None and "paper" in (row.kind, column.kind):
                yield cell.summary.mean


def test_the_readme_is_the_specs_own():
    text = index.README.read_text(encoding="utf-8")
    assert index.with_table(text) == text, "run `python -m experiments.index`"
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert (index.FOLDER / link).exists(), link


def test_results_name_their_command_and_machine():
    pages = sorted((index.FOLDER / "results").glob("*.md"))
    assert pages
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert "deyo-sweep run experiments/" in text, page.name
        assert re.search(r"^Machine: ", text, re.MULTILINE), page.name
        for spec in re.findall(r"experiments/(\w+\.yaml)", text):
            assert (index.FOLDER / spec).exists(), spec


def test_specs_hold_no_paths_of_a_machine():
    for path in [*SPECS, *map(Path, (index.FOLDER / "results").glob("*"))]:
        if path.suffix in (".yaml", ".md"):
            assert not re.search(r"(?<![\w.])/(home|root|work|tmp|mnt)/", path.read_text(encoding="utf-8")), path.name


def test_what_the_reference_lists_is_what_the_code_has() -> None:
    text = reference.SPEC.read_text(encoding="utf-8")
    assert reference.with_parts(text) == text, "run `python -m experiments.index`"
    for part, name in (
        ("settings", "momentum"),
        ("options of benchmarks", "preprocessing"),
        ("networks", "vit-base-ln+modern"),
        ("flags", "+plpd"),
    ):
        begin, end = reference.marks(part)
        assert f"| `{name}` |" in text.partition(begin)[2].partition(end)[0], part


def test_every_benchmark_has_the_options_that_the_reference_lists() -> None:
    for name in BUILT_IN:
        options = benchmark_class(name).OPTIONS
        assert {key: option.default for key, option in options.items()} == benchmark_info(name).options
        for key, option in options.items():
            for choice in option.choices:
                assert benchmark_info(name, **{key: choice}).options[key] == choice


def test_anchors_are_the_papers() -> None:
    """No-adapt's average and contrast in any table of the paper (their last digits differ from table to table)."""
    found = {
        (p.model, p.severity, p.corruption, p.value)
        for p in published()
        if (p.benchmark, p.method) == ("imagenet-c", "no-adapt")
    }
    for name, anchor in ANCHORS.items():
        if anchor.source == "the paper":
            assert (name, 5, "average", anchor.severity_5) in found, name
            assert (name, 3, "average", anchor.severity_3) in found, name
            assert (name, 5, "contrast", anchor.contrast) in found, name
