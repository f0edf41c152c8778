"""Pages of results: what they say of who wins, and that hand-written notes survive."""

from __future__ import annotations

import re

from tables_fakes import config, grid, planned, row, runs_table, sweep

from experiments import index, pages
from orchestrator.tables.data import from_runs

ACCURACY = {"no-adapt": 0.2, "tent": 0.5, "deyo": 0.6}


def example():
    configs = grid(method=["no-adapt", "tent", "deyo"], corruption=["gaussian_noise", "contrast"], seed=[0, 1])

    def accuracy(c):
        bonus = 0.25 if (c.method, c.corruption) == ("tent", "contrast") else 0.0
        return ACCURACY[c.method] + bonus + 0.01 * c.seed

    return sweep(configs, accuracy)


def test_it_says_where_deyo_does_not_win():
    assert pages.contests(example()) == [
        "- digits-c, mild, small-resnet-bn, accuracy: best in 1 of 2; better were Tent on contrast (+15.0)."
    ]


def test_variants_do_not_stand_for_the_method():
    configs = [config(method="deyo", label="deyo [patches=2]"), config(method="tent")]
    assert pages.contests(sweep(configs, lambda c: 0.5)) == []


def test_a_page_has_command_machine_tables_and_keeps_notes():
    path = index.FOLDER / "imagenet_sample_c.yaml"
    made = {"machine": "a card", "commands": ["deyo-sweep run experiments/imagenet_sample_c.yaml"]}
    text = pages.page(path, example(), **made, notes="Contrast was hard.")
    assert re.search("^Machine: a card", text, re.MULTILINE)
    assert "    deyo-sweep run experiments/imagenet_sample_c.yaml" in text
    assert "| Tent " in text
    assert text.endswith("Contrast was hard.\n")
    again = pages.page(path, example(), **made, notes=text.partition(pages.NOTES)[2])
    assert again == text


def test_the_authors_numbers_stand_beside_ours():
    configs = [
        config(method=m, benchmark="colored-mnist", scenario="biased", corruption=None) for m in ("deyo", "tent")
    ]
    data = sweep(configs, lambda c: 0.6, extra=lambda c: {"average_accuracy": 0.6, "worst_group_accuracy": 0.2})
    text = pages.page(index.FOLDER / "colored_mnist.yaml", data, machine="m", commands=["c"])
    assert "| DeYO | 60.00 | 61.63±0.53 | 20.00 | 22.33±1.94 |" in text
    assert "| SAR | – | 58.83±0.88 | – | 17.11±2.42 |" in text


def test_a_page_of_an_unfinished_sweep_says_so():
    runs = planned([config(method="deyo", seed=0), config(method="deyo", seed=1)])
    data = from_runs(runs_table([row(runs[0], accuracy=0.5)]), sweep="fake", planned=runs)
    text = pages.page(index.FOLDER / "cifar10_wild.yaml", data, machine="m", commands=["c"])
    assert "Runs: 1 of 2 done" in text
