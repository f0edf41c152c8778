"""The pure parts of tracking: options, names, curves, summaries, preflight, frames."""

from __future__ import annotations

import io
import math
import re
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tracking_fakes import planned, rows

from deyo.types import ConfigError
from orchestrator.tracking import NullTracker, TrackingOptions, local, make_tracker, naming
from orchestrator.tracking.artifacts import without_secrets
from orchestrator.tracking.curves import CurveFold, GapError, fold_all, kept
from orchestrator.tracking.frames import read_frames, write_frame
from orchestrator.tracking.inuse import store_in_use
from orchestrator.tracking.options import redact, resolve_uri, sqlite_path
from orchestrator.tracking.parent import is_live, mlflow_status
from orchestrator.tracking.remote import GoneError, OutageError, RefusedError, RemoteRun, sort_failure
from orchestrator.tracking.summary import sweep_points


@pytest.fixture(autouse=True)
def _no_uri_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


# Options


@pytest.mark.parametrize("uri", ["./mlruns", "mlruns", "file:///data/mlruns", "file:./mlruns"])
def test_a_file_store_is_refused_with_the_line_to_paste(uri: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve_uri(uri, "results")
    line = re.search(r'mlflow: \{tracking_uri: "(sqlite:////.*/mlflow\.db)"\}', str(error.value))
    assert line
    assert resolve_uri(line[1], "results") == line[1]


def test_the_default_is_sqlite_under_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_uri("auto", str(tmp_path)) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000/")
    assert resolve_uri("auto", str(tmp_path)) == "http://127.0.0.1:5000"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "./mlruns")
    with pytest.raises(ConfigError, match="file store is gone"):
        resolve_uri("auto", str(tmp_path))


def test_results_in_an_object_store_need_a_named_store() -> None:
    with pytest.raises(ConfigError, match="name a tracking server"):
        resolve_uri("auto", "s3://bucket/results")
    assert resolve_uri("none", "s3://bucket/results") is None


def test_passwords_do_not_belong_in_specs() -> None:
    with pytest.raises(ConfigError) as error:
        resolve_uri("postgresql://me:hunter2@db/mlflow", "results")
    assert "hunter2" not in str(error.value)


def test_unknown_schemes_and_granularities_are_named() -> None:
    with pytest.raises(ConfigError, match="scheme 'ftp'"):
        resolve_uri("ftp://host/mlflow", "results")
    with pytest.raises(ConfigError, match="auto, run, group"):
        TrackingOptions(granularity="seed")


def test_options_of_a_spec() -> None:
    assert TrackingOptions.from_spec({"enabled": False}).uri == "none"
    section = {"enabled": True, "tracking_uri": None, "experiment": "mine", "granularity": "group"}
    assert TrackingOptions.from_spec(section) == TrackingOptions(experiment="mine", granularity="group")
    assert isinstance(make_tracker("demo", "results", TrackingOptions(uri="none")), NullTracker)


def test_relative_sqlite_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_uri("sqlite:///mlflow.db", "results") == f"sqlite:///{tmp_path}/mlflow.db"
    assert sqlite_path("postgresql://h/db") is None


def test_the_store_in_use_is_remembered_but_never_a_password(tmp_path: Path) -> None:
    root = str(tmp_path)
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "spec.json").write_text('{"mlflow": {"tracking_uri": null, "granularity": "run"}}')
    local.remember(root, "demo", "http://127.0.0.1:5001", "run", clean=True)
    assert store_in_use(root, "demo").uri == "http://127.0.0.1:5001"
    assert store_in_use(root, "demo", uri="http://127.0.0.1:9").uri == "http://127.0.0.1:9"
    local.remember(root, "demo", "postgresql://me:hunter2@db/mlflow", "run", clean=True)
    assert all("hunter2" not in p.read_text() for p in (tmp_path / ".mlflow").iterdir())
    assert store_in_use(root, "demo").uri == f"sqlite:///{tmp_path}/mlflow.db"
    assert local.is_clean(root, "demo", "postgresql://me:hunter2@db/mlflow")
    assert not local.is_clean(root, "demo", "postgresql://other@db/mlflow")


