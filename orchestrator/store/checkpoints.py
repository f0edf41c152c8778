"""Checkpoints of runs in the middle of their stream, verified when they are read."""

from __future__ import annotations

import hashlib
import json

from orchestrator.store import layout
from orchestrator.store.tree import Tree
from orchestrator.types import Checkpoint

KEPT = 2
"""Checkpoints kept a run: the newest, and the one before in case the newest is damaged."""


def save(tree: Tree, attempt: int, checkpoint: Checkpoint) -> None:
    """Keep ``checkpoint``, and drop all but the newest ``KEPT`` of its run."""
    head = {"sha256": hashlib.sha256(checkpoint.blob).hexdigest(), "bytes": len(checkpoint.blob)}
    data = json.dumps(head).encode() + b"\n" + checkpoint.blob
    tree.replace(layout.checkpoint(checkpoint.run_id, attempt, checkpoint.step), data)
    for old_attempt, old_step in _stored(tree, checkpoint.run_id)[KEPT:]:
        tree.delete(layout.checkpoint(checkpoint.run_id, old_attempt, old_step))


def load(tree: Tree, run_id: str) -> Checkpoint | None:
    """The newest whole checkpoint of a run, of its latest attempt that has one."""
    for attempt, step in _stored(tree, run_id):
        blob = _blob(tree, layout.checkpoint(run_id, attempt, step))
        if blob is not None:
            return Checkpoint(run_id=run_id, step=step, blob=blob)
    return None


def drop(tree: Tree, run_id: str) -> None:
    """Forget the checkpoints of a run (it is committed)."""
    for attempt, step in _stored(tree, run_id):
        tree.delete(layout.checkpoint(run_id, attempt, step))


def _stored(tree: Tree, run_id: str) -> list[tuple[int, int]]:
    names = (layout.parse_checkpoint(name) for name in tree.children(layout.checkpoint_folder(run_id)))
    return sorted((name for name in names if name), reverse=True)


def _blob(tree: Tree, path: str) -> bytes | None:
    """The checkpoint's state, or None if the file is damaged or gone."""
    try:
        head, _, blob = tree.read(path).partition(b"\n")
        said = json.loads(head)
        whole = said["bytes"] == len(blob) and said["sha256"] == hashlib.sha256(blob).hexdigest()
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return blob if whole else None
