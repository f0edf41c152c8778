"""The learning-rate and threshold tables of methods.md §1.0 and §2.2, for both protocols."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from parity_cases import network_for, rgb

from deyo.easy import build_method
from deyo.methods import (
    create_method,
    method_names,
    resolve_settings,
    settings_class,
    settings_from_json,
    settings_to_json,
)
from deyo.types import ConfigError, MethodContext, NetworkInfo

RESNET = NetworkInfo(name="resnet50-gn", family="resnet", norm="gn", num_classes=1000, image_size=224)
VIT = NetworkInfo(name="vit-base-ln", family="vit", norm="ln", num_classes=1000, image_size=224)


def resolve(method: str, **changes: Any) -> Any:
    overrides = changes.pop("overrides", {})
    situation = {"info": RESNET, "batch_size": 64, "num_classes": 1000, "benchmark": "imagenet-c", "scenario": "mild"}
    return resolve_settings(method, overrides, **{**situation, **changes})


@pytest.mark.parametrize("method", ["tent", "eata", "sar", "deyo"])
def test_learning_rates_at_batch_64(method: str) -> None:
    assert resolve(method).learning_rate == 2.5e-4
    assert resolve(method, info=VIT).learning_rate == 1e-3


@pytest.mark.parametrize(
    ("method", "info", "protocol", "expected"),
    [
        ("tent", RESNET, "official", 7.8125e-6),
        ("eata", RESNET, "official", 7.8125e-6),
        ("sar", RESNET, "official", 1.5625e-5),
        ("deyo", RESNET, "official", 1.5625e-5),
        ("tent", VIT, "official", 1.5625e-5),
        ("deyo", VIT, "official", 3.125e-5),
        ("sar-official", VIT, "official", 3.125e-5),
        ("tent", RESNET, "paper", 2.5e-4 / 16),
        ("tent", VIT, "paper", 1e-3 / 32),
        ("deyo", RESNET, "paper", 2.5e-4 / 16),
        ("deyo", VIT, "paper", 1e-3 / 32),
    ],
)
def test_learning_rates_at_batch_1(method: str, info: NetworkInfo, protocol: str, expected: float) -> None:
    settings = resolve(method, info=info, batch_size=1, scenario="batch-size-1", protocol=protocol)
    assert settings.learning_rate == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("benchmark", ["waterbirds", "colored-mnist"])
def test_biased_sets_multiply_the_rate_by_five(benchmark: str) -> None:
    case: dict[str, Any] = {"benchmark": benchmark, "scenario": "biased", "num_classes": 2}
    for method in ("tent", "eata", "sar", "deyo"):
        assert resolve(method, **case).learning_rate == pytest.approx(1.25e-3)
    for method in ("tent", "sar"):
        assert resolve(method, protocol="paper", **case).learning_rate == 2.5e-4
    expected = 1.25e-3 if benchmark == "waterbirds" else 2.5e-4
    assert resolve("deyo", protocol="paper", **case).learning_rate == pytest.approx(expected)


@pytest.mark.parametrize(
    ("benchmark", "scenario", "expected"),
    [
        ("imagenet-c", "mild", (0.5, 0.4, 0.3)),
        ("imagenet-c", "label-shift", (0.5, 0.4, 0.2)),
        ("imagenet-c", "batch-size-1", (0.5, 0.4, 0.2)),
        ("imagenet-r", "label-shift", (0.5, 0.4, 0.2)),
        ("waterbirds", "biased", (0.5, 0.4, 0.5)),
        ("colored-mnist", "biased", (1.0, 1.0, 0.5)),
    ],
)
def test_deyo_thresholds(benchmark: str, scenario: str, expected: tuple[float, ...]) -> None:
    s = resolve("deyo", benchmark=benchmark, scenario=scenario)
    assert (s.entropy_margin, s.entropy_reference, s.plpd_threshold) == expected


def test_protocols_differ_where_text_and_code_do() -> None:
    assert (resolve("sar").reset_constant, resolve("sar").second_forward) == (0.005, "selected")
    assert (resolve("sar", protocol="paper").reset_constant, resolve("sar", protocol="paper").second_forward) == (
        0.2,
        "batch",
    )
    official = resolve("sar-official")
    assert (official.reset_constant, official.second_forward, official.step_on_empty) == (0.2, "batch", True)
    assert {m: resolve(m).adapted for m in ("tent", "eata", "sar", "deyo")} == {
        "tent": "lower",
        "eata": "all",
        "sar": "lower",
        "deyo": "lower",
    }
    paper = resolve("deyo", protocol="paper")
    assert (paper.adapted, paper.loss_normalization, paper.plpd_statistics) == ("all", "batch", "batch")
    assert resolve("eta").fisher_strength == settings_class("eta")(learning_rate=0.1).fisher_strength == 0
    assert resolve("eata").fisher_strength == 2000


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"plpd_treshold": 0.2}, "did you mean 'plpd_threshold'"),
        ({"plpd_threshold": "high"}, "finite number"),
        ({"plpd_threshold": float("nan")}, "finite number"),
        ({"transform": "patchs"}, "'patch', 'pixel'"),
        ({"patches": 2.5}, "whole number"),
        ({"filter_plpd": 1}, "true or false"),
        ({"patches": 1}, "at least 2"),
    ],
)
def test_wrong_settings_are_refused_with_a_lesson(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve("deyo", overrides=overrides)


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'deyo'"):
        resolve("deyoo")
    with pytest.raises(ConfigError, match="official, paper"):
        resolve("deyo", protocol="text")


@pytest.mark.parametrize("method", method_names())
def test_settings_survive_json_and_every_field_is_documented(method: str) -> None:
    settings = resolve(method)
    assert settings_from_json(method, settings_to_json(settings)) == settings
    for field in settings_class(method).__dataclass_fields__.values():
        assert field.metadata.get("doc"), f"{method}.{field.name}"


@pytest.mark.parametrize("method", ["deyo", "sar", "sar-official", "eta", "eata"])
@pytest.mark.parametrize(("columns", "given", "classes"), [(None, None, 10), ([1, 4, 7], None, 3), ([1, 4, 7], 10, 10)])
def test_thresholds_are_fractions_of_ln_c(
    method: str, columns: list[int] | None, given: int | None, classes: int
) -> None:
    """C is the number of logits in use, unless the benchmark says otherwise (ImageNet-R: 1,000; methods.md §3.4)."""
    context = MethodContext(
        network=network_for("network_gn")[0],
        seeds=[0],
        batch_size=4,
        precision="float64",
        class_columns=None if columns is None else np.array(columns),
        entropy_classes=given,
    )
    made = create_method(method, context, [settings_class(method)(learning_rate=0.01, entropy_margin=0.4)])
    assert made.entropy_margin.item() == pytest.approx(0.4 * math.log(classes))


class Masked:
    """A benchmark whose thresholds count more classes than its logits."""

    name = "masked"
    class_columns = np.array([1, 4, 7])
    entropy_classes = 10


def test_a_method_built_by_name_takes_the_benchmark_s_c() -> None:
    method = build_method("deyo", network_for("network_gn")[0], benchmark=Masked(), precision="float64")
    assert method.entropy_margin.item() == pytest.approx(0.5 * math.log(10))


def test_eata_without_clean_images_is_refused_rather_than_run_without_its_anchor() -> None:
    method = build_method("eata", network_for("network_gn")[0], batch_size=8)
    with pytest.raises(ConfigError, match="fisher_strength is 2000, but there were no clean images"):
        method.step(images(8))
    assert build_method("eata", network_for("network_gn")[0], fisher_strength=0).step(images(8)).shape == (1, 8, 10)


def images(count: int) -> Any:
    return rgb(network_for("network_gn")[1][0][:count])


@pytest.mark.parametrize("method", method_names())
def test_every_setting_stands_in_the_glossary(method: str) -> None:
    glossary = (Path(__file__).parents[2] / "deyo" / "README.md").read_text().split("## Glossary")[1].split("\n## ")[0]
    for name in settings_class(method).__dataclass_fields__:
        assert f"`{name}`" in glossary, f"{method}.{name}"


def test_filters_are_strict() -> None:  # D6
    """An entropy equal to τ_Ent and a PLPD equal to τ_PLPD are not selected, under either protocol."""
    for protocol in ("official", "paper"):
        method = build_method("deyo", network_for("network_gn")[0], protocol=protocol, precision="float64")
        method.step(images(8))
        entropy = method.report.entropy
        method.reset()
        method.entropy_margin = entropy.max().view(1, 1)
        method.plpd_threshold = torch.zeros_like(method.plpd_threshold)
        method.draw_indices = lambda kind, patches, batch, size: torch.arange(patches**2).expand(1, batch, -1)
        method.step(images(8))
        assert torch.equal(method.report.passed_entropy, entropy < entropy.max())
        assert (method.report.plpd[method.report.passed_entropy] == 0).all()  # x' is x
        assert not method.report.passed_both.any()
