"""What attempts left behind: how each ended and what it printed, killed ones too."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.store import layout
from orchestrator.store.tree import Tree
from orchestrator.types import Failure, FailureClass


@dataclass(frozen=True, kw_only=True)
class AttemptInfo:
    """One attempt at a run. ``state`` is "committed", "superseded", "failed" or "open" (running, or cut off)."""

    run_id: str
    attempt: int
    state: str
    started_at: str = ""
    failure: Failure | None = None
    log_path: str = ""


def encode_failure(run_id: str, attempt: int, failure: Failure) -> bytes:
    return json.dumps({"run_id": run_id, "attempt": attempt, **asdict(failure)}).encode()


def decode_failure(data: bytes) -> Failure | None:
    """The failure, or None if the file is cut short."""
    try:
        content = json.loads(data)
        kind = FailureClass(content["kind"])
        rest = {name: str(content.get(name, "")) for name in ("message", "signature", "traceback", "log_path")}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return Failure(kind=kind, **rest)


def attempt_numbers(tree: Tree, run_id: str) -> list[int]:
    """Attempts of which any file exists, ascending."""
    parsed = (layout.parse_attempt_file(name) for name in tree.children(layout.attempt_folder(run_id)))
    return sorted({entry[0] for entry in parsed if entry})


def attempts(tree: Tree, run_id: str, committed: int | None) -> list[AttemptInfo]:
    """All attempts at a run, oldest first; ``committed`` is the one that counts, if any."""
    names = tree.children(layout.attempt_folder(run_id))
    kinds: dict[int, set[str]] = {}
    for entry in map(layout.parse_attempt_file, names):
        if entry:
            kinds.setdefault(entry[0], set()).add(entry[1])
    return [_info(tree, run_id, number, kinds[number], number == committed) for number in sorted(kinds)]


def _info(tree: Tree, run_id: str, number: int, kinds: set[str], committed: bool) -> AttemptInfo:
    failure, state = None, "open"
    if committed:
        state = "committed"
    elif "superseded.json" in kinds:
        state = "superseded"
    elif "failed.json" in kinds:
        state = "failed"
        failure = decode_failure(tree.read(layout.attempt_file(run_id, number, "failed.json")))
    log = layout.attempt_file(run_id, number, "log") if "log" in kinds else ""
    return AttemptInfo(
        run_id=run_id,
        attempt=number,
        state=state,
        started_at=_started(tree, run_id, number) if "begin.json" in kinds else "",
        failure=failure,
        log_path=log,
    )


def _started(tree: Tree, run_id: str, number: int) -> str:
    try:
        content: Any = json.loads(tree.read(layout.attempt_file(run_id, number, "begin.json")))
        return str(content["started_at"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return ""


def read_log(tree: Tree, run_id: str, attempt: int) -> str:
    """What an attempt printed; empty if nothing."""
    try:
        data = tree.read_stream(layout.attempt_file(run_id, attempt, "log"))
    except FileNotFoundError:
        return ""
    return data.to_pybytes().decode(errors="replace")
