"""The cost model: recorded speeds first, published ones next; guesses stand apart and are called so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import store_runs as sr

from orchestrator.cost import COLUMNS, CostModel, guess
from orchestrator.schema import RUNS
from orchestrator.store import ParquetStore
from orchestrator.types import PlannedRun, RunConfig, RunStatus

H100 = "NVIDIA H100 80GB HBM3"
CONFIG = RunConfig(
    benchmark="imagenet-c",
    scenario="mild",
    model="resnet50-bn",
    method="deyo",
    label="deyo",
    settings={},
    seed=0,
    batch_size=64,
    corruption="contrast",
    severity=5,
)


def row(**changes: Any) -> dict[str, Any]:
    values = {
        "benchmark": "imagenet-c",
        "scenario": "mild",
        "corruption": "contrast",
        "severity": 5,
        "corruptions": None,
        "max_images": None,
        "method": "deyo",
        "model": "resnet50-bn",
        "batch_size": 64,
        "precision": "tf32",
        "device_name": "card",
        "images": 1000,
        "seconds": 2.0,
        "decode_seconds": 0.0,
        "group_size": 1,
        "host": "here",
        "device": "cuda:0",
        "started_at": None,
        "finished_at": None,
    }
    assert values.keys() == set(COLUMNS)
    assert set(COLUMNS) <= set(RUNS.names)
    return values | changes


def planned(*configs: RunConfig) -> list[PlannedRun]:
    return [PlannedRun(run_id=str(i), config=c, status=RunStatus.NEW) for i, c in enumerate(configs)]


def test_recorded_speeds_are_medians_without_reading() -> None:
    rows = [row(seconds=s, decode_seconds=4.0) for s in (1.0, 2.0, 9.0)]
    model = CostModel(rows)
    assert model.device == "card"
    assert model.seconds(CONFIG) == pytest.approx(2.0)


def test_what_passes_between_groups_is_counted_for_each_run() -> None:
    stamps = {"started_at": "2026-11-29T12:00:00.000+00:00", "finished_at": "2026-11-29T12:00:02.500+00:00"}
    model = CostModel([row(**stamps)], others=[row(device_name="elsewhere", **stamps)])
    assert model.seconds(CONFIG) == pytest.approx(2.5)
    assert model.seconds(replace(CONFIG, max_images=500)) == pytest.approx(1.5)
    assert model.loop_seconds(CONFIG) == pytest.approx(2.0)
    assert CostModel([row()], others=[row(**stamps)]).seconds(CONFIG) == pytest.approx(2.5), "as other sweeps have it"
    published = {"device_name": H100, "batch_size": 1} | stamps
    assert CostModel([row(**published)]).seconds(CONFIG) == pytest.approx(1000 / 1396 + 0.5)


def test_image_sets_that_no_run_has_read_are_counted_once() -> None:
    rows = [row(decode_seconds=s, corruption=c) for s, c in ((4.0, "contrast"), (0.0, "contrast"), (6.0, "fog"))]
    model = CostModel(rows)
    read, other = CONFIG, replace(CONFIG, corruption="snow")
    assert model.estimate(planned(read)).hours == pytest.approx(2.0 / 3600)
    assert model.estimate(planned(read, other, replace(other, seed=1))).hours == pytest.approx((3 * 2.0 + 5.0) / 3600)
    elsewhere = replace(other, benchmark="imagenet-r")
    assert model.reading([read, elsewhere]) == 0
    assert model.reading([replace(read, severity=3), other]) == pytest.approx(10.0)


def test_published_speeds_stand_in_on_their_own_device() -> None:
    model = CostModel()
    assert model.device == H100
    assert model.seconds(CONFIG) == pytest.approx(50_000 / 1396)
    estimate = model.estimate(planned(CONFIG))
    assert estimate.hours == pytest.approx(50_000 / 1396 / 3600)
    assert "published" in estimate.text()
    assert "0.6 GPU-minutes" in estimate.text()


def test_what_is_not_known_is_guessed_apart_and_said() -> None:
    unknown = replace(CONFIG, method="memo")
    model = CostModel()
    assert model.seconds(unknown) is None
    estimate = model.estimate(planned(CONFIG, unknown, unknown))
    assert estimate.unknown == {("memo", "resnet50-bn"): 2}
    assert estimate.hours == model.estimate(planned(CONFIG)).hours
    assert estimate.guessed == pytest.approx(2 * guess(unknown, 50_000, H100) / 3600)
    assert "not counting memo on resnet50-bn (no speeds recorded yet; a rough guess: " in estimate.text()
    alone = model.estimate(planned(unknown)).text()
    assert alone.startswith("a rough guess of ")
    assert alone.endswith("from the networks' size: no speeds recorded yet for memo on resnet50-bn")
    endless = replace(unknown, benchmark="image-folder")
    assert model.estimate(planned(endless)).text() == "cost unknown: no speeds recorded yet for memo on resnet50-bn"
    assert CostModel([row()]).seconds(replace(CONFIG, precision="bf16")) is None, "another precision, another speed"


def test_a_guess_tells_a_cpu_from_a_gpu_and_large_from_small() -> None:
    assert guess(CONFIG, 1000, "cpu") > 100 * guess(CONFIG, 1000, H100)
    assert guess(replace(CONFIG, method="memo"), 1000, "cpu") > guess(CONFIG, 1000, "cpu")
    assert guess(replace(CONFIG, model="small-resnet-bn"), 1000, "cpu") < guess(CONFIG, 1000, "cpu")


def test_streams_are_as_long_as_their_scenario_makes_them() -> None:
    model = CostModel()
    corruptions = tuple("abc")
    assert model.images(CONFIG) == 50_000
    assert model.images(replace(CONFIG, scenario="label-shift")) == 100_000
    assert model.images(replace(CONFIG, scenario="mixed", corruption=None, corruptions=corruptions)) == 150_000
    assert model.images(replace(CONFIG, max_images=128)) == 128
    assert model.images(replace(CONFIG, benchmark="image-folder")) is None
    assert model.images(replace(CONFIG, benchmark="image-folder", max_images=64)) == 64


def test_recorded_lengths_win() -> None:
    assert CostModel([row(benchmark="image-folder", images=77)]).images(replace(CONFIG, benchmark="image-folder")) == 77


def test_small_amounts_are_minutes_and_a_cpu_is_called_so() -> None:
    model = CostModel([row(device_name="cpu")])
    assert "0.033 CPU-minutes on cpu, from recorded speeds" in model.estimate(planned(CONFIG)).text()
    assert "5.6 CPU-hours" in model.estimate(planned(*[CONFIG] * 10_000)).text()


def test_rows_without_figures_teach_nothing() -> None:
    assert CostModel([row(images=0), row(seconds=None)]).seconds(replace(CONFIG, method="memo")) is None


def test_nothing_to_run_costs_nothing() -> None:
    assert CostModel().estimate([]).text() == "nothing to run"


def test_a_sweeps_own_speeds_stand_before_those_of_others() -> None:
    faster, other = row(seconds=1.0), row(method="tent", seconds=3.0)
    model = CostModel([row()], others=[faster, faster, other, *[row(device_name="elsewhere")] * 9])
    assert model.device == "card"
    assert model.seconds(CONFIG) == pytest.approx(2.0)
    assert model.seconds(replace(CONFIG, method="tent")) == pytest.approx(3.0)


def test_a_root_is_read_over_all_its_sweeps_but_for_a_damaged_one(tmp_path: Path) -> None:
    for name in ("first", "second"):
        store = ParquetStore(str(tmp_path), name)
        sr.run_once(store, sr.planned(batch_size=len(name)), seconds=2.0, device_name="card")
        store.close()
    for part in (tmp_path / "second" / "tables" / "runs").iterdir():
        part.write_bytes(b"no parquet")
    model = CostModel.of(str(tmp_path), "new")
    config = sr.planned().config
    assert model.device == "card"
    assert model.seconds(replace(config, batch_size=len("first"))) == pytest.approx(2.0)
    assert model.seconds(replace(config, batch_size=len("second"))) is None
    assert CostModel.of(str(tmp_path / "nothing"), "new").device == H100
    assert not (tmp_path / "nothing").exists()
