"""The engine's README does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "deyo" / "README.md"


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("DEYO_CACHE", str(tmp_path))
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    exec(compile(code, str(README), "exec"), {})
    accuracy = float(capsys.readouterr().out.split()[-1])
    assert 0.6 < accuracy < 0.99  # about 0.15 without adaptation


def test_every_setting_in_the_glossary_exists() -> None:
    from deyo.methods import method_names, settings_class

    table = README.read_text().split("## Glossary")[1].split("##")[0]
    terms = set(re.findall(r"`([a-z_]+)`", "".join(line.split("|")[1] for line in table.splitlines() if "|" in line)))
    fields = {name for method in method_names() for name in settings_class(method).__dataclass_fields__}
    reported = {"entropy", "plpd", "passed_entropy", "passed_both", "forwards", "backwards", "skipped"}
    assert terms <= fields | reported, terms - fields - reported
