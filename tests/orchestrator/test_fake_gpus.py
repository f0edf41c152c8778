"""Scheduling over several GPUs of one host, with GPUs that Ray believes in and the workers do on the CPU."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from engine_runs import tiny_spec
from exec_fakes import make_driver

from orchestrator.executors.inline import InlineExecutor
from orchestrator.plan import make_plan
from orchestrator.worker import WorkerState

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_every_gpu_works_and_the_numbers_are_those_of_one(
    gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.cluster import local_cluster
    from orchestrator.executors.ray import RayExecutor, WorkerLayout

    monkeypatch.setenv("DEYO_CACHE", str(tmp_path / "cache"))
    runs = make_plan(tiny_spec(seeds=list(range(4 * gpus)), methods="[tent]")).runs
    used: Counter[str] = Counter()
    with local_cluster(cpus=gpus, gpus=gpus):
        executor = RayExecutor(WorkerLayout(device="gpu", fake_gpus=True, cache=str(tmp_path / "cache")))
        start = executor.start

        def counted(task: Any, slot: Any) -> None:
            used[slot.slot_id] += 1
            assert slot.gpu_name == "fake"
            start(task, slot)

        executor.start = counted
        driver = make_driver(runs, executor, group_size=1)
        driver.cache = tmp_path / "cache"
        # Wait for all of them, so that the share of each shows.
        joined: list[Any] = []
        while len(joined) < gpus:
            joined += executor.poll(0.5)
        executor.announce()
        outcome = driver.run()
        executor.close()
    assert (outcome.committed, outcome.exit_code) == (len(runs), 0)
    assert len(used) == gpus
    assert all(attempt == 1 for attempt, _ in driver.store.commits.values())
    alone = make_driver(runs, InlineExecutor(WorkerState(cache=tmp_path / "cache")), group_size=1)
    alone.cache = tmp_path / "cache"
    alone.run()
    for run_id, (_, row) in driver.store.commits.items():
        expected = alone.store.commits[run_id][1]
        assert row["accuracy"] == expected["accuracy"]
        assert row["mean_entropy"] == expected["mean_entropy"]
