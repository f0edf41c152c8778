"""The verbs plan and explain on a real store: what they print, their exit codes, what they leave behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import store_runs as sr
from safetensors.numpy import save_file

from deyo.types import ConfigError
from orchestrator.catalog import Catalog
from orchestrator.cli.main import run as command_line
from orchestrator.cli.stored import stored_spec, sweeps_under
from orchestrator.explain import explain, text
from orchestrator.plan import History, make_plan
from orchestrator.spec import load_spec, resolved_spec
from orchestrator.store import ParquetStore
from orchestrator.types import Failure, FailureClass, Plan

GRID = """\
name: little
seeds: [0, 1]
runs:
  - benchmark: digits-c
    corruptions: [contrast]
    models: [small-resnet-bn]
    methods: [no-adapt, deyo]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEYO_CACHE", str(tmp_path / "cache"))
    (tmp_path / "little.yaml").write_text(GRID)
    return tmp_path


def store_sweep(done: int = 4) -> Plan:
    """A store in which the first ``done`` runs are committed."""
    spec = load_spec("little.yaml")
    plan = make_plan(spec)
    store = ParquetStore("results", "little")
    store.write_spec(GRID, resolved_spec(spec))
    store.write_plan(plan)
    for run in plan.runs[:done]:
        sr.run_once(store, run, samples=False, seconds=2.0, device_name="cpu", group_size=1)
    store.close()
    return plan


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert command_line(list(arguments)) == code
    output = capsys.readouterr()
    return output.out + output.err


