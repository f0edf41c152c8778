"""`deyo-sweep pretrain` and its loop: what is made, retried and given up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.attempts import pretraining_words
from orchestrator.cli.main import run
from orchestrator.driver import Options
from orchestrator.executors.log_text import with_last_words
from orchestrator.pretraining import Pretraining, pretraining_tasks
from orchestrator.types import (
    Artifact,
    Event,
    Failure,
    FailureClass,
    GroupTask,
    Notice,
    PlannedRun,
    PretrainTask,
    RunConfig,
    RunStatus,
    Slot,
    SlotJoined,
    SlotLost,
    Task,
    TaskEnded,
    TaskMessage,
)

CONFIG = RunConfig(
    benchmark="digits-c",
    scenario="mild",
    model="small-resnet-bn",
    method="tent",
    label="tent",
    settings={},
    seed=0,
    batch_size=64,
    pretrain_seed=0,
)


def task(key: str) -> PretrainTask:
    return PretrainTask(task_id=f"task-{key}", key=key, model="m", benchmark="b", seed=0)


class ScriptedExecutor:
    """Slots that answer each start by what ``script`` holds for its key: None is success."""

    def __init__(self, slots: int, script: dict[str, list[Failure | str | None]], folder: Path) -> None:
        self.events: list[Event] = [SlotJoined(slot=self._slot(k)) for k in range(slots)]
        self.script, self.folder = script, folder
        self.starts: list[tuple[str, str]] = []
        self.clock = 0.0
        self.trouble = ""
        self.excuses: list[str] = []

    @staticmethod
    def _slot(number: int) -> Slot:
        return Slot(slot_id=f"slot-{number}", node=f"node-{number}", device="cpu")

    def start(self, started: Task, slot: Slot) -> None:
        assert isinstance(started, PretrainTask)
        self.starts.append((started.key, slot.slot_id))
        answer = self.script[started.key].pop(0)
        if answer == "slot lost":
            self.events.append(
                SlotLost(slot_id=slot.slot_id, failure=Failure(kind=FailureClass.NODE_LOST, message="power off"))
            )
            return
        if answer is None:
            path = self.folder / f"{started.key}.safetensors"
            path.write_bytes(started.key.encode())
            from orchestrator.artifacts import read_artifact

            self.events.append(TaskMessage(task_id=started.task_id, message=read_artifact(started.key, path)))
        assert answer is None or isinstance(answer, Failure)
        self.events.append(TaskEnded(task_id=started.task_id, slot_id=slot.slot_id, failure=answer))

    def poll(self, timeout: float) -> Sequence[Event]:
        self.clock += timeout
        events, self.events = self.events, []
        return events

    def cancel(self, task_id: str) -> None: ...

    def want(self, tasks: int) -> None: ...

    def excuse(self) -> str:
        return self.excuses.pop() if self.excuses else ""

    def now(self) -> float:
        return self.clock

    def close(self) -> None: ...


def failure(kind: FailureClass) -> Failure:
    return Failure(kind=kind, message="why")


def test_tasks_are_the_distinct_networks_and_seeds() -> None:
    configs = [
        CONFIG,
        replace(CONFIG, seed=1),
        replace(CONFIG, pretrain_seed=1),
        replace(CONFIG, model="small-resnet-gn", method="deyo"),
        replace(CONFIG, benchmark_options={"constants": "cifar"}),
        replace(CONFIG, model="resnet50-bn", pretrain_seed=None),
    ]
    tasks = pretraining_tasks(configs, Options(locations={"digits-c": "/data"}))
    assert [(t.model, t.seed, dict(t.benchmark_options)) for t in tasks] == [
        ("small-resnet-bn", 0, {}),
        ("small-resnet-bn", 1, {}),
        ("small-resnet-gn", 0, {}),
        ("small-resnet-bn", 0, {"constants": "cifar"}),
    ]
    assert len({t.task_id for t in tasks}) == len({t.key for t in tasks}) == 4
    assert tasks[0].locations == {"digits-c": "/data"}


def test_all_slots_work_and_lost_ones_cost_one_more_attempt(tmp_path: Path) -> None:
    script: dict[str, list[Failure | str | None]] = {"a": ["slot lost", None], "b": [None], "c": [None]}
    executor = ScriptedExecutor(2, script, tmp_path)
    work = Pretraining(tasks=[task(k) for k in "abc"], executor=executor, cache=tmp_path)
    work.run()
    assert sorted(work.made) == ["a", "b", "c"]
    assert work.failed == {}
    assert executor.starts[:2] == [("a", "slot-0"), ("b", "slot-1")]
    assert all(slot == "slot-1" for _, slot in executor.starts[2:])
    assert {Path(a.path).read_bytes() for a in work.made.values()} == {b"a", b"b", b"c"}


def test_failures_follow_the_policies_of_runs(tmp_path: Path) -> None:
    script: dict[str, list[Failure | str | None]] = {
        "config": [failure(FailureClass.CONFIG)],
        "data": [failure(FailureClass.DATA)],
        "lost": [*[failure(FailureClass.WORKER_LOST)] * 5, None],
    }
    lines: list[str] = []
    executor = ScriptedExecutor(1, script, tmp_path)
    work = Pretraining(tasks=[task(k) for k in script], executor=executor, cache=tmp_path, report=lines.append)
    work.run()
    assert sorted(work.failed) == ["config", "data"]
    assert list(work.made) == ["lost"]
    assert not any(script.values())
    assert "failed config: config: why" in lines
    assert [line for line in lines if line.startswith("failed data")] == ["failed data: data: why"]


def test_without_a_worker_it_gives_up(tmp_path: Path) -> None:
    executor = ScriptedExecutor(0, {}, tmp_path)
    work = Pretraining(tasks=[task("a")], executor=executor, stuck_seconds=5)
    work.run()
    assert "no worker became free" in work.failed["a"].message


def test_it_waits_for_hosts_that_are_on_their_way(tmp_path: Path) -> None:
    lines: list[str] = []
    executor = ScriptedExecutor(0, {}, tmp_path)
    executor.excuses, executor.trouble = ["the autoscaler was asked"] * 100, "none came"
    work = Pretraining(tasks=[task("a")], executor=executor, stuck_seconds=5, report=lines.append)
    work.run()
    assert executor.clock == pytest.approx(100 * 0.5 + 5, abs=1)
    assert lines.count("waiting: the autoscaler was asked") == 1
    assert work.failed["a"].message.endswith("none came")


def test_a_dead_workers_last_words_are_in_the_log_of_each_run_or_with_the_pretraining() -> None:
    lost = SlotLost(slot_id="s", failure=failure(FailureClass.WORKER_LOST))
    (told,) = with_last_words(task("a"), "Segmentation fault\n", [lost])
    assert isinstance(told, SlotLost)
    assert pretraining_words(told.failure) == "why\n--- the worker died; the last that it printed:\nSegmentation fault"
    run = PlannedRun(run_id="1", config=CONFIG, status=RunStatus.NEW)
    group = GroupTask(task_id="g", runs=(run, replace(run, run_id="2")), attempts={"1": 1, "2": 1})
    *logs, last = with_last_words(group, "Segmentation fault\n", [lost])
    assert [e.message.run_id for e in logs] == ["1", "2"]  # type: ignore[union-attr]
    assert last == lost
    assert with_last_words(task("a"), "", [lost]) == [lost]


def test_an_artifact_of_a_task_given_up_is_ignored(tmp_path: Path) -> None:
    executor = ScriptedExecutor(1, {"a": [None]}, tmp_path)
    stray = Artifact(key="b", path=str(tmp_path / "b"), sha256="0")
    executor.events.append(TaskMessage(task_id="task-b", message=stray))
    work = Pretraining(tasks=[task("a")], executor=executor, cache=tmp_path)
    work.run()
    assert list(work.made) == ["a"]


def test_what_workers_have_to_say_is_reported_once(tmp_path: Path) -> None:
    lines: list[str] = []
    executor = ScriptedExecutor(1, {"a": [None]}, tmp_path)
    executor.events += [TaskMessage(task_id="task-a", message=Notice(text="the disk is small"))] * 2
    Pretraining(tasks=[task("a")], executor=executor, cache=tmp_path, report=lines.append).run()
    assert lines.count("the disk is small") == 1


SPEC = """
name: small
seeds: [0, 1]
pretrain_seeds: [3, 4]
runs:
  - benchmark: digits-c
    scenario: mild
    corruptions: [contrast]
    severities: [5]
    models: [MODEL]
    methods: [no-adapt, tent]
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEYO_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "small.yaml"
    path.write_text(SPEC.replace("MODEL", "small-resnet-gn+steps=2"))
    return path


def test_the_verb_makes_each_network_once(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pretrain", str(spec), "--in-process", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert [(m["model"], m["seed"]) for m in made] == [("small-resnet-gn+steps=2", 3), ("small-resnet-gn+steps=2", 4)]
    assert len({m["sha256"] for m in made}) == 2
    before = [Path(m["path"]).stat().st_mtime_ns for m in made]
    assert run(["pretrain", str(spec), "--in-process"]) == 0
    assert "2 of 2 networks pretrained" in capsys.readouterr().out
    assert [Path(m["path"]).stat().st_mtime_ns for m in made] == before


def test_the_verb_says_when_there_is_nothing_to_do(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pretrain", str(spec), "--in-process", "--set", "runs[0].models=[cifar]"]) == 2
    assert "cifar" in capsys.readouterr().err
    text = spec.read_text().replace("digits-c", "imagenet-c").replace("small-resnet-gn+steps=2", "resnet50-gn")
    spec.write_text(text)
    assert run(["pretrain", str(spec), "--in-process"]) == 0
    assert "nothing to pretrain" in capsys.readouterr().out
