"""Where everything lies under ``<results root>/<sweep>/``, all paths relative to it.

::

    spec.yaml  spec.json            the spec as written, and resolved
    plan.parquet                    the plan: labels and expected seeds
    commits/ab/<run_id>.json        one create-only marker a committed run: it holds the run's ``runs`` row
    attempts/ab/<run_id>/0001.*     begin.json, batches.arrows, samples.arrows, log, failed.json, superseded.json
    failures/ab/<run_id>.json       the last failure of a run
    checkpoints/ab/<run_id>/        0001-0000000400.checkpoint
    running.json                    attempts in flight (or cut off), with their row files
    tables/manifest.json            the Parquet files that readers go by
    tables/runs/part-00000.parquet  committed rows, compacted; also batches/, samples/, aggregates/
    tmp/                            files being written; they get their final name when they are whole
    writer.lock                     held while compacting
    driver.json  driver.lock        who runs the sweep (``orchestrator.session``)
    finished.json                   what a sweep depended on whose runs are all done (``orchestrator.finished``)
    widths.json                     how wide the sweep's groups are (``orchestrator.widths``)
    pretrained/                     checkpoints that the sweep's runs start from (``orchestrator.shelf``)

``tables/<grain>`` holds whole Parquet files only, so any Parquet reader may be pointed at the folder.
"""

from __future__ import annotations

import re

from orchestrator.store.errors import StoreError

SPEC_TEXT = "spec.yaml"
SPEC_JSON = "spec.json"
PLAN = "plan.parquet"
RUNNING = "running.json"
MANIFEST = "tables/manifest.json"
AGGREGATES = "tables/aggregates/aggregates.parquet"
LOCK = "writer.lock"
WIDTHS = "widths.json"
DRIVER_FILES = frozenset({"driver.json", "driver.lock", "finished.json", WIDTHS})
PRETRAINED = "pretrained"
TEMPORARY = "tmp"

_RUN_ID = re.compile(r"[0-9a-f]{16}")
_SWEEP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ATTEMPT_FILE = re.compile(r"(\d{4,})\.([a-z]+(?:\.[a-z]+)?)(?:\.\d{12})?")
_CHECKPOINT = re.compile(r"(\d{4,})-(\d{10})\.checkpoint")


def check_sweep(name: str) -> str:
    """``name``, if it is safe as a folder's name.

    Raises:
        StoreError: it is not.
    """
    if not _SWEEP.fullmatch(name):
        raise StoreError(
            f"sweep name {name!r} cannot name a folder: use letters, digits, '.', '_' and '-', "
            "beginning with a letter or digit, at most 128 characters"
        )
    return name


def check_run_id(run_id: str) -> str:
    """``run_id``, if it is 16 hex digits (it becomes part of paths).

    Raises:
        StoreError: it is not.
    """
    if not is_run_id(run_id):
        raise StoreError(f"run id {run_id!r} is not 16 lower-case hex digits")
    return run_id


def is_run_id(text: str) -> bool:
    return _RUN_ID.fullmatch(text) is not None


def commit(run_id: str) -> str:
    return f"commits/{run_id[:2]}/{check_run_id(run_id)}.json"


def failure(run_id: str) -> str:
    return f"failures/{run_id[:2]}/{check_run_id(run_id)}.json"


def attempt_folder(run_id: str) -> str:
    return f"attempts/{run_id[:2]}/{check_run_id(run_id)}"


def attempt_file(run_id: str, attempt: int, kind: str) -> str:
    """``kind`` is "begin.json", "batches.arrows", "samples.arrows", "log", "failed.json", "superseded.json"."""
    return f"{attempt_folder(run_id)}/{attempt:04d}.{kind}"


def checkpoint_folder(run_id: str) -> str:
    return f"checkpoints/{run_id[:2]}/{check_run_id(run_id)}"


def checkpoint(run_id: str, attempt: int, step: int) -> str:
    return f"{checkpoint_folder(run_id)}/{attempt:04d}-{step:010d}.checkpoint"


def part(grain: str, number: int) -> str:
    return f"tables/{grain}/part-{number:05d}.parquet"


def marker_run_id(path: str) -> str | None:
    """The run whose commit marker or failure lies at ``path``; None for any other file."""
    folder, _, name = path.rpartition("/")
    run_id, _, ending = name.partition(".")
    if ending != "json" or not _RUN_ID.fullmatch(run_id) or folder.rpartition("/")[2] != run_id[:2]:
        return None
    return run_id


def parse_attempt_file(name: str) -> tuple[int, str] | None:
    """(attempt, kind) of a file in an attempt folder; None for a stray one."""
    match = _ATTEMPT_FILE.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def parse_checkpoint(name: str) -> tuple[int, int] | None:
    """(attempt, step) of a file in a checkpoint folder; None for a stray one."""
    match = _CHECKPOINT.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None
