"""Frost's photographs are missed before a sweep starts, not when its frost runs come up."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from test_grouping import config as any_config

from deyo.benchmarks import open_benchmark
from deyo.corruptions import photographs
from deyo.types import DataError
from orchestrator.preflight import data_checks
from orchestrator.spec import parse_spec
from orchestrator.types import RunConfig


def config(corruption: str) -> RunConfig:
    return dataclasses.replace(any_config(), benchmark="digits-c", corruption=corruption, severity=5)


@pytest.fixture
def no_photographs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DEYO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(photographs, "find_spec", lambda name: None)


@pytest.mark.usefixtures("no_photographs")
def test_a_sweep_with_frost_is_refused() -> None:
    spec = parse_spec("{name: s, runs: [{benchmark: digits-c, models: [small-resnet-bn], methods: [tent]}]}")
    (check,) = data_checks(spec, [config("fog"), config("frost")], fatal=True)
    assert check.ok is False
    assert "pip install --no-deps imagecorruptions-imaug" in check.detail
    (check,) = data_checks(spec, [config("fog"), config("snow")], fatal=True)
    assert check.ok


def test_frost_that_is_prepared_needs_no_photographs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    try:
        photographs.frost_folder()
    except DataError:
        pytest.skip("frost's photographs are not installed: pip install --no-deps imagecorruptions-imaug")
    made = open_benchmark("digits-c", cache=tmp_path).images("frost", 5)
    monkeypatch.setattr(photographs, "find_spec", lambda name: None)
    again = open_benchmark("digits-c", cache=tmp_path).images("frost", 5)
    assert again.fingerprint == made.fingerprint
    with pytest.raises(DataError, match="frost needs the photographs"):
        open_benchmark("digits-c", cache=tmp_path / "other").images("frost", 5)
