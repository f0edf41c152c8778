"""Failures on the real Ray: memory that runs out, CUDA errors, and what becomes of the worker and of the runs.

Deaths of processes, hangs and plain errors are in ``test_ray_executor.py``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine_runs import tiny_spec
from ray_workers import assert_undisturbed, driver_for, private_cluster, trouble, workers_of

from orchestrator.driver import Driver
from orchestrator.executors import oom
from orchestrator.pretraining import Pretraining
from orchestrator.types import PretrainTask

pytest.importorskip("ray")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ray")


@pytest.fixture(scope="module")
def workers(folder: Path) -> Iterator[Any]:
    with private_cluster(folder), workers_of(folder) as made:
        yield made


@pytest.fixture
def executor(workers: Any) -> Any:
    """The same workers for every test, as far as they are alive."""
    workers.announce()
    return workers


def processes(driver: Driver, run_id: str, attempt: int) -> list[str]:
    return re.findall(r"in process (\d+)", driver.store.logs[run_id, attempt])


@pytest.mark.parametrize(
    ("action", "kind"), [("python-memory", "host-oom"), ("torch-memory", "host-oom"), ("sticky", "cuda-sticky")]
)
def test_a_process_that_cannot_be_trusted_any_more_is_replaced(
    executor: Any, folder: Path, tmp_path: Path, action: str, kind: str
) -> None:
    """Out of host memory, or a CUDA error that stays: the run is done by a new process, and so is what comes after."""
    driver = driver_for(trouble(action, once=str(tmp_path)), executor, folder)
    outcome = driver.run()
    assert (outcome.committed, outcome.exit_code) == (2, 0)
    assert {attempt for attempt, _ in driver.store.commits.values()} == {2}
    used = {pid for run_id in driver.store.commits for pid in processes(driver, run_id, 1)}
    assert len(used) == 2  # no run was given to a process in which another had failed
    alive = {str(actor.facts.pid) for actor in executor._actors.values() if actor.facts is not None}
    assert not used & alive
    for run_id in driver.store.commits:
        assert driver.store.failed[run_id].message.startswith(f"{kind}, tried again")
    assert_undisturbed(driver, folder, trouble("none"))


def test_what_never_fits_into_the_host_s_memory_fails_after_two_attempts(executor: Any, folder: Path) -> None:
    driver = driver_for(trouble("torch-memory", seeds=1), executor, folder)
    outcome = driver.run()
    (failure,) = outcome.failures.values()
    assert failure.kind.value == "host-oom"
    assert "allocate memory" in failure.message
    assert len({pid for attempt in (1, 2) for pid in processes(driver, next(iter(outcome.failures)), attempt)}) == 2


def test_a_group_too_large_for_the_gpu_is_halved_and_all_its_runs_are_done(executor: Any, folder: Path) -> None:
    spec = tiny_spec(seeds=list(range(8)), methods="[{name: greedy, settings: {fits: 2}}]")
    driver = driver_for(spec, executor, folder, lockstep=True, group_size=8)
    outcome = driver.run()
    assert (outcome.committed, outcome.exit_code) == (8, 0)
    assert max(row["group_size"] for _, row in driver.store.commits.values()) <= 2
    assert any("cuda-oom, tried again" in failure.message for failure in driver.store.failed.values())
    assert_undisturbed(driver, folder, spec)


def test_a_run_that_does_not_fit_alone_fails_by_itself(executor: Any, folder: Path) -> None:
    methods = "[{name: greedy, settings: {fits: 0}}, no-adapt]"
    driver = driver_for(tiny_spec(seeds=[0, 1], methods=methods), executor, folder, lockstep=True, group_size=2)
    outcome = driver.run()
    assert outcome.committed == 2
    assert {failure.kind.value for failure in outcome.failures.values()} == {"cuda-oom"}


def test_what_a_worker_said_last_stays_with_the_pretraining_that_killed_it(executor: Any) -> None:
    said: list[str] = []
    task = PretrainTask(task_id="p", key="net", model="small-resnet-bn", benchmark="deadly", seed=0)
    work = Pretraining(tasks=[task], executor=executor, report=said.append)
    work.run()
    assert work.failed["net"].kind.value == "worker-lost"
    assert "deadly: the end of process" in said[-1]


@pytest.mark.parametrize("here", [True, False], ids=["the driver's host", "another host"])
def test_what_the_kernel_ended_for_lack_of_memory_is_no_mere_loss_of_a_worker(
    executor: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    """The host's count of such ends rose while the worker was at work. It is the driver that is told a higher count
    afterwards: the count itself cannot be moved here."""
    heard = 6 if here else oom.oom_kills()
    monkeypatch.setattr(executor, "_kills", defaultdict(lambda: oom.Kills(latest=heard)))
    if here:
        counted = tmp_path / "vmstat"
        counted.write_text("oom_kill 7\n")
        monkeypatch.setattr(oom, "VMSTAT", str(counted))
    else:
        monkeypatch.setattr(executor, "_here", "another")
        asked = oom.Inquiry.over

        def over(inquiry: oom.Inquiry) -> bool:
            answered = asked(inquiry)
            if inquiry.after is not None and not moved:
                inquiry.after += 1
                moved.append(inquiry.after)
            return answered

        moved: list[int] = []
        monkeypatch.setattr(oom.Inquiry, "over", over)
    driver = driver_for(trouble("exit", seeds=1, once=str(tmp_path)), executor, folder)
    outcome = driver.run()
    assert (outcome.committed, outcome.exit_code) == (1, 0)
    (failure,) = driver.store.failed.values()
    assert failure.message.startswith("host-oom, tried again: the host's kernel ended the worker")
    assert "trouble: exit" in driver.store.logs[next(iter(driver.store.commits)), 1]


def test_one_end_by_the_kernel_explains_one_death() -> None:
    kills = oom.Kills()
    kills.hear(5, now=0.0)  # whatever was before
    assert not kills.explain(noticed=1.0)
    kills.hear(7, now=10.0)  # another worker of the host tells before the deaths are noticed
    kills.hear(7, now=12.0)
    assert [kills.explain(noticed=13.0) for _ in range(3)] == [True, True, False]
    kills.hear(8, now=20.0)  # something else was ended: no death follows
    assert not kills.explain(noticed=20.0 + oom.EXPLAINS_SECONDS + 1)
    kills.hear(9, now=100.0)  # the host's answer after the death
    kills.hear(8, now=100.5)  # an older word that arrives late
    assert kills.explain(noticed=99.0)


def test_a_death_is_explained_by_what_another_worker_told_before(executor: Any) -> None:
    actor = SimpleNamespace(node_id="somewhere")
    executor._kills["somewhere"] = oom.Kills(latest=3)
    executor._kills["somewhere"].hear(4, executor.now())
    assert executor._was_killed(oom.Inquiry(executor.now(), after=4), actor)
    assert not executor._was_killed(oom.Inquiry(executor.now(), after=4), actor)
    assert not executor._was_killed(oom.Inquiry(executor.now()), actor)  # the host did not answer


def test_a_worker_that_dies_on_another_host_with_memory_enough_is_lost(
    executor: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "_here", "another")
    driver = driver_for(trouble("exit", seeds=1, once=str(tmp_path)), executor, folder)
    assert driver.run().committed == 1
    (failure,) = driver.store.failed.values()
    assert failure.message.startswith("worker-lost, tried again")
