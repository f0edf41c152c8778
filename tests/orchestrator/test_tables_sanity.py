"""Tables say where a network without adaptation is far from what is published of it."""

from __future__ import annotations

import pytest
from tables_fakes import grid, sweep

from deyo.corruptions import CORRUPTIONS
from orchestrator.tables.provenance import caption

ANCHORED = {"benchmark": ["imagenet-c"], "model": ["vit-base-ln"], "severity": [5]}


def notes(accuracy: float, corruptions: list[str], **axes: list[object]) -> list[str]:
    axes = {**ANCHORED, "method": ["no-adapt"], "corruption": corruptions, **axes}
    return [line for line in caption(sweep(grid(**axes), lambda c: accuracy).entries) if line.startswith("CHECK")]


def test_the_published_number_goes_without_a_word() -> None:
    assert notes(0.44, ["contrast"]) == []
    assert notes(0.299, [*CORRUPTIONS])[1:] == []  # the average is right; contrast is not like the others


def test_wrong_normalisation_is_seen_by_contrast() -> None:
    (line,) = notes(0.319, ["contrast", "fog"], seed=[0, 1])
    assert line.startswith("CHECK vit-base-ln: without adaptation 31.9 % on contrast at severity 5, published 44.0")


def test_the_average_of_all_corruptions_is_compared_at_both_severities() -> None:
    lines = notes(0.511, [*CORRUPTIONS], severity=[3, 5])
    assert [line.split(" on ")[1].split(" (")[0] for line in lines] == [
        "the average of 15 corruptions at severity 3, published 53.8",
        "contrast at severity 5, published 44.0",
        "the average of 15 corruptions at severity 5, published 29.9",
    ]


@pytest.mark.parametrize(
    "other",
    [
        {"method": ["tent"]},
        {"benchmark": ["digits-c"]},
        {"scenario": ["label-shift"]},
        {"max_images": [500]},
        {"severity": [4]},
        {"model": ["resnet50-bn+plpd"]},
    ],
)
def test_what_has_no_anchor_is_not_judged(other: dict[str, list[object]]) -> None:
    assert notes(0.05, ["contrast", "fog"], **other) == []


def test_the_papers_protocol_by_its_flag() -> None:
    assert notes(0.44, ["contrast"], model=["vit-base-ln+paper"]) == []
    assert len(notes(0.10, ["contrast"], model=["vit-base-ln+paper"])) == 1
