"""A user's own folder of images: which images it holds is part of what a run is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from deyo.benchmarks import open_benchmark
from deyo.types import DataError
from orchestrator.catalog import UNREADABLE
from orchestrator.plan import History, judge, make_plan
from orchestrator.spec import parse_spec
from orchestrator.types import CommitInfo, Plan, RunStatus

SPEC = """
name: own
seeds: [0]
runs:
  - benchmark: image-folder
    benchmark_options: {image_size: 32, resize: 32}
    scenario: mild
    corruptions: [contrast]
    severities: [5]
    models: [resnet18-bn]
    methods: [no-adapt]
"""


def folder(where: Path, colour: int) -> Path:
    for label in ("cat", "dog"):
        (where / label).mkdir(parents=True)
        for number in range(3):
            pixels = np.full((40, 40, 3), colour + number, dtype=np.uint8)
            Image.fromarray(pixels).save(where / label / f"{number}.png")
    return where


def planned(root: Path) -> Any:
    (run,) = make_plan(parse_spec(SPEC, [f"data={{image-folder: {root}}}"])).runs
    return run


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return folder(tmp_path / "images", 10)


def test_the_same_images_elsewhere_are_the_same_runs_and_others_are_not(images: Path, tmp_path: Path) -> None:
    assert planned(images).run_id == planned(folder(tmp_path / "copy", 10)).run_id
    assert planned(images).run_id != planned(folder(tmp_path / "others", 50)).run_id
    missing = planned(tmp_path / "mistyped")
    assert missing.stamps["data_id"] == UNREADABLE
    assert missing.run_id != planned(images).run_id


def test_an_image_more_makes_what_was_done_stale(images: Path) -> None:
    before = planned(images)
    Image.new("RGB", (40, 40)).save(images / "dog" / "9.png")
    after = planned(images)
    done = CommitInfo(run_id=before.run_id, attempt=1, finished_at="2026-01-01", stamps=before.stamps)
    history = History(committed={before.run_id: done}, by_config={before.stamps["config_id"]: done})
    assert judge(before.run_id, before.stamps, history)[0] is RunStatus.DONE
    status, reason = judge(after.run_id, after.stamps, history)
    assert status is RunStatus.STALE
    assert reason.startswith(f"data_id {before.stamps['data_id'][:12]}")
    unlooked = {name: value for name, value in before.stamps.items() if name != "data_id"}
    older = CommitInfo(run_id="0" * 16, attempt=1, finished_at="2026-01-01", stamps=unlooked)
    status, reason = judge(before.run_id, before.stamps, History(by_config={before.stamps["config_id"]: older}))
    assert status is RunStatus.STALE
    assert reason.startswith("data_id unknown -> ")


def test_benchmarks_whose_name_says_which_images_they_are_have_the_identity_that_they_had() -> None:
    plan: Plan = make_plan(
        parse_spec(SPEC.replace("image-folder", "digits-c").replace("{image_size: 32, resize: 32}", "{}"))
    )
    assert all("data_id" not in run.stamps for run in plan.runs)


def test_class_folders_number_the_classes_unless_it_is_said_otherwise(images: Path, tmp_path: Path) -> None:
    def shown(**options: object) -> int | None:
        return open_benchmark("image-folder", root=images, cache=tmp_path, **options).shown_classes

    assert shown() == 2
    assert shown(num_classes=1000) is None
    (images / "labels.csv").write_text("file,class_index\ncat/0.png,7\n")
    assert shown() is None


def test_no_prepared_array_stands_for_a_folder_that_is_not_there(images: Path, tmp_path: Path) -> None:
    options = {"image_size": 32, "resize": 32, "cache": tmp_path / "cache"}
    assert len(open_benchmark("image-folder", root=images, **options).images("contrast", 5)) == 6
    with pytest.raises(DataError, match="mistyped is not a directory"):
        open_benchmark("image-folder", root=tmp_path / "mistyped", **options).images("contrast", 5)
