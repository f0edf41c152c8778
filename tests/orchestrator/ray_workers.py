"""A private Ray with workers that can use the package of troubles, and drivers of small sweeps on it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine_runs import tiny_spec
from exec_fakes import make_driver
from trouble_package import install

from orchestrator.driver import Driver
from orchestrator.executors.inline import InlineExecutor
from orchestrator.memory_store import MemoryStore
from orchestrator.plan import make_plan
from orchestrator.worker import WorkerState

NUMBERS = ("accuracy", "mean_entropy", "stream_digest", "weights_sha256", "data_fingerprint")


@contextlib.contextmanager
def private_cluster(folder: Path, *, cpus: int = 2, **variables: str) -> Iterator[Any]:
    """A cluster on loopback; ``variables`` are set in the environment of its processes."""
    from orchestrator.cluster import local_cluster

    package = str(install(folder / "site"))
    kept = dict(os.environ)
    path = os.pathsep.join(filter(None, (package, kept.get("PYTHONPATH", ""))))
    changes = {"PYTHONPATH": path, "DEYO_CACHE": str(folder / "cache"), **variables}
    os.environ.update(changes)
    sys.path.insert(0, package)
    try:
        with local_cluster(cpus=cpus) as connection:
            yield connection
    finally:
        sys.path.remove(package)
        for name in changes:
            os.environ.pop(name)
            if name in kept:
                os.environ[name] = kept[name]


@contextlib.contextmanager
def workers_of(folder: Path) -> Iterator[Any]:
    """An executor on the cluster that this process is connected to."""
    from orchestrator.executors.ray import RayExecutor, WorkerLayout

    made = RayExecutor(WorkerLayout(cache=str(folder / "cache")))
    try:
        yield made
    finally:
        made.close()


def trouble(action: str, seeds: int = 2, **settings: Any) -> Any:
    """A spec whose method misbehaves."""
    listed = json.dumps({"name": "trouble", "settings": {"action": action, **settings}})
    return tiny_spec(seeds=list(range(seeds)), methods=f"[{listed}]")


def driver_for(spec: Any, executor: Any, folder: Path, **options: Any) -> Driver:
    """A driver of ``spec`` with a store in memory."""
    driver = make_driver(make_plan(spec).runs, executor, store=MemoryStore(), **options)
    driver.cache = folder / "cache"
    return driver


def assert_undisturbed(driver: Driver, folder: Path, calm: Any) -> None:
    """The numbers are those of the same runs one by one in this process, without their trouble."""
    alone = driver_for(calm, InlineExecutor(WorkerState(cache=folder / "cache")), folder)
    alone.run()
    assert numbers(driver) == numbers(alone)


def numbers(driver: Driver) -> dict[tuple[str, int], dict[str, Any]]:
    """Of each committed run, by its method and seed."""
    names = {run.run_id: (run.config.method, run.config.seed) for run in driver.plan.runs}
    commits = driver.store.commits.items()
    return {names[run_id]: {name: row[name] for name in NUMBERS} for run_id, (_, row) in commits}