def test_no_tracking_has_no_ui(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "spec.json").write_text('{"mlflow": {"enabled": false}}')
    with pytest.raises(ConfigError, match="mlflow: false"):
        store_in_use(str(tmp_path), "demo")


def test_secrets_are_cut_out_everywhere() -> None:
    assert redact("at http://me:pw@host:1/x and s3://key@bucket") == "at http://***@host:1/x and s3://***@bucket"
    assert without_secrets({"a": ["postgresql://u:p@h/d", 3]}) == {"a": ["postgresql://***@h/d", 3]}
    assert naming.tag_value({"uri": "http://u:p@h"}) == '{"uri": "http://***@h"}'


# Names


@settings(deadline=None)
@given(st.text(max_size=400))
def test_any_name_becomes_one_that_mlflow_takes(name: str) -> None:
    from mlflow.utils.validation import _validate_metric_name

    clean = naming.clean_key(name)
    _validate_metric_name(clean)
    assert len(clean) <= naming.MAX_KEY
    assert naming.clean_key(clean) == clean


def test_changed_names_stay_apart() -> None:
    assert naming.clean_key("accuracy/DeYO 1.0:x") == "accuracy/DeYO 1.0:x"
    assert naming.clean_key("err@5") != naming.clean_key("err#5")
    assert ".." not in naming.clean_key("../x").split("/")


def test_groups_differ_in_all_but_seeds_and_label() -> None:
    key = naming.group_key(naming.axes(planned(0).config))
    assert naming.group_key(naming.axes(planned(3, label="other", pretrain_seed=4).config)) == key
    assert naming.group_key(naming.axes(planned(0, severity=3).config)) != key
    assert naming.group_key(naming.axes(planned(0, settings={"lr": 1}).config)) != key


def test_long_params_and_tags_are_cut_in_sight() -> None:
    axes = naming.axes(planned(0, settings={"long": "x" * 9000}).config)
    assert len(naming.params(axes, with_seed=True)["settings.long"]) == naming.MAX_PARAM
    assert naming.tag_value("y" * 9000).endswith("…")


# Curves


def test_every_step_then_each_tenth_then_each_hundredth() -> None:
    assert [s for s in range(120) if kept(s, 10)] == [*range(10), *range(10, 100, 10), 100]
    assert sum(kept(s, 1000) for s in range(782)) == 782
    assert sum(kept(s, 1000) for s in range(50_000)) == 2300


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_points_do_not_depend_on_how_rows_are_cut(cuts: list[int]) -> None:
    total = sum(cuts)
    table = pa.Table.from_batches(rows(planned(1), 1, range(total)))
    whole = fold_all(table.to_batches(), 20)
    fold, pieces, start = CurveFold(dense=20), [], 0
    for cut in cuts:
        pieces += fold.add(table.slice(start, cut))
        start += cut
    assert pieces + fold.finish() == whole
    assert [p.step for p in whole if p.key == "running_accuracy"][-1] == total - 1


def test_windows_keep_every_image() -> None:
    table = pa.Table.from_batches(rows(planned(1), 1, range(100)))
    points = fold_all(table.to_batches(), 10)
    entropies = {p.step: p.value for p in points if p.key == "entropy"}
    assert entropies[20] == pytest.approx(sum(1 / (s + 1) for s in range(11, 21)) / 10)
    assert entropies[99] == pytest.approx(sum(1 / (s + 1) for s in range(91, 100)) / 9)


def test_a_run_of_one_block_shows_the_speed_of_its_row() -> None:
    batches = rows(planned(1), 1, range(3))
    speeds = [p for p in fold_all(batches, 10, 123.0) if p.key == "images_per_second"]
    assert [(p.step, p.value) for p in speeds] == [(2, 123.0)]
    several = fold_all(rows(planned(1), 1, range(8)), 10, 123.0)
    assert [(p.step, p.value) for p in several if p.key == "images_per_second"] == [(7, 512.0)]


