"""Specs against the real engine: the published settings, the ablations, and every spec in ``experiments/``."""

from __future__ import annotations

from pathlib import Path

import pytest

from deyo.types import ConfigError, DataError
from orchestrator.catalog import Catalog
from orchestrator.expand import expand
from orchestrator.identity import config_id
from orchestrator.plan import make_plan
from orchestrator.spec import load_spec, parse_spec
from orchestrator.types import RunConfig

EXPERIMENTS = sorted((Path(__file__).parents[2] / "experiments").glob("*.yaml"))
CATALOG = Catalog()

GRID = """\
name: t
runs:
  - benchmark: digits-c
    corruptions: [contrast]
    models: [small-resnet-bn]
    methods: [deyo]
"""


def runs_of(*overrides: str) -> list[RunConfig]:
    return expand(parse_spec(GRID, overrides), CATALOG)


@pytest.mark.parametrize(
    ("model", "scenario", "method", "rate"),
    [
        ("resnet50-gn", "mild", "deyo", 2.5e-4),
        ("resnet50-gn", "batch-size-1", "tent", 2.5e-4 / 32),
        ("resnet50-gn", "batch-size-1", "deyo", 2.5e-4 / 16),
        ("vit-base-ln", "mild", "sar", 1e-3),
        ("vit-base-ln", "batch-size-1", "eata", 1e-3 / 64),
        ("vit-base-ln", "batch-size-1", "sar", 1e-3 / 32),
    ],
)
def test_a_plan_resolves_the_published_learning_rates(model: str, scenario: str, method: str, rate: float) -> None:
    (run,) = runs_of(
        f"runs[0].models=[{model}+random-init]", f"runs[0].scenario={scenario}", f"runs[0].methods=[{method}]"
    )
    assert run.settings["learning_rate"] == pytest.approx(rate)


def test_an_explicit_learning_rate_is_kept_and_named() -> None:
    (run,) = runs_of("runs[0].methods=[{name: deyo, settings: {learning_rate: 1e-3}}]")
    assert run.settings["learning_rate"] == 0.001
    assert run.label == "deyo [learning_rate=0.001]"


def test_a_setting_out_of_bounds_is_told_with_its_line() -> None:
    text = GRID.replace(
        "[deyo]", "\n      - {name: deyo, settings: {transform: augmix, entropy_copies: 2,\n          copies: 0}}"
    )
    with pytest.raises(ConfigError) as caught:
        expand(parse_spec(text, path="s.yaml"), CATALOG)
    place = "s.yaml:8: runs[0].methods[0].settings.copies"
    assert str(caught.value) == f"{place}: deyo.copies is 0: write a number at least 1"
    with pytest.raises(ConfigError, match=r"--set .settings.deyo.momentum=1.: .*deyo.momentum is 1: .* below 1"):
        runs_of("settings.deyo.momentum=1")


def test_the_sixteen_ablations_are_one_line() -> None:
    names = ("filter_entropy", "filter_plpd", "weight_entropy", "weight_plpd")
    switches = ", ".join(f"{name}: [false, true]" for name in names)
    runs = runs_of("runs[0].methods=[{name: deyo, settings: {" + switches + "}}]")
    rows = [tuple(run.settings[name] for name in names) for run in runs]
    assert rows == [tuple(bool(row >> bit & 1) for bit in (3, 2, 1, 0)) for row in range(16)]
    assert len({run.label for run in runs}) == 16


def test_a_sensitivity_sweep_merges_the_point_that_its_axes_share() -> None:
    thresholds, patches = "settings: {plpd_threshold: [0.1, 0.2]}", "settings: {patches: [4, 5]}"
    runs = runs_of("runs[0].methods=[{name: deyo, " + thresholds + "}, {name: deyo, " + patches + "}]")
    assert len(runs) == 3


def test_continual_with_and_without_reset_are_different_runs() -> None:
    runs = runs_of("runs[0].scenario=continual", "runs[0].scenario_options={reset_each: [false, true]}")
    assert len({config_id(run) for run in runs}) == 2


def test_tuning_corruptions_are_left_out_unless_named() -> None:
    assert len(runs_of("runs[0].corruptions=null")) == 15
    assert len(runs_of("runs[0].corruptions=[spatter]")) == 1


def test_protocols_differ() -> None:
    official, paper = runs_of("protocol=[official, paper]")
    assert (official.protocol, paper.protocol) == ("official", "paper")
    assert official.settings != paper.settings


@pytest.mark.parametrize("name", ["deyo.methods:DeYO", "__import__('os')", "Tent", "tent ", "../tent", ""])
def test_methods_come_from_the_registry_alone(name: str) -> None:
    with pytest.raises(ConfigError):
        runs_of(f"runs[0].methods=[{name!r}]")


@pytest.mark.parametrize(
    "name", ["resnet50", "timm:resnet50", "file:/no/such.safetensors", "file:x.pth", "$(rm)", "timm:../x.y"]
)
def test_networks_that_do_not_exist_are_refused(name: str) -> None:
    with pytest.raises((ConfigError, DataError), match=r"runs\[0\].models"):
        runs_of(f"runs[0].models=[{name!r}]", "runs[0].benchmark=digits-c")


def test_ten_thousand_runs_of_the_real_engine() -> None:
    spec = parse_spec(
        GRID,
        [
            f"seeds={list(range(28))}",
            "runs[0].corruptions=null",
            "runs[0].severities=[1, 2, 3, 4, 5]",
            "runs[0].methods=[no-adapt, tent, deyo, sar, eata]",
        ],
    )
    plan = make_plan(spec, catalog=CATALOG)
    assert len(plan.runs) == 28 * 15 * 5 * 5
    assert len({run.run_id for run in plan.runs}) == len(plan.runs)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_spec_of_the_repository_is_a_plan(path: Path) -> None:
    spec = load_spec(path)
    assert spec.name
    for smoke in (False, True):
        try:
            assert expand(load_spec(path, smoke=smoke), CATALOG)
        except DataError as error:  # weights or images that this machine lacks
            pytest.skip(str(error))


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_spec_says_its_command_data_cost_and_figures(path: Path) -> None:
    header = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    text = "\n".join(header).lower()
    for word in ("deyo-sweep", "data", "cost", "expect"):
        assert word in text, f"{path.name}: the header does not say: {word}"


def test_names_of_sweeps_are_unique() -> None:
    names = [load_spec(path).name for path in EXPERIMENTS]
    assert len(set(names)) == len(names)
