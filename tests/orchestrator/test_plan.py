"""Plans: statuses with their reasons, resume, stale runs, retries, the size that must stay quick."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from spec_fakes import FakeCatalog

from orchestrator.plan import History, differences, make_plan, with_retries
from orchestrator.spec import parse_spec
from orchestrator.types import CommitInfo, Failure, FailureClass, Plan, RunStatus

GRID = """\
name: t
seeds: [0, 1]
runs:
  - benchmark: digits-c
    corruptions: [contrast]
    models: [small-resnet-bn, "file:net.safetensors"]
    methods: [no-adapt, tent]
"""


@dataclass
class FakeStore:
    """The two questions that a plan asks of a store."""

    root: str = "results/t"
    commits: dict[str, CommitInfo] = field(default_factory=dict)
    failed: dict[str, Failure] = field(default_factory=dict)

    def committed(self) -> dict[str, CommitInfo]:
        return self.commits

    def failures(self) -> dict[str, Failure]:
        return self.failed

    def commit_all(self, plan: Plan) -> None:
        for run in plan.runs:
            stamps = dict(run.stamps)
            self.commits[run.run_id] = CommitInfo(
                run_id=run.run_id, attempt=1, finished_at="2026-01-01T00:00:00Z", stamps=stamps
            )


def plan_of(store: FakeStore | None = None, *overrides: str, catalog: FakeCatalog | None = None) -> Plan:
    return make_plan(parse_spec(GRID, overrides), store, catalog=catalog or FakeCatalog())  # type: ignore[arg-type]


def statuses(plan: Plan) -> list[str]:
    return [run.status.value for run in plan.runs]


def test_everything_is_new_without_a_store() -> None:
    plan = plan_of()
    assert statuses(plan) == ["new"] * 8
    assert len(plan.todo) == 8
    assert plan.sweep == "t"


def test_done_runs_say_where_from_and_are_not_run_again() -> None:
    store = FakeStore()
    store.commit_all(plan_of())
    plan = plan_of(store)
    assert statuses(plan) == ["done"] * 8
    assert plan.todo == ()
    assert "in results/t, attempt 1, 2026-01-01" in plan.runs[0].reason


def test_a_seed_more_runs_only_the_new_seed() -> None:
    store = FakeStore()
    store.commit_all(plan_of())
    plan = plan_of(store, "seeds=[0, 1, 2]")
    assert {run.config.seed for run in plan.todo} == {2}
    assert len(plan.todo) == 4


def test_changed_weights_make_their_runs_stale_and_say_old_and_new() -> None:
    store = FakeStore()
    catalog = FakeCatalog()
    catalog.weights["file:net.safetensors"] = "sha256:" + "a" * 64
    store.commit_all(plan_of(catalog=catalog))
    catalog.weights["file:net.safetensors"] = "sha256:" + "b" * 64
    plan = plan_of(store, catalog=catalog)
    assert statuses(plan) == ["done"] * 4 + ["stale"] * 4
    stale = plan.runs[4]
    assert stale.reason.startswith("weights_sha aaaaaaaaaaaa -> bbbbbbbbbbbb")
    assert stale in plan.todo
    assert stale.run_id not in store.commits, "a stale run is committed beside the old one, never over it"


def test_a_new_numerics_version_makes_all_runs_stale() -> None:
    store = FakeStore()
    store.commit_all(plan_of())
    plan = plan_of(store, catalog=FakeCatalog(numerics_version=2))
    assert statuses(plan) == ["stale"] * 8
    assert "numerics_version 1 -> 2" in plan.runs[0].reason


def test_edited_engine_code_is_reported_and_keeps_what_is_done() -> None:
    store = FakeStore()
    store.commit_all(plan_of())
    plan = plan_of(store, catalog=FakeCatalog(code_digest="beef"))
    assert statuses(plan) == ["done"] * 8
    assert "code_digest c0de -> beef" in plan.runs[0].reason


def test_any_change_of_code_can_be_made_to_count() -> None:
    store = FakeStore()
    store.commit_all(plan_of(None, "stale_after=code"))
    assert statuses(plan_of(store, "stale_after=code")) == ["done"] * 8
    plan = plan_of(store, "stale_after=code", catalog=FakeCatalog(code_digest="beef"))
    assert statuses(plan) == ["stale"] * 8
    assert plan.runs[0].reason.startswith("code_digest c0de -> beef")


def test_asking_for_samples_later_reruns_and_no_longer_asking_does_not() -> None:
    store = FakeStore()
    store.commit_all(plan_of())
    plan = plan_of(store, "samples=true")
    assert statuses(plan) == ["stale"] * 8
    assert "record_samples False -> True" in plan.runs[0].reason
    only_samples = FakeStore()
    only_samples.commit_all(plan_of(None, "samples=true"))
    assert statuses(plan_of(only_samples)) == ["done"] * 8


@pytest.mark.parametrize("kind", [FailureClass.ERROR, FailureClass.DATA, FailureClass.CUDA_OOM, FailureClass.TIMEOUT])
def test_a_failed_run_is_not_done_and_waits_for_retry(kind: FailureClass) -> None:
    store = FakeStore()
    first = plan_of().runs[0].run_id
    store.failed[first] = Failure(kind=kind, message="it broke\nlong story", log_path="logs/x")
    plan = plan_of(store)
    assert plan.runs[0].status is RunStatus.FAILED
    assert plan.runs[0].reason == f"{kind.value}: it broke; log: logs/x"
    assert first not in {run.run_id for run in plan.todo}
    again = with_retries(plan)
    assert again.runs[0].status is RunStatus.NEW
    assert "it broke" in again.runs[0].reason
    assert with_retries(plan, lambda run: run.config.method == "tent") == plan


def test_an_interrupted_run_is_taken_up_again() -> None:
    store = FakeStore()
    first = plan_of().runs[0].run_id
    store.failed[first] = Failure(kind=FailureClass.CANCELLED, message="worker-lost, tried again: host gone")
    assert plan_of(store).runs[0].status is RunStatus.NEW
    assert "interrupted" in plan_of(store).runs[0].reason


@pytest.mark.parametrize("kind", [FailureClass.WORKER_LOST, FailureClass.NODE_LOST, FailureClass.INFRASTRUCTURE])
def test_a_run_given_up_after_its_retries_waits_for_retry(kind: FailureClass) -> None:
    store = FakeStore()
    first, second, *_ = plan_of().runs
    store.failed = {r.run_id: Failure(kind=kind, message="host gone") for r in (first, second)}
    plan = plan_of(store)
    assert statuses(plan)[:2] == ["failed", "failed"]
    assert plan.runs[0].reason == f"{kind.value}: host gone"
    again = with_retries(plan, lambda run: run.run_id == first.run_id)
    assert statuses(again)[:2] == ["new", "failed"]


def test_a_failure_on_attempt_one_then_a_commit_counts_as_done() -> None:
    store = FakeStore()
    plan = plan_of()
    store.commit_all(plan)
    store.failed[plan.runs[0].run_id] = Failure(kind=FailureClass.ERROR, message="attempt 1")
    assert statuses(plan_of(store)) == ["done"] * 8


def test_duplicates_are_counted() -> None:
    assert plan_of(None, "seeds=[0, 0, 1, 1]").merged_duplicates == 8


def test_stamps_say_what_the_identity_rests_on() -> None:
    stamps = plan_of().runs[0].stamps
    assert stamps["weights_id"] == "weights of small-resnet-bn"
    assert stamps["numerics_version"] == 1
    assert len(stamps["config_id"]) == 16


def test_differences_name_only_what_both_know() -> None:
    assert differences({"code_digest": "a"}, {"code_digest": "b", "weights_id": "x"}) == ["code_digest a -> b"]


def test_history_prefers_the_latest_commit_of_a_config() -> None:
    old = CommitInfo(run_id="1", attempt=1, finished_at="2026-01-01", stamps={"config_id": "c"})
    new = replace(old, run_id="2", finished_at="2026-02-01")
    store: Any = FakeStore(commits={"2": new, "1": old})
    assert History.of(store).by_config["c"] is new


def test_ten_thousand_runs_ask_the_engine_once_for_each_distinct_setting() -> None:
    catalog = FakeCatalog()
    plan = plan_of(
        None,
        f"seeds={list(range(500))}",
        "runs[0].severities=[1, 2, 3, 4, 5]",
        catalog=catalog,
    )
    assert len(plan.runs) == 10_000
    assert catalog.questions == 4
    assert len({run.run_id for run in plan.runs}) == 10_000