def test_a_plan_counts_and_leaves_nothing_behind(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = said(capsys, "plan", "little.yaml", "--no-preflight")
    assert "little: 4 runs: 4 new, 0 done, 0 failed, 0 stale" in output
    assert "a rough guess of" in output
    assert [p.name for p in folder.iterdir()] == ["little.yaml"]


def test_a_plan_after_some_runs(capsys: pytest.CaptureFixture[str]) -> None:
    plan = store_sweep(done=3)
    store = ParquetStore("results", "little")
    failed = plan.runs[3]
    store.begin(failed, 1)
    store.fail(failed.run_id, 1, Failure(kind=FailureClass.ERROR, message="boom"))
    store.close()
    output = said(capsys, "plan", "little.yaml", "--runs", "--no-preflight", "--set", "seeds=[0, 1, 2]")
    assert "6 runs: 2 new, 3 done, 1 failed, 0 stale" in output
    assert "error: boom" in output
    assert f"{plan.runs[0].run_id}  done" in output
    assert "retry" in output
    assert "CPU-minutes on cpu, from recorded speeds" in output


def test_speeds_of_another_sweep_of_the_root_count(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store_sweep()
    (folder / "next.yaml").write_text(GRID.replace("little", "next").replace("[0, 1]", "[2, 3]"))
    output = said(capsys, "plan", "next.yaml", "--no-preflight")
    assert "4 new" in output
    assert "CPU-minutes on cpu, from recorded speeds" in output
    assert not (folder / "results" / "next").exists()


def test_checks_that_fail_give_exit_code_one(capsys: pytest.CaptureFixture[str]) -> None:
    output = said(capsys, "plan", "little.yaml", "--set", "resources.gpus=9", code=1)
    assert "FAIL resources: resources.gpus is 9" in output
    assert "biggest node" in output


def test_one_run_resolved(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_plan(load_spec("little.yaml")).runs[2]
    output = said(capsys, "plan", "little.yaml", "--run", run.run_id[:8])
    assert f"{run.run_id}: new" in output
    assert "learning_rate: 0.00025" in output
    assert "plpd_threshold: 0.2" in output
    assert "protocol: official" in output
    small = said(capsys, "plan", "little.yaml", "--json", "--no-preflight", "--set", "runs[0].scenario=batch-size-1")
    rates = {r["config"]["settings"].get("learning_rate") for r in json.loads(small)["runs"]}
    assert 2.5e-4 / 16 in rates, "the published rate for batch size 1"


def test_a_run_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no run of the plan begins with 'zz'" in said(capsys, "plan", "little.yaml", "--run", "zz", code=2)


def test_json_holds_every_run(capsys: pytest.CaptureFixture[str]) -> None:
    store_sweep(done=1)
    plan = json.loads(said(capsys, "plan", "little.yaml", "--json", "--no-preflight"))
    assert plan["counts"] == {"done": 1, "new": 3}
    assert len(plan["runs"]) == 4
    assert plan["runs"][0]["stamps"]["weights_id"].startswith("recipe:")


def test_a_missing_spec_file_names_those_that_are_here(capsys: pytest.CaptureFixture[str]) -> None:
    output = said(capsys, "plan", "litle.yaml", code=2)
    assert output.startswith("error: no spec file 'litle.yaml'")
    assert "little.yaml" in output


def test_explain_a_done_run_without_its_spec(capsys: pytest.CaptureFixture[str]) -> None:
    run = store_sweep().runs[0]
    output = said(capsys, "explain", run.run_id[:10])
    assert f"{run.run_id}: done" in output
    assert "weights_id: recipe:" in output
    assert "last commit of this config" in output


def test_explain_a_new_run_names_the_nearest_done_one(capsys: pytest.CaptureFixture[str]) -> None:
    done = store_sweep().runs[0]
    new = make_plan(load_spec("little.yaml", ["seeds=[7]"])).runs[0]
    output = said(capsys, "explain", new.run_id, "little.yaml", "--set", "seeds=[7]")
    assert "never done; the done run nearest to it is" in output
    assert "seed: " in output
    assert "-> 7" in output
    shown = json.loads(said(capsys, "explain", done.run_id, "--json"))
    assert shown["identity"]["seed"] == 0


def test_explain_says_which_weights_changed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import numpy as np

    def weights(value: float) -> None:
        tensors = {
            "conv1.weight": np.full((16, 3, 3, 3), value, np.float32),
            "fc.weight": np.ones((10, 64), np.float32),
        }
        save_file(tensors, folder / "net.safetensors", metadata={"architecture": "cifar-gn"})

    weights(1.0)
    override = "runs[0].models=['file:net.safetensors@cifar-resnet26-gn']"
    plan = make_plan(load_spec("little.yaml", [override]))
    store = ParquetStore("results", "little")
    old = Catalog().weights_id(plan.runs[0].config.model, "digits-c").removeprefix("sha256:")
    for run in plan.runs:
        sr.run_once(store, run, samples=False)
    store.close()
    weights(2.0)
    new = Catalog().weights_id(plan.runs[0].config.model, "digits-c").removeprefix("sha256:")
    assert old != new
    output = said(capsys, "plan", "little.yaml", "--no-preflight", "--set", override)
    assert "4 stale" in output
    assert f"weights_sha {old[:12]}/" in output
    assert f" -> {new[:12]}/" in output
    output = said(capsys, "explain", plan.runs[0].run_id[:10], "little.yaml", "--set", override)
    assert f"weights_sha: {old} -> {new}" in output


def test_explain_an_unknown_run(capsys: pytest.CaptureFixture[str]) -> None:
    store_sweep()
    assert "no run begins with 'ffffffffffff'" in said(capsys, "explain", "ffffffffffff", code=2)


def test_changed_libraries_are_listed_one_by_one() -> None:
    plan = store_sweep(done=0)
    run = plan.runs[0]
    store = ParquetStore("results", "little")
    sr.run_once(store, run, samples=False, libraries=json.dumps({"torch": "1.0"}))
    explanation = explain(run, History.of(store))
    store.close()
    assert "torch 1.0 -> " in text(explanation)


def test_a_stored_spec_is_the_one_that_ran() -> None:
    store_sweep()
    assert sweeps_under("results") == ["little"]
    spec = stored_spec("results", "little")
    assert [r.run_id for r in make_plan(spec).runs] == [r.run_id for r in make_plan(load_spec("little.yaml")).runs]
    with pytest.raises(ConfigError, match="has no spec"):
        stored_spec("results", "other")
