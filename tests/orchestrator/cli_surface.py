"""The command line's surface as plain data, and the file that freezes it.

python tests/orchestrator/cli_surface.py        # write the file anew, after a change that is meant
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from typer.models import ArgumentInfo, OptionInfo

FROZEN = Path(__file__).parent / "fixtures" / "cli_surface.json"


def surface() -> dict[str, Any]:
    """Verb -> its help, and its arguments and flags with type, metavar, default and help."""
    from orchestrator.cli.main import make_app

    return {
        command.name: {
            "help": (command.help or inspect.getdoc(command.callback) or "").strip(),
            "parameters": _parameters(command.callback),
        }
        for command in make_app().registered_commands
    }


def _parameters(verb: Callable[..., Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(verb, include_extras=True)
    defaults = inspect.signature(verb).parameters
    found = {}
    for name, hint in hints.items():
        if name == "return" or hint is typer.Context:  # not typed by anybody
            continue
        kind, info = _annotated(hint)
        default = defaults[name].default
        found[_spelling(name, kind, info)] = {
            "type": getattr(kind, "__name__", str(kind)) if isinstance(kind, type) else str(kind),
            "metavar": getattr(info, "metavar", None),
            "default": "required" if default is inspect.Parameter.empty else default,
            "help": getattr(info, "help", None),
        }
    return json.loads(json.dumps(found, default=str))


def _annotated(hint: Any) -> tuple[Any, ArgumentInfo | OptionInfo | None]:
    if typing.get_origin(hint) is not typing.Annotated:
        return hint, None
    kind, *metadata = typing.get_args(hint)
    return kind, next((m for m in metadata if isinstance(m, ArgumentInfo | OptionInfo)), None)


def _spelling(name: str, kind: Any, info: ArgumentInfo | OptionInfo | None) -> str:
    """As it is typed: ``SPEC`` for an argument, ``--set`` or ``--preflight/--no-preflight`` for a flag."""
    if isinstance(info, ArgumentInfo):
        return info.metavar or name.upper()
    # inside Annotated[] Option("--set", ...) arrives as the default, and only what follows as declarations
    written = [w for w in (getattr(info, "default", None), *(getattr(info, "param_decls", None) or ())) if w]
    if flags := [w for w in written if isinstance(w, str) and w.startswith("-")]:
        return "/".join(flags)
    flag = name.replace("_", "-")
    return f"--{flag}/--no-{flag}" if kind is bool else f"--{flag}"


def write() -> None:
    """Freeze the surface as it is."""
    FROZEN.write_text(json.dumps(surface(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
