"""Judges every file of a sweep by its place in the layout: strays, cut-off rows, superseded attempts, leftovers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import replace

from orchestrator.store import commits, layout, logs, running
from orchestrator.store.errors import DamagedError
from orchestrator.store.findings import EMPTY, LEFTOVER, STRAY, SUPERSEDED, TRUNCATED, UNFINISHED, Finding
from orchestrator.store.local_tree import left_by_dead_writer
from orchestrator.store.streams import is_whole
from orchestrator.store.tree import Entry, Tree

_TOP = frozenset(
    {
        layout.SPEC_TEXT,
        layout.SPEC_JSON,
        layout.PLAN,
        layout.RUNNING,
        layout.MANIFEST,
        layout.AGGREGATES,
        layout.LOCK,
        *layout.DRIVER_FILES,
    }
)
_MAY_BE_EMPTY = frozenset({layout.LOCK, layout.SPEC_TEXT, *layout.DRIVER_FILES})
_KINDS = frozenset({"begin.json", "batches.arrows", "samples.arrows", "log", "failed.json", "superseded.json"})


def strays(tree: Tree, listed: Mapping[str, list[str]], compacted: Set[str]) -> Iterator[Finding]:
    """Findings on files; ``listed`` are the manifest's parts, ``compacted`` the runs in them."""
    judge = _Judge(tree, compacted)
    parts = {path for paths in listed.values() for path in paths}
    for entry in tree.files(""):
        if entry.path in parts or (entry.path in _TOP and (entry.size or entry.path in _MAY_BE_EMPTY)):
            continue
        finding = judge(entry)
        if finding and entry.size == 0 and finding.kind in (STRAY, TRUNCATED):
            finding = replace(finding, kind=EMPTY)
        if finding:
            yield finding


class _Judge:
    def __init__(self, tree: Tree, compacted: Set[str]) -> None:
        self._tree = tree
        self._compacted = compacted
        self._committed = set(commits.committed_ids(tree))
        self._alive = {path for entry in running.read(tree) for path in entry.streams.values()}

    def __call__(self, entry: Entry) -> Finding | None:
        folders: dict[str, Callable[[Entry], Finding | None]] = {
            "commits": self._marker,
            "failures": self._failure,
            "checkpoints": self._checkpoint,
            "attempts": self._attempt,
            layout.PRETRAINED: _pretrained,
            layout.TEMPORARY: _temporary,
        }
        return folders.get(entry.path.partition("/")[0], _stray)(entry)

    def _marker(self, entry: Entry) -> Finding | None:
        return _stray(entry) if layout.marker_run_id(entry.path) is None else None  # fsck reads the content

    def _failure(self, entry: Entry) -> Finding | None:
        if layout.marker_run_id(entry.path) is None:
            return _stray(entry)
        if logs.decode_failure(self._tree.read(entry.path)) is None:
            return Finding(kind=TRUNCATED, path=entry.path, note="not a whole record of a failure; passed over")
        return None

    def _checkpoint(self, entry: Entry) -> Finding | None:
        folder, _, name = entry.path.rpartition("/")
        run_id = folder.rpartition("/")[2]
        if layout.parse_checkpoint(name) is None:
            return _stray(entry)
        if run_id in self._committed:
            return Finding(kind=LEFTOVER, path=entry.path, note=f"run {run_id} is committed: of no use any more")
        return None

    def _attempt(self, entry: Entry) -> Finding | None:
        folder, _, name = entry.path.rpartition("/")
        run_id = folder.rpartition("/")[2]
        parsed = layout.parse_attempt_file(name)
        if parsed is None or parsed[1] not in _KINDS or not layout.is_run_id(run_id):
            return _stray(entry)
        attempt, kind = parsed
        if kind == "superseded.json":
            note = f"attempt {attempt} of run {run_id} came second: kept, and in no table"
            return Finding(kind=SUPERSEDED, path=entry.path, note=note)
        if kind.endswith(".json"):
            return self._json(entry)
        path = layout.attempt_file(run_id, attempt, kind)
        if kind == "log" or path in self._alive:
            return None
        return self._stream(path, entry, run_id, attempt)

    def _json(self, entry: Entry) -> Finding | None:
        try:
            json.loads(self._tree.read(entry.path))
        except ValueError:
            return Finding(kind=TRUNCATED, path=entry.path, note="not whole; passed over")
        return None

    def _stream(self, path: str, entry: Entry, run_id: str, attempt: int) -> Finding | None:
        winner = self._winner(run_id)
        if winner == attempt:
            if run_id not in self._compacted:
                return None  # the committed rows themselves
            return Finding(kind=LEFTOVER, path=entry.path, note=f"the rows of run {run_id} are in the tables")
        if winner is not None:
            note = f"attempt {attempt} of run {run_id} does not count: attempt {winner} is committed"
            return Finding(kind=SUPERSEDED, path=entry.path, note=note)
        if not is_whole(self._tree.read_stream(path)):
            note = f"attempt {attempt} of run {run_id} was cut off here; in no table"
            return Finding(kind=TRUNCATED, path=entry.path, note=note, run_id=run_id)
        return None

    def _winner(self, run_id: str) -> int | None:
        if run_id not in self._committed:
            return None
        try:
            return commits.read(self._tree, run_id).attempt
        except DamagedError:
            return None


def _stray(entry: Entry) -> Finding:
    note = "no reader uses it"
    if entry.path.startswith("tables/"):
        note = "not in the manifest: deyo-sweep does not read it, but a plain read of the folder would"
    return Finding(kind=STRAY, path=entry.path, note=note)


def _pretrained(entry: Entry) -> Finding | None:
    return None if entry.path.endswith(".safetensors") and entry.size else _stray(entry)


def _temporary(entry: Entry) -> Finding | None:
    dead = left_by_dead_writer(entry.path.rpartition("/")[2])
    if dead is None:
        return Finding(kind=UNFINISHED, path=entry.path, note="being written on another host, or never finished there")
    return Finding(kind=LEFTOVER, path=entry.path, note="a file that was never finished") if dead else None
