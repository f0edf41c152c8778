"""Analyses as runs: planned, run, stored and reported like any other run, with the engine's own numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tables_fakes import biased_row, config, write_store

from deyo.analysis import risk_curves, score_images
from deyo.benchmarks import open_benchmark
from deyo.networks import load_network
from deyo.types import ConfigError
from orchestrator import open_results
from orchestrator.analyses.pictures import decoded, encoded
from orchestrator.analyses.run import picked
from orchestrator.data_needs import data_needs
from orchestrator.expand import expand
from orchestrator.outcome import SweepStatus
from orchestrator.report.build import make_sections, write_report
from orchestrator.session import Place, run_spec
from orchestrator.spec import parse_spec
from orchestrator.tables.differences import compared
from orchestrator.tables.load import load
from orchestrator.tables.request import Request, make_tables

SPEC = """\
name: analyses
max_images: 80
mlflow: false
runs:
  - benchmark: colored-digits
    scenario: biased
    models: ["small-resnet-bn+steps=12"]
    samples: true
    methods:
      - {name: score, settings: {statistics: [running, batch], transform: [patch, occlusion]}}
      - {name: grad-cam, settings: {count: 2}}
  - {benchmark: colored-digits, scenario: biased, models: [none], methods: [{name: transforms, settings: {count: 2}}]}
  - benchmark: synthetic
    models: [none]
    methods: [{name: proposition, settings: {samples: 60, steps: 5}}]
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("analyses")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEYO_CACHE", str(folder / "cache"))
        outcome = run_spec(parse_spec(SPEC), results=str(folder / "results"), place=Place(in_process=True))
        assert (outcome.status, outcome.done, outcome.failures) == (SweepStatus.FINISHED, 7, {})
        yield folder


@pytest.fixture(scope="module")
def data(root):
    return load("analyses", str(root / "results"))


def rows_of(data, method):
    return [e for e in data[0].entries if e.axes["method"] == method]


