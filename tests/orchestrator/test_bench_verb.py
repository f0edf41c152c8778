"""``deyo-sweep bench``: which benchmarks there are, and what reaches them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from cli_surface import FROZEN

from deyo.types import ConfigError
from orchestrator.cli.bench import MEASURES, PACKAGE, split
from orchestrator.cli.main import run as command_line

NO_BENCHMARKS = {"record", "lanes"}


@pytest.mark.parametrize("name", list(MEASURES))
def test_every_name_is_a_module(name: str) -> None:
    assert find_spec(f"{PACKAGE}.{name}") is not None


def test_every_benchmark_has_a_name() -> None:
    folder = Path(find_spec(PACKAGE).submodule_search_locations[0])
    modules = {path.stem for path in folder.glob("*.py")} - NO_BENCHMARKS
    texts = {stem: (folder / f"{stem}.py").read_text() for stem in modules}
    commands = {stem for stem, text in texts.items() if "parser_for(" in text or "ArgumentParser(" in text}
    assert commands == set(MEASURES)


def test_words_up_to_the_first_option_are_names() -> None:
    assert split(["engine", "feeding", "--seconds", "1"]) == (["engine", "feeding"], ["--seconds", "1"])
    assert split(["all", "--device", "cpu"])[0] == list(MEASURES)
    for wrong in (["engin"], ["--seconds", "1"]):
        with pytest.raises(ConfigError, match="there are: engine"):
            split(wrong)


def test_without_a_name_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["bench"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(MEASURES)


def test_a_benchmark_gets_its_options_and_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import subprocess

    seen: list[list[str]] = []

    def run(command: list[str]) -> subprocess.CompletedProcess:
        seen.append(command[1:])
        return subprocess.CompletedProcess(command, 1 if "store" in command[2] else 0)

    monkeypatch.setattr(subprocess, "run", run)
    assert command_line(["bench", "scheduling", "--gpus", "8"]) == 0
    assert command_line(["bench", "engine", "--out", "x.parquet"]) == 0
    assert command_line(["bench", "store", "scheduling", "--folder", "there"]) == 1
    assert seen == [
        ["-m", f"{PACKAGE}.scheduling", "--gpus", "8", "--out", "results/benchmarks/scheduling.parquet"],
        ["-m", f"{PACKAGE}.engine", "--out", "x.parquet"],
        ["-m", f"{PACKAGE}.store", "--out", "there/store.parquet"],
        ["-m", f"{PACKAGE}.scheduling", "--out", "there/scheduling.parquet"],
    ]
    assert "failed: store" in capsys.readouterr().err
    assert "bench" in FROZEN.read_text()


@pytest.mark.parametrize("select", ["all", "none", "shares"])
@pytest.mark.parametrize("method", ["no-adapt", "tent", "eata", "sar", "deyo"])
def test_the_engine_s_cases_select_what_they_say(method: str, select: str) -> None:
    import torch

    from experiments.benchmarks.engine import build_ours

    built, pixels = build_ours("small-gn", method, 16, 1, "float32", select, torch.device("cpu"), False)
    built.step(pixels)
    passed = built.report.passed_both.float().mean()
    if method in ("eata", "sar", "deyo"):
        assert {"all": passed == 1, "none": passed == 0, "shares": 0 < passed < 1}[select]


def test_the_engine_s_ways_can_be_called_as_what_they_replace() -> None:
    from inspect import Parameter, signature

    from experiments.benchmarks.engine import CHANGES

    called = [(getattr(owner, name), put) for owner, name, put in CHANGES.values() if callable(put)]
    assert called
    for replaced, put in called:
        given = signature(replaced).parameters.values()
        positional = [p.name for p in given if p.kind is not Parameter.KEYWORD_ONLY]
        signature(put).bind(*positional, **{p.name: 0 for p in given if p.kind is Parameter.KEYWORD_ONLY})


def test_what_reporting_measures_selects_every_sample() -> None:
    import torch

    from experiments.benchmarks.reporting import build

    method = build(torch.device("cpu"), 8)
    method.step(torch.randint(0, 256, (1, 8, 3, 32, 32), dtype=torch.uint8))
    assert method.report.passed_both.all()


def test_lanes_give_each_gpu_one_command_at_a_time(tmp_path: Path) -> None:
    """Two GPUs: measurements have the first to themselves; what does not fit into the time is left."""
    import argparse
    from threading import Thread

    from experiments.benchmarks import lanes

    def task(name: str, seconds: int, *, measures: bool) -> lanes.Task:
        program = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
        return lanes.Task(name=name, seconds=seconds, words=("-c", program), measures=measures)

    todo = [task("a", 1, measures=True), task("long", 1000, measures=True), task("b", 1, measures=True)]
    todo += [task("c", 1, measures=False), task("d", 1, measures=False)]
    options = argparse.Namespace(seconds=60.0, out=str(tmp_path), data=None, patience=0.6)
    work = lanes.Lanes(todo, options, dict.fromkeys("01", os.sched_getaffinity(0)))
    shared = [lane for lane in lanes.lanes_for(["0", "1"]) if lane[0] == "1"]
    assert len(shared) == 2
    measured = Thread(target=work.work, args=("0", (True,)))
    others = [Thread(target=work.work, args=lane) for lane in shared]
    for thread in (measured, *others):
        thread.start()
    for thread in (measured, *others):
        thread.join()
    where = {path.stem: path.read_text().strip() for path in tmp_path.glob("*.log")}
    assert where == {"a": "0", "b": "0", "c": "1", "d": "1"}
    assert [left.name for left in work.todo] == ["long"]


def test_lanes_share_the_cores() -> None:
    from experiments.benchmarks.lanes import shares

    assert shares(range(8), ["0", "1"], 2) == {"0": range(4), "1": range(4, 8)}
    assert shares(range(8), ["2", "3"], 4) == {"2": range(4, 6), "3": range(6, 8)}
    assert shares(range(2), ["0", "1", "2"], 3)["0"]


def test_a_lane_that_outlasts_the_time_is_interrupted(tmp_path: Path) -> None:
    import argparse

    from experiments.benchmarks import lanes

    work = lanes.Lanes([], argparse.Namespace(seconds=1000.0, out=str(tmp_path), data=None, patience=0.6), {})
    # Whoever runs the tests in the background may have SIGINT ignored, which children inherit.
    heed = "import signal, time; signal.signal(signal.SIGINT, signal.default_int_handler)"
    words = [sys.executable, "-c", f"{heed}; print('ready', flush=True); time.sleep(600)"]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    work.end = 0.0
    assert work.wait(child) != 0
    assert "KeyboardInterrupt" in child.communicate()[1]


def test_the_lanes_commands_are_ones_that_exist() -> None:
    from experiments.benchmarks import lanes

    for task in lanes.tasks():
        if task.words[1].startswith("experiments."):
            assert find_spec(task.words[1]) is not None
        specs = [word for word in task.words if word.endswith(".yaml")]
        assert all((Path(__file__).parents[2] / spec).is_file() for spec in specs)
    assert len({task.name for task in lanes.tasks()}) == len(lanes.tasks())
