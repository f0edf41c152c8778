"""Preflight: what is missing is said before anything starts, with what to do."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import birds
import pytest

from orchestrator.catalog import Catalog
from orchestrator.grouping import pretrain_key
from orchestrator.plan import make_plan
from orchestrator.preflight import (
    Check,
    cache_check,
    disk_check,
    fit_check,
    local_facts,
    mlflow_check,
    preflight,
    shortage,
)
from orchestrator.probe import ClusterFacts, Node
from orchestrator.shelf import Shelf
from orchestrator.spec import parse_spec
from orchestrator.specmodel import Resources, SweepSpec
from orchestrator.store.local_tree import LocalTree
from orchestrator.types import Artifact

GRID = """\
name: t
runs:
  - benchmark: digits-c
    corruptions: [contrast]
    models: [small-resnet-bn]
    methods: [no-adapt]
"""


def node(name: str, gpus: float, kind: str = "", cpus: float = 8) -> Node:
    return Node(name=name, address=name, cpus=cpus, gpus=gpus, gpu_type=kind, memory_bytes=64e9, head=False)


CLUSTER = ClusterFacts(
    address="head:6379", ray_version="2", python_version="3.11", nodes=(node("a", 2, "T4"), node("b", 4, "H100"))
)


def spec_of(*overrides: str) -> SweepSpec:
    return parse_spec(GRID, overrides)


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data, weights or tracking server of the machine that runs the tests."""
    for name in ("DEYO_DATA", "DEYO_DATA_IMAGENET_C", "DEYO_WEIGHTS", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DEYO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))


def test_a_bundled_sweep_is_ready(tmp_path: Path) -> None:
    spec = spec_of()
    results = tmp_path / "results"
    checks = by_name(preflight(spec, make_plan(spec), results=str(results)))
    assert checks["data: digits-c"].ok
    assert "pretrained by the sweep" in checks["weights: small-resnet-bn"].detail
    assert checks["mlflow"].ok
    assert checks["disk"].ok
    assert checks["resources"].ok
    assert not results.exists(), "a plan leaves nothing behind"


def test_missing_data_says_how_to_name_it(tmp_path: Path) -> None:
    if "imagenet-c" not in Catalog().benchmark_names():
        pytest.skip("imagenet-c is not registered")
    spec = spec_of("runs[0].benchmark=imagenet-c", "runs[0].models=[resnet50-bn]")
    checks = by_name(preflight(spec, make_plan(spec), results=str(tmp_path)))
    assert checks["data: imagenet-c"].ok is False
    assert "DEYO_DATA_IMAGENET_C" in checks["data: imagenet-c"].detail
    weights = checks["weights: resnet50-bn"]
    assert weights.ok is None
    assert "fetched at first use" in weights.detail


def look_at_folder(folder: Path, results: Path) -> Check:
    """The check of a spec's image-folder at ``folder``."""
    options = "runs[0].benchmark_options={num_classes: 1000}"
    where = f"data={{image-folder: {folder}}}"
    spec = spec_of("runs[0].benchmark=image-folder", "runs[0].models=[resnet50-bn]", options, where)
    return by_name(preflight(spec, make_plan(spec), results=str(results)))["data: image-folder"]


def test_an_empty_folder_of_images_is_said_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    check = look_at_folder(tmp_path / "pictures", tmp_path / "results")
    assert check.ok is False
    assert "pictures is empty" in check.detail


def test_a_folder_of_images_is_listed_and_not_decoded(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        (tmp_path / "pictures" / name / "1.png").write_bytes(b"no image")
    check = look_at_folder(tmp_path / "pictures", tmp_path / "results")
    assert check.ok is True
    assert check.detail == f"1 condition(s) made of 2 images, at {tmp_path / 'pictures'}"
    assert not (tmp_path / "cache").exists(), "a look leaves nothing behind"


def look_at_birds(root: Path, results: Path) -> Check:
    spec = parse_spec(birds.SPEC.replace("ROOT", str(root)))
    return by_name(preflight(spec, make_plan(spec), results=str(results)))["data: waterbirds"]


def test_missing_training_images_are_said_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    birds.waterbirds_tree(tmp_path / "birds", monkeypatch, absent=("train",))
    check = look_at_birds(tmp_path / "birds", tmp_path / "results")
    assert check.ok is False
    assert "waterbirds train: 4 images named in metadata.csv are missing" in check.detail
    birds.waterbirds_tree(tmp_path / "birds", monkeypatch)
    check = look_at_birds(tmp_path / "birds", tmp_path / "results")
    assert check.ok is True
    assert check.detail == f"1 condition(s), training images, at {tmp_path / 'birds'}"


def test_a_sweep_that_has_its_checkpoints_needs_no_training_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    birds.waterbirds_tree(tmp_path / "birds", monkeypatch, absent=("train",))
    spec = parse_spec(birds.SPEC.replace("ROOT", str(tmp_path / "birds")))
    run = make_plan(spec).runs[0]
    shelf = Shelf(LocalTree(str(tmp_path / "results" / "birds")))
    shelf.put(Artifact(key=pretrain_key(run.config), path="", sha256="", blob=b"weights"), run.stamps)
    check = look_at_birds(tmp_path / "birds", tmp_path / "results")
    assert check.ok is True
    assert check.detail == f"1 condition(s), at {tmp_path / 'birds'}"


def test_on_a_cluster_missing_data_here_is_no_failure(tmp_path: Path) -> None:
    if "imagenet-c" not in Catalog().benchmark_names():
        pytest.skip("imagenet-c is not registered")
    spec = spec_of("runs[0].benchmark=imagenet-c", "runs[0].models=[resnet50-bn]")
    checks = by_name(preflight(spec, make_plan(spec), results=str(tmp_path), address="127.0.0.1:1"))
    assert checks["data: imagenet-c"].ok is None
    assert checks["cluster"].ok is False
    assert "nothing answers" in checks["cluster"].detail


def test_more_gpus_than_there_are_names_the_biggest_node() -> None:
    problem = shortage(Resources(gpus=9), CLUSTER)
    assert problem is not None
    assert "resources.gpus is 9" in problem
    assert "has 6 in all" in problem
    assert "biggest node is b with 4 GPU(s) (H100)" in problem


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        (Resources(gpu_type="A100"), ["'A100'", "H100, T4"]),
        (Resources(gpu_type="T4", gpus=3), ["has 2 of type T4"]),
        (Resources(memory_gb=100), ["memory_gb", "biggest"]),
        (Resources(cpus_per_worker=9), ["cpus_per_worker"]),
    ],
)
def test_other_shortages(resources: Resources, words: list[str]) -> None:
    problem = shortage(resources, CLUSTER) or ""
    for word in words:
        assert word in problem