def test_a_gap_is_noticed_and_a_repeat_ignored() -> None:
    batches = rows(planned(1), 1, range(12))
    fold = CurveFold()
    fold.add(batches[0])
    assert fold.add(batches[0]) == []
    with pytest.raises(GapError):
        fold.add(batches[2])


def test_values_that_are_not_finite_make_no_point() -> None:
    table = pa.Table.from_batches(rows(planned(1), 1, range(2)))
    at = table.schema.get_field_index("mean_plpd")
    table = table.set_column(at, "mean_plpd", pa.array([math.nan, None], pa.float64()))
    points = fold_all(table.to_batches(), 10)
    assert not [p for p in points if p.key == "plpd"]
    assert len([p for p in points if p.key == "entropy"]) == 2


# The rest


def aggregate(corruption: str | None, mean: float, **changes: object) -> dict[str, object]:
    base = {"metric": "accuracy", "label": "DeYO", "method": "deyo", "model": "m", "benchmark": "b", "severity": 5}
    more = {"scenario": "mild", "scenario_options": "{}", "batch_size": 64, "protocol": "official", "precision": "tf32"}
    return base | more | {"corruption": corruption, "mean": mean, "std": 0.01} | changes


def test_a_large_sweep_s_parent_shows_averages_only() -> None:
    many = [aggregate(f"noise{i}", 0.5) for i in range(600)] + [aggregate("average", 0.5)]
    points = sweep_points(many, 1, 600)
    assert [p.key for p in points] == [
        "accuracy/DeYO average-5 m b mild batch 64 official tf32",
        "accuracy_std/DeYO average-5 m b mild batch 64 official tf32",
    ]
    assert len(sweep_points([*many[:3], aggregate("fog", math.nan)], 1, 3)) == 6


@pytest.mark.parametrize(
    ("text", "code", "kind"),
    [
        ("The run 1 must be in the 'active' state. Current state is deleted.", "INVALID_PARAMETER_VALUE", GoneError),
        ("no run", "RESOURCE_DOES_NOT_EXIST", GoneError),
        ("Invalid Host header - possible DNS rebinding attack detected", "PERMISSION_DENIED", OutageError),
        ("API request failed with error code 500 != 200", "INTERNAL_ERROR", OutageError),
        ("API request failed with error code 401 != 200", "UNAUTHENTICATED", OutageError),
        ("Changing param values is not allowed", "INVALID_PARAMETER_VALUE", RefusedError),
        ("connection to http://u:secret@h refused", "", OutageError),
    ],
)
def test_failures_are_sorted(text: str, code: str, kind: type[Exception]) -> None:
    error = Exception(text)
    error.error_code = code  # type: ignore[attr-defined]
    found = sort_failure(error)
    assert type(found) is kind
    assert "secret" not in str(found)


def test_statuses_of_outcomes() -> None:
    words = ["finished", "FINISHED", "FAILED", "KILLED", "interrupted", "stopped"]
    assert [mlflow_status(w) for w in words] == ["FINISHED", "FINISHED", "FAILED", "KILLED", "KILLED", "KILLED"]


def test_a_recent_heartbeat_of_a_running_parent_means_live() -> None:
    run = RemoteRun(mlflow_id="m", kind="sweep", key="demo", status="RUNNING", deleted=False)
    run.tags = {"deyo.heartbeat": "1000"}
    assert is_live(run, 1050)
    assert not is_live(run, 1200)
    run.status = "KILLED"
    assert not is_live(run, 1050)
    assert not is_live(None, 1050)


def test_a_frame_that_was_cut_off_is_dropped() -> None:
    stream = io.BytesIO()
    for message in (("a", 1), ("b", pa.record_batch({"x": [1, 2]}))):
        write_frame(stream, message)
    assert list(read_frames(io.BytesIO(stream.getvalue())))[1][1].num_rows == 2
    assert list(read_frames(io.BytesIO(stream.getvalue()[:-3]))) == [("a", 1)]
