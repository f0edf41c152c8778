"""A worker that eats the memory of its host, on a Ray with a limit of its own (one Ray a process: hence this file)."""

from __future__ import annotations

from pathlib import Path

import pytest
from ray_workers import driver_for, private_cluster, trouble, workers_of

pytest.importorskip("ray")


@pytest.mark.cluster  # the memory of the whole host counts: what runs beside it would be taken for the worker's
def test_a_worker_that_eats_the_host_s_memory_is_ended_by_ray_and_its_run_tried_again(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """Ray's memory monitor ends the process; its limit is two gigabytes above what the host uses now."""
    folder = tmp_path_factory.mktemp("eat")
    limits = {
        "RAY_memory_usage_threshold": f"{share_in_use() + gigabytes(2):.4f}",
        "RAY_memory_monitor_refresh_ms": "100",
    }
    with private_cluster(folder, cpus=1, **limits), workers_of(folder) as executor:
        driver = driver_for(trouble("eat", seeds=1, once=str(tmp_path)), executor, folder)
        outcome = driver.run()
    assert (outcome.committed, outcome.exit_code) == (1, 0)
    (failure,) = driver.store.failed.values()
    assert failure.message.startswith("host-oom, tried again: the host ran low on memory")
    (run_id,) = driver.store.commits
    assert "trouble: eat" in driver.store.logs[run_id, 1]


def memory() -> dict[str, int]:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}


def share_in_use() -> float:
    found = memory()
    return 1 - found["MemAvailable"] / found["MemTotal"]


def gigabytes(count: float) -> float:
    return count * (1 << 30) / memory()["MemTotal"]
