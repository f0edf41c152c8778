"""Looks at every file of a sweep: what readers pass over, what is left over, and what is damaged.

Readers go by the manifest and the commit markers, so nothing that this module calls a stray disturbs them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator import schema
from orchestrator.store import commits, layout, plan_table
from orchestrator.store.compactor import drop_runs
from orchestrator.store.errors import DamagedError, StoreError
from orchestrator.store.findings import DAMAGED, DELETABLE, Finding
from orchestrator.store.manifest import Manifest, Part, read_manifest
from orchestrator.store.snapshot import Moved, read_committed
from orchestrator.store.strays import strays
from orchestrator.store.tree import Tree


def check(tree: Tree) -> list[Finding]:
    """All findings, the damaged first."""
    found = [*_tables(tree), *_single_files(tree)]
    listed: dict[str, list[str]] = {grain: _stored_parts(tree, grain) for grain in schema.GRAINS}
    if not any(f.path == layout.MANIFEST for f in found):
        listed = read_manifest(tree).parts
        held = covered(tree, listed)
        whole = not found
        found += _committed(tree, held)
        found += _out_of_step(tree, held) if whole else ()
    known = {f.path for f in found}
    found += [f for f in strays(tree, listed, covered(tree, listed)["runs"]) if f.path not in known]
    return sorted(found, key=lambda f: (f.kind != DAMAGED, f.kind, f.path))


def clean(tree: Tree) -> list[Finding]:
    """Delete every file that no reader uses and no committed result rests on; what was deleted.

    Raises:
        StoreError: a driver is compacting just now.
    """
    with _alone(tree):
        gone = [finding for finding in check(tree) if finding.kind in DELETABLE]
        for finding in gone:
            tree.delete(finding.path)
        return gone


@contextlib.contextmanager
def _alone(tree: Tree) -> Iterator[None]:
    with tree.lock(layout.LOCK) as free:
        if not free:
            raise StoreError("a driver is compacting this sweep just now: try again in a moment")
        yield


def repair(tree: Tree) -> list[str]:
    """Make the store whole again without what is damaged; the runs that are therefore to be run again.

    The manifest is written anew from the parts that can be read. A commit whose rows are lost is set aside; one whose
    marker or streams still hold the rows that a part lost counts as not compacted again.
    """
    with _alone(tree):
        manifest = Manifest()
        for grain, paths in manifest.parts.items():
            paths += [path for path in _stored_parts(tree, grain) if not _part_problem(tree, path)]
        tree.replace(layout.MANIFEST, manifest.encode())
        held = covered(tree, manifest.parts)
        lost = frozenset(f.run_id for f in _committed(tree, held))
        for grain in schema.GRAINS:
            drop_runs(tree, grain, lost)
        drop_runs(tree, "runs", frozenset(f.run_id for f in _out_of_step(tree, held)) - lost)
        for run_id in lost:
            commits.set_aside(tree, run_id)
        return sorted(lost)


def _stored_parts(tree: Tree, grain: str) -> list[str]:
    names = (name for name in tree.children(f"tables/{grain}") if re.fullmatch(r"part-\d{5,}\.parquet", name))
    return [f"tables/{grain}/{name}" for name in names]


def _tables(tree: Tree) -> Iterator[Finding]:
    """The manifest and the files that it lists."""
    try:
        manifest = read_manifest(tree)
    except DamagedError as error:
        yield Finding(kind=DAMAGED, path=layout.MANIFEST, note=str(error))
        return
    for grain, paths in manifest.parts.items():
        for path in paths:
            problem = _part_problem(tree, path)
            if problem:
                yield Finding(kind=DAMAGED, path=path, note=f"listed part of {grain}: {problem}")


def _part_problem(tree: Tree, path: str) -> str:
    """What is wrong with a part (all pages are read and their checksums compared); empty if nothing."""
    try:
        part = Part(tree, path)
        for _ in pq.ParquetFile(part.source, page_checksum_verification=True).iter_batches():
            pass
    except (DamagedError, OSError, pa.ArrowInvalid) as error:
        return str(error)
    return ""


def covered(tree: Tree, parts: Mapping[str, list[str]]) -> dict[str, frozenset[str]]:
    """The runs that the readable ones of ``parts`` hold, by grain."""
    return {g: frozenset[str]().union(*(_runs_in(tree, path) for path in paths)) for g, paths in parts.items()}


def _committed(tree: Tree, held: Mapping[str, frozenset[str]]) -> Iterator[Finding]:
    """Commits whose marker is no marker, or whose rows are in no part and not in their streams."""
    for run_id in commits.committed_ids(tree):
        try:
            marker = commits.read(tree, run_id)
        except DamagedError as error:
            if run_id not in held["runs"]:
                note = f"{error}; the run counts as not done and is run again"
                yield Finding(kind=DAMAGED, path=layout.commit(run_id), note=note, run_id=run_id)
            continue
        for grain in marker.streams:
            if run_id not in held[grain] and not _intact(tree, marker, grain):
                note = f"rows of committed run {run_id} are missing or damaged; --repair lets the run be run again"
                yield Finding(
                    kind=DAMAGED, path=marker.files.get(grain, layout.commit(run_id)), note=note, run_id=run_id
                )


def _out_of_step(tree: Tree, held: Mapping[str, frozenset[str]]) -> Iterator[Finding]:
    """Commits whose ``runs`` row is in a part while other rows are in none: readers would not look for those."""
    for run_id in held["runs"] & set(commits.committed_ids(tree)):
        with contextlib.suppress(DamagedError):
            lacking = [grain for grain in commits.read(tree, run_id).streams if run_id not in held[grain]]
            if lacking:
                note = f"{', '.join(lacking)} of the run are in no part; --repair brings them back from its commit"
                yield Finding(kind=DAMAGED, path=layout.commit(run_id), note=note, run_id=run_id)


def _runs_in(tree: Tree, path: str) -> frozenset[str]:
    try:
        return Part(tree, path).runs
    except DamagedError:
        return frozenset()


def _intact(tree: Tree, marker: commits.Marker, grain: str) -> bool:
    try:
        for _ in read_committed(tree, marker, grain):
            pass
    except (DamagedError, Moved):
        return False
    return True


def _single_files(tree: Tree) -> Iterator[Finding]:
    """Files that stand alone: the plan and the aggregates."""
    try:
        plan_table.read(tree)
    except DamagedError as error:
        yield Finding(kind=DAMAGED, path=layout.PLAN, note=str(error))
    if tree.exists(layout.AGGREGATES):
        try:
            pq.read_table(tree.open(layout.AGGREGATES))
        except (OSError, pa.ArrowInvalid) as error:
            note = f"{error}; no result rests on it, the next `deyo-sweep run` writes it again"
            yield Finding(kind=DAMAGED, path=layout.AGGREGATES, note=note)
