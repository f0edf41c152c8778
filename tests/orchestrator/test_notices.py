"""What a worker has to say to the person who watches: told once, whoever says it, not only in the logs of runs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from engine_runs import write_spec
from exec_fakes import ScriptedExecutor, finish_all, make_driver, planned, slot

from deyo import cache
from deyo.cache import PreparedWarning
from orchestrator.cli import main
from orchestrator.executors.notices import heard
from orchestrator.progress import RichProgress, Tally
from orchestrator.told import Told
from orchestrator.types import GroupTask, Notice, Slot


def test_a_disk_without_room_for_an_array_is_told_to_who_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DEYO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "free_bytes", lambda path: 1000)
    spec, results = write_spec(tmp_path, methods="[no-adapt, tent]", seeds=[0, 1]), tmp_path / "results"
    with pytest.warns(PreparedWarning):
        assert main.run(["run", str(spec), "--in-process", "--results", str(results)]) == 0
    said = capfd.readouterr().out.splitlines()
    (told,) = [line for line in said if "DEYO_CACHE=" in line]
    assert told.startswith("digits-c/train: ")  # read by the pretraining, which has no log of its own
    assert "the source is read at each run instead" in told
    (last,) = [line for line in said if "had no room" in line]
    assert last.startswith("3 prepared arrays")
    assert "digits-c/generated/contrast/5" in last
    assert said.index(told) < said.index(last)


def test_of_one_array_without_room_nothing_is_said_at_the_end() -> None:
    said: list[str] = []
    told = Told(said.append)
    for text in ("a: no room", "a: no room", "no room on another host"):
        told.hear(Notice(text=text, array="a"))
    told.hear(Notice(text="something else"))
    told.close()
    assert said == ["a: no room", "something else"]


def test_what_several_workers_say_is_shown_once() -> None:
    def answer(task: GroupTask, at: Slot, number: int) -> Sequence[Any]:
        return [Notice(text="the disk is small"), Notice(text=f"worker {at.slot_id}"), *finish_all(task, at, number)]

    driver = make_driver([planned(n) for n in range(6)], ScriptedExecutor(answer, slots=[slot("a"), slot("b")]))
    assert driver.run().committed == 6
    assert sorted(driver.progress.notes) == ["the disk is small", "worker a", "worker b"]


def test_a_notice_stays_above_the_bar(capsys: pytest.CaptureFixture[str]) -> None:
    progress, tally = RichProgress(), Tally(sweep="s", total=2)
    progress.update(tally)
    progress.note("the disk is [small]")
    progress.close(tally)
    said = capsys.readouterr().out
    assert said.index("the disk is [small]") < said.rindex("0/2")


def test_a_warning_is_heard_in_each_sweep_of_a_process() -> None:
    first, second = [], []
    with warnings.catch_warnings(record=True) as shown_too:
        warnings.simplefilter("default")
        shown = warnings.showwarning
        for texts in (first, second):
            with heard(texts):
                warnings.warn("no room", PreparedWarning, stacklevel=1)
                warnings.warn("something else", stacklevel=1)
        assert warnings.showwarning is shown
    assert first == second == [Notice(text="no room")]
    assert [str(warning.message) for warning in shown_too] == ["no room", "something else", "no room"]