def test_scores_in_the_store_are_the_functions_own(root, data):
    benchmark = open_benchmark("colored-digits", cache=root / "cache")
    network = load_network("small-resnet-bn+steps=12", pretrain_seed=0, benchmark=benchmark, cache=root / "cache")
    images = benchmark.images()
    for entry in rows_of(data, "score"):
        rows = data[1].samples([entry.run_id]).to_pandas().sort_values("position")
        asked = entry.axes["settings"]
        again = picked(images, rows["index"].to_numpy())
        scores = score_images(
            network, again, kinds=[asked["transform"]], statistics=asked["statistics"], seed=0, precision="tf32"
        )
        np.testing.assert_allclose(rows["entropy"], scores.entropy, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(rows["plpd"], scores.plpd[asked["transform"]], rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(rows["label"] == rows["prediction"], scores.correct)
        assert entry.row["forwards"] == 160
        assert entry.row["accuracy"] == pytest.approx(scores.correct.mean())


def test_the_aurc_layout_shows_both_batchnorm_modes(root, data):
    table, each = make_tables(data[0].where(lambda e: e.axes["method"] == "score"), Request())
    titles = [row.title for row in table.rows]
    assert titles == [
        f"{score} ({mode} statistics)"
        for score in ("Entropy", "Patch PLPD", "Occlusion PLPD")
        for mode in ("running", "batch")
    ]
    benchmark = open_benchmark("colored-digits", cache=root / "cache")
    network = load_network("small-resnet-bn+steps=12", pretrain_seed=0, benchmark=benchmark, cache=root / "cache")
    entry = rows_of(data, "score")[0]
    index = data[1].samples([entry.run_id]).to_pandas().sort_values("position")["index"].to_numpy()
    scores = score_images(network, picked(benchmark.images(), index), kinds=["patch"], statistics="running")
    (curve,) = risk_curves(scores, group=scores.worst_group(), names=["patch"])
    shown = table.cells[titles.index("Patch PLPD (running statistics)")][0]
    assert shown.summary.mean == pytest.approx(100 * curve.aurc, abs=0.2)
    row = each.cells[titles.index("Patch PLPD (running statistics)")]
    assert [c.title for c in each.columns] == ["0-green", "0-red", "1-green", "1-red", "all"]
    for cell, group in zip(row, [0, 1, 2, 3, None]):
        (curve,) = risk_curves(scores, group=group, names=["patch"])
        assert cell.summary.mean == pytest.approx(100 * curve.aurc, abs=0.2)


def test_scores_stand_beside_the_papers_table_14(tmp_path):
    place = {"benchmark": "waterbirds", "scenario": "biased", "model": "resnet50-bn", "corruption": None}
    kinds = ("augmix", "pixel", "patch", "occlusion")
    configs = [
        config(**place, severity=None, method="score", label=f"{s} {t}", settings={"statistics": s, "transform": t})
        for s in ("running", "batch")
        for t in kinds
    ]
    write_store(tmp_path, "t14", configs, lambda run: biased_row(run, (0.9, 0.5)), steps=4, with_samples=True)
    table, _ = compared(load("t14", str(tmp_path))[0], Request(layout="aurc"), paper=True)
    paper = [(row.key["confidence"], cells[0].summary.mean) for row, cells in zip(table.rows, table.cells)]
    values = dict(found for found, row in zip(paper, table.rows) if row.kind == "paper")
    assert values == {"entropy": 56.30, "augmix": 35.58, "pixel": 20.71, "patch": 14.75, "occlusion": 13.77}


def test_pictures_lie_in_the_row(data):
    (grad_cam,) = rows_of(data, "grad-cam")
    found = json.loads(grad_cam.row["analysis"])
    assert found["among"] in ("0-green", "0-red", "1-green", "1-red")
    for example in found["examples"]:
        assert decoded(example["image"]).shape == (28, 28, 3)
        assert decoded(example["heat"]).shape == (28, 28)
        assert example["correct"] == (example["label"] == example["prediction"])
    (transforms,) = rows_of(data, "transforms")
    examples = json.loads(transforms.row["analysis"])["examples"]
    pixels = open_benchmark("colored-digits").images().pixels
    assert len(examples) == 2
    for example in examples:
        original, patch = (decoded(example["views"][name]) for name in ("original", "patch"))
        np.testing.assert_array_equal(original, pixels[np.array([example["index"]])][0])
        np.testing.assert_array_equal(np.sort(patch, axis=None), np.sort(original, axis=None))
    assert transforms.row["images"] == 0
    assert transforms.row["accuracy"] is None


def test_large_pictures_are_small_files():
    image = np.tile(np.arange(224, dtype=np.uint8)[:, None, None], (1, 224, 3))
    assert np.abs(decoded(encoded(image)).astype(int) - image).max() < 12
    assert len(encoded(image)) < 30_000


def test_the_proposition_foretells_every_sign(data):
    (table,) = make_tables(data[0].where(lambda e: e.axes["method"] == "proposition"), Request())
    values = {column.metric: cell.summary.mean for column, cell in zip(table.columns, table.cells[0])}
    assert values["agree"] == 100
    assert 0 < values["harmful"] < 100
    assert values["harmless"] > values["all"]


def test_the_report_has_a_picture_of_each(root, data, tmp_path):
    sections = {s.anchor: s for s in make_sections(*data)}
    names = {p.name.split("-colored")[0] for g in sections["analyses"].galleries for p in g.plots}
    assert {"grad-cam", "transforms"} <= names
    assert sum(name.startswith("proposition") for name in names) == 2
    assert sections["stream"].empty
    kinds = {p.name.split("-")[0] for g in sections["confidence"].galleries for p in g.plots}
    assert kinds == {"risk", "entropy", "areas"}
    assert "Grad-CAM at" in write_report(*data, tmp_path, formats=()).page.read_text(encoding="utf-8")


def test_a_second_run_has_nothing_to_do(root):
    outcome = run_spec(parse_spec(SPEC), results=str(root / "results"), place=Place(in_process=True))
    assert (outcome.done, outcome.committed) == (7, 0)
    assert len(open_results(str(root / "results"), "analyses").runs()) == 7


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("runs[0].methods=[proposition]", "proposition needs `benchmark: synthetic`"),
        ("runs[1].models=[small-resnet-bn]", "transforms needs `models: \\[none\\]`"),
        ("runs[2].methods=[tent]", "tent needs a benchmark with images, found 'synthetic'"),
        ("runs[0].models=[none]", "score needs a network, found 'none'"),
        ("runs[0].methods=[{name: score, settings: {transform: patches}}]", "transform.*patch"),
        ("runs[0].methods=[{name: grad-cam, settings: {count: 0}}]", "grad-cam.count is 0: write a number at least 1"),
        ("runs[0].methods=[grad-camera]", "grad-camera"),
    ],
)
def test_wrong_specs_say_what_is_wrong(change, said):
    with pytest.raises(ConfigError, match=said):
        expand(parse_spec(SPEC, [change]))


def test_there_is_nothing_to_prepare_for_synthetic_data():
    assert [needs.benchmark for needs in data_needs(expand(parse_spec(SPEC)))] == ["colored-digits"]


def test_thresholds_are_those_of_deyo():
    (run, *_) = expand(parse_spec(SPEC))
    assert (run.settings["plpd_threshold"], run.settings["entropy_margin"]) == (0.5, 1.0)
    (run, *_) = expand(parse_spec(SPEC, ["runs[0].benchmark=digits-c", "runs[0].scenario=mild"]))
    assert (run.settings["plpd_threshold"], run.settings["entropy_margin"]) == (0.2, 0.5)
