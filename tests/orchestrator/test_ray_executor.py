"""The real Ray on this machine: a sweep on two CPU workers, and what happens when workers die."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_runs import tiny_spec
from ray_workers import assert_undisturbed, driver_for, private_cluster, trouble, workers_of

from deyo.numerics import code_digest
from orchestrator.types import Failure, FailureClass

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ray")


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Any]:
    with private_cluster(folder) as connection:
        yield connection


@pytest.fixture(scope="module")
def workers(cluster: Any, folder: Path) -> Iterator[Any]:
    with workers_of(folder) as made:
        yield made


@pytest.fixture
def executor(workers: Any) -> Any:
    """The same workers for every test, as far as they are alive."""
    workers.announce()
    return workers


def test_a_sweep_on_two_workers_gives_the_numbers_of_one_process(executor: Any, folder: Path) -> None:
    spec = tiny_spec(seeds=[0, 1, 2], methods="[no-adapt, tent]")
    driver = driver_for(spec, executor, folder)
    outcome = driver.run()
    assert (outcome.committed, outcome.exit_code) == (6, 0)
    assert_undisturbed(driver, folder, spec)
    assert {attempt for attempt, _ in driver.store.commits.values()} == {1}
    assert {row["device"] for _, row in driver.store.commits.values()} == {"cpu"}
    assert {row["code_digest"] for _, row in driver.store.commits.values()} == {code_digest()}


def test_workers_run_a_snapshot_of_the_code(executor: Any, folder: Path) -> None:
    """Edits during a sweep do not reach it: what workers import is a copy."""
    driver = driver_for(trouble("raise", seeds=1), executor, folder, breaker=0)
    driver.run()
    (failure,) = driver.failures.values()
    assert "working_dir_files" in failure.traceback


@pytest.mark.parametrize(("action", "trace"), [("segfault", "Segmentation fault"), ("exit", "trouble: exit")])
def test_a_run_that_kills_its_process_is_done_by_another(
    executor: Any, folder: Path, tmp_path: Path, action: str, trace: str
) -> None:
    driver = driver_for(trouble(action, once=str(tmp_path)), executor, folder)
    outcome = driver.run()
    assert (outcome.committed, outcome.exit_code) == (2, 0)
    assert {attempt for attempt, _ in driver.store.commits.values()} == {2}
    for run_id in driver.store.commits:
        assert trace in driver.store.logs[run_id, 1]
        assert "worker-lost" in driver.store.failed[run_id].message


def test_an_error_fails_its_run_alone_with_its_traceback(executor: Any, folder: Path) -> None:
    driver = driver_for(trouble("raise", seeds=3), executor, folder, breaker=0)
    outcome = driver.run()
    assert len(outcome.failures) == 3
    assert len({f.signature for f in outcome.failures.values()}) == 1
    failure: Failure = next(iter(outcome.failures.values()))
    assert failure.kind is FailureClass.ERROR
    assert "_act" in failure.traceback
    log = driver.store.logs[next(iter(outcome.failures)), 1]
    assert "trouble: raise" in log
    assert "RuntimeError" in log


def test_a_run_that_hangs_is_given_up_and_its_worker_replaced(executor: Any, folder: Path, tmp_path: Path) -> None:
    driver = driver_for(trouble("hang", seeds=1, once=str(tmp_path)), executor, folder, timeout=15.0)
    outcome = driver.run()
    assert (outcome.committed, outcome.exit_code) == (1, 0)
    (failure,) = driver.store.failed.values()
    assert "timeout" in failure.message


def test_the_cluster_listens_on_loopback_alone_and_wants_its_token(cluster: Any) -> None:
    from orchestrator.probe import ClusterError, probe

    assert cluster.address.startswith("127.0.0.1:")
    listening = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True).stdout
    ours = [line.split()[3] for line in listening.splitlines() if _of_our_family(line)]
    assert ours
    assert all(address.startswith(("127.0.0.1:", "[::ffff:127.0.0.1]:", "[::1]:")) for address in ours), ours
    assert probe(cluster.address).nodes
    with pytest.raises(ClusterError):
        probe(cluster.address, authenticated=False)


def _of_our_family(line: str) -> bool:
    pids = [int(part.split(",")[0]) for part in line.split("pid=")[1:]]
    return any(_is_descendant(pid) for pid in pids)


def _is_descendant(pid: int) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            return False
    return False


def test_the_token_file_is_its_owners_alone(cluster: Any) -> None:
    from orchestrator.probe import token_in_use

    token = token_in_use()
    assert token.mode == "token"
    if token.path is not None and "RAY_AUTH_TOKEN" not in os.environ:
        assert token.file_mode == 0o600


def test_a_worker_killed_from_outside_costs_only_its_run(executor: Any, folder: Path) -> None:
    spec = trouble("none", seeds=6, seconds=0.3)
    driver = driver_for(spec, executor, folder)
    killed: list[int] = []
    dispatch = driver._dispatch

    def kill_one() -> None:
        dispatch()
        busy = [a for a in executor._actors.values() if a.task is not None and a.facts is not None]
        if not killed and driver.committed and busy:
            killed.append(busy[0].facts.pid)
            os.kill(killed[0], signal.SIGKILL)

    driver._dispatch = kill_one
    outcome = driver.run()
    assert killed
    assert (outcome.committed, outcome.exit_code) == (6, 0)
    assert sorted(attempt for attempt, _ in driver.store.commits.values()) == [1, 1, 1, 1, 1, 2]
