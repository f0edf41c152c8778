"""The command line's surface is frozen, its shared flags read the same everywhere, and ``--help`` is quick."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from cli_surface import FROZEN, surface

from orchestrator.cli.main import VERBS, is_explained
from orchestrator.cli.main import run as command_line

SHARED = ("--set", "--smoke", "--results", "--address", "--allow-insecure", "--skip-bad")


def test_the_surface_is_the_frozen_one() -> None:
    frozen = json.loads(FROZEN.read_text(encoding="utf-8"))
    assert surface() == frozen, (
        "verbs or flags have changed; if that is meant: python tests/orchestrator/cli_surface.py"
    )


@pytest.mark.parametrize("flag", SHARED)
def test_a_flag_that_verbs_share_is_the_same_in_all_of_them(flag: str) -> None:
    forms = {
        json.dumps(parameters[flag]): verb
        for verb, found in surface().items()
        if flag in (parameters := found["parameters"])
    }
    assert len(forms) == 1, f"{flag} differs between {sorted(forms.values())}"


def test_every_verb_and_flag_has_help() -> None:
    for verb, found in surface().items():
        assert found["help"], verb
        for name, parameter in found["parameters"].items():
            assert parameter["help"], f"{verb} {name}"


def test_every_verb_of_the_list_is_there() -> None:
    assert list(surface()) == VERBS


def test_help_of_each_verb(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in surface():
        assert command_line([verb, "--help"]) == 0
        assert f"deyo-sweep {verb}" in capsys.readouterr().out


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["--help"]) == 0
    shown = capsys.readouterr().out
    for verb in surface():
        assert verb in shown


def test_an_unknown_verb_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["plam"]) == 2
    assert "plam" in capsys.readouterr().err


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from orchestrator.cli.main import run; run(['--help']); "
        "print([m for m in ('torch', 'ray', 'mlflow', 'timm', 'duckdb', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_only_our_own_errors_are_shortened() -> None:
    from deyo.types import ConfigError, DataError
    from orchestrator.probe import ClusterError

    assert all(is_explained(kind("x")) for kind in (ConfigError, DataError, ClusterError))
    assert not is_explained(ValueError("x"))


def test_a_bug_is_shown_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.cli import options

    def broken(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(options, "load", broken)
    with pytest.raises(ZeroDivisionError):
        command_line(["plan", "x.yaml"])