@pytest.mark.parametrize("resources", [Resources(), Resources(gpus=6), Resources(gpu_type="H100", gpus=4)])
def test_what_the_cluster_has_is_no_shortage(resources: Resources) -> None:
    assert shortage(resources, CLUSTER) is None


@pytest.mark.parametrize("asked", ["H100", "h100", "NVIDIA H100 80GB HBM3"])
@pytest.mark.parametrize("name", ["H100", "NVIDIA H100 80GB HBM3"])
def test_a_gpu_answers_to_its_full_name_and_to_its_label(asked: str, name: str) -> None:
    facts = replace(CLUSTER, nodes=(node("a", 2, "T4"), node("b", 4, name)))
    assert shortage(Resources(gpu_type=asked, gpus=4), facts) is None


HEAD_ALONE = ClusterFacts(address="head:6379", ray_version="2", python_version="3.11", nodes=(node("head", 0, cpus=0),))
"""What deploy/aws.yaml starts with."""


@pytest.mark.parametrize("resources", [Resources(gpus=8), Resources(workers=2), Resources(gpus=1, gpu_type="H100")])
def test_what_an_autoscaler_can_bring_is_a_note(resources: Resources) -> None:
    assert shortage(resources, HEAD_ALONE)
    assert fit_check(resources, HEAD_ALONE).ok is False
    check = fit_check(resources, replace(HEAD_ALONE, grows=True))
    assert check.ok is None
    assert check.detail.endswith("The autoscaler is asked for the rest")
    assert "Lower it" not in check.detail


@pytest.mark.parametrize("resources", [Resources(), Resources(gpu_type="H100")])
def test_an_autoscaler_must_be_told_how_far_to_grow(resources: Resources) -> None:
    check = fit_check(resources, replace(HEAD_ALONE, grows=True))
    assert check.ok is False
    assert "set resources.gpus or resources.workers" in check.detail


def test_this_machine_has_a_core_and_memory() -> None:
    facts = local_facts()
    assert facts.biggest.cpus >= 1
    assert facts.biggest.memory_bytes > 1e8


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    """A tracking server that answers every question with one status."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(request.param)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            return

    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{listening.server_port}"
    listening.shutdown()
    listening.server_close()


@pytest.mark.parametrize("server", [200], indirect=True)
def test_a_tracking_server_that_answers(server: str) -> None:
    assert mlflow_check(spec_of(f"mlflow.tracking_uri={server}"), "r").ok


@pytest.mark.parametrize("server", [403, 500], indirect=True)
def test_a_tracking_server_that_refuses_is_a_note_because_the_sweep_runs_all_the_same(server: str) -> None:
    check = mlflow_check(spec_of(f"mlflow.tracking_uri={server}"), "r")
    assert check.ok is None
    assert "publishes it later" in check.detail


def test_a_tracking_server_that_is_down_is_a_note() -> None:
    assert mlflow_check(spec_of("mlflow.tracking_uri=http://127.0.0.1:1"), "r").ok is None


def test_tracking_switched_off() -> None:
    assert "off" in mlflow_check(spec_of("mlflow=false"), "r").detail


def test_a_file_store_in_the_environment_is_refused_with_the_line_to_paste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "./mlruns")
    check = mlflow_check(spec_of(), "r")
    assert check.ok is False
    assert "sqlite:///" in check.detail


def test_a_full_disk_is_said_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    check = disk_check([run.config for run in make_plan(spec_of()).runs], str(tmp_path))
    assert check.ok is False
    assert "--results" in check.detail


def test_a_results_root_that_is_a_file_is_said_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    for results in (tmp_path / "taken", tmp_path / "taken" / "deeper"):
        check = disk_check([], str(results))
        assert check.ok is False
        assert f"{tmp_path / 'taken'} is a file" in check.detail


def test_a_cache_that_cannot_be_used_is_said_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEYO_CACHE", str(tmp_path / "new" / "cache"))
    assert cache_check().ok
    (tmp_path / "new").write_text("")
    check = cache_check()
    assert check.ok is False
    assert "DEYO_CACHE" in check.detail
    assert f"{tmp_path / 'new'} is a file" in check.detail


@pytest.mark.parametrize("address", [None, "head:6379"])
def test_a_network_that_nothing_can_train_is_said_before_the_start(
    tmp_path: Path, address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.preflight.probe", lambda _: CLUSTER)
    spec = spec_of("runs[0].benchmark=imagenet-c")
    checks = by_name(preflight(spec, make_plan(spec), results=str(tmp_path), address=address))
    assert checks["weights: small-resnet-bn"].ok is False
    assert "imagenet-c has no training images" in checks["weights: small-resnet-bn"].detail
