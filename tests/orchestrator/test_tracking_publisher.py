"""The publisher against MLflow's rules in memory: streaming, retries, restarts, outages, deletions, groups."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tracking_fakes import (
    T0,
    Clock,
    FakeRemote,
    FakeSource,
    doubled,
    planned,
    rows,
    run_row,
    work,
)

from orchestrator.tracking import naming
from orchestrator.tracking.publisher import Publisher
from orchestrator.tracking.remote import OutageError, RefusedError
from orchestrator.tracking.state import SweepInfo
from orchestrator.types import Failure, FailureClass, PlannedRun


class Sweep:
    """A publisher with its fakes, and a driver's moves."""

    def __init__(self, remote: FakeRemote | None = None, source: FakeSource | None = None, **info: Any) -> None:
        self.remote, self.source, self.clock = remote or FakeRemote(), source or FakeSource(), Clock()
        info = {
            "sweep": "demo",
            "root": "results",
            "granularity": "run",
            "runs": 2,
            "resolved": {"name": "demo"},
        } | info
        self.publisher = Publisher(self.remote, self.source, SweepInfo(**info), clock=self.clock)

    def start(self, run: PlannedRun, attempt: int = 1) -> None:
        self.publisher.ledger.run_started(run, attempt)

    def stream(self, run: PlannedRun, attempt: int, steps: range, **changes: Any) -> None:
        changes = {"start": T0 + 100 * attempt} | changes
        for batch in rows(run, attempt, steps, **changes):
            self.publisher.ledger.rows(run.run_id, attempt, batch)

    def finish(self, run: PlannedRun, attempt: int = 1, steps: int = 12, **changes: Any) -> None:
        row = self.source.commit(run, attempt, steps, **changes)
        self.publisher.ledger.run_finished(run, attempt, row)

    def whole(self, run: PlannedRun, attempt: int = 1, **changes: Any) -> None:
        self.start(run, attempt)
        self.stream(run, attempt, range(12), **changes)
        self.finish(run, attempt, **changes)

    def work(self) -> None:
        work(self.publisher, self.clock)

    def end(self, status: str = "FINISHED") -> None:
        self.publisher.sweep_finished(status)
        self.work()


def curve(run: dict[str, Any], key: str) -> dict[int, float]:
    return {p.step: p.value for p in run["points"] if p.key == key}


def test_a_run_streams_while_it_goes_on_and_ends_finished() -> None:
    sweep, run = Sweep(), planned(1)
    sweep.start(run)
    sweep.stream(run, 1, range(8))
    sweep.work()
    shown = sweep.remote.of(run.run_id)
    assert shown["status"] == "RUNNING"
    assert sorted(curve(shown, "stream/running_accuracy")) == list(range(8))
    sweep.stream(run, 1, range(8, 12))
    sweep.finish(run)
    sweep.end()
    assert shown["status"] == "FINISHED"
    assert curve(shown, "accuracy") == {0: pytest.approx(run_row(run, 1, 12)["accuracy"])}
    assert curve(shown, "stream/running_accuracy")[11] == pytest.approx(run_row(run, 1, 12)["accuracy"])
    assert curve(shown, "stream/images_per_second") == {7: pytest.approx(512), 11: pytest.approx(512)}
    assert shown["params"]["settings.plpd_threshold"] == "0.2"
    assert shown["params"]["seed"] == "1"
    assert shown["tags"]["deyo.weights_sha256"] == "w" * 64
    assert [d["name"] for d in shown["inputs"]] == ["digits-c gaussian_noise-5"]
    assert shown["inputs"][0]["digest"] == "f" * 36


def test_the_parent_has_metrics_table_plots_and_spec() -> None:
    sweep = Sweep(runs=1)
    sweep.whole(planned(1))
    sweep.end()
    parent = sweep.remote.of("demo")
    assert parent["status"] == "FINISHED"
    assert parent["files"] == [
        "plots/accuracy.png",
        "report.html",
        "spec/resolved.json",
        "spec/resolved.yaml",
        "tables/table.csv",
        "tables/table.md",
    ]
    assert curve(parent, "accuracy/DeYO gaussian_noise-5 small-resnet-bn digits-c mild batch 64 official tf32")
    assert "| DeYO | 0.5 |" in parent["tags"][naming.NOTE]
    assert sweep.remote.of(planned(1).run_id)["parent"] == "m0"


@pytest.mark.parametrize(
    ("done", "failed", "said", "shown"),
    [
        (2, 0, "FINISHED", "FINISHED"),
        (1, 1, "FINISHED", "FAILED"),
        (0, 2, "FINISHED", "FAILED"),
        (0, 0, "FINISHED", "KILLED"),
        (2, 0, "FAILED", "FAILED"),
        (0, 1, "KILLED", "KILLED"),
    ],
)
def test_the_parent_is_finished_only_if_every_planned_run_is(done: int, failed: int, said: str, shown: str) -> None:
    sweep = Sweep()
    sweep.source.plan = [planned(1), planned(2)]
    for run in sweep.source.plan[:done]:
        sweep.whole(run)
    for run in sweep.source.plan[done : done + failed]:
        sweep.start(run)
        failure = Failure(kind=FailureClass.ERROR, message="it broke")
        sweep.source.failed[run.run_id] = failure
        sweep.publisher.ledger.run_failed(run, 1, failure)
    sweep.end(said)
    assert sweep.remote.of("demo")["status"] == shown
    assert "RUNNING" not in {r["status"] for r in sweep.remote.store.values()}


def test_streaming_and_publishing_from_the_store_make_the_same_points() -> None:
    live, later, run = Sweep(), Sweep(), planned(1)
    live.whole(run)
    live.end()
    later.source.commit(run, 1)
    later.end()
    assert live.remote.of(run.run_id)["points"] == later.remote.of(run.run_id)["points"]


def test_publishing_again_changes_nothing() -> None:
    first, run = Sweep(), planned(1)
    first.whole(run)
    first.end()
    before = set(first.remote.of(run.run_id)["points"])
    first.remote.of(run.run_id)["tags"][naming.PUBLISHED] = "lost"
    second = Sweep(first.remote, first.source)
    second.end()
    assert first.remote.of(run.run_id)["points"] == before
    second.remote.calls.clear()
    third = Sweep(first.remote, first.source)
    third.end()
    assert third.publisher.published == 0


def test_a_retry_with_equal_numbers_reopens_the_run_and_doubles_nothing() -> None:
    sweep, run = Sweep(), planned(1)
    sweep.start(run, 1)
    sweep.stream(run, 1, range(8))
    sweep.work()
    sweep.publisher.ledger.run_failed(run, 1, Failure(kind=FailureClass.WORKER_LOST, message="gone"))
    sweep.work()
    shown = sweep.remote.of(run.run_id)
    assert shown["status"] == "FAILED"
    assert "worker-lost: gone" in shown["tags"]["deyo.last_failure"]
    sweep.whole(run, 2)
    sweep.work()
    sweep.end()
    assert sweep.remote.of(run.run_id) is shown
    assert shown["status"] == "FINISHED"
    assert doubled(shown["points"]) == []
    assert sorted(curve(shown, "stream/running_accuracy")) == list(range(12))
    assert shown["tags"]["deyo.attempt"] == "2"


def test_a_retry_with_other_numbers_replaces_the_run() -> None:
    sweep, run = Sweep(), planned(1)
    sweep.start(run, 1)
    sweep.stream(run, 1, range(8))
    sweep.work()
    sweep.whole(run, 2, bonus=3)
    sweep.end()
    shown = sweep.remote.of(run.run_id)
    fresh = Sweep()
    fresh.source.commit(run, 2, bonus=3)
    fresh.end()
    assert shown["points"] == fresh.remote.of(run.run_id)["points"]
    assert shown["tags"]["deyo.replaces"] in sweep.remote.store


def test_a_killed_sweep_leaves_nothing_running_and_resume_reopens() -> None:
    first, run, lost = Sweep(), planned(1), planned(2)
    for r in (run, lost):
        first.start(r)
        first.stream(r, 1, range(8))
    first.work()  # and then SIGKILL of driver and publisher
    second = Sweep(first.remote, first.source)
    second.whole(run, 2)
    second.end("KILLED")
    assert {r["status"] for r in first.remote.store.values()} == {"FINISHED", "KILLED"}
    shown = first.remote.of(run.run_id)
    assert doubled(shown["points"]) == []
    assert sorted(curve(shown, "stream/running_accuracy")) == list(range(12))
    assert first.remote.of(lost.run_id)["status"] == "KILLED"


def test_the_driver_s_death_ends_its_runs_at_once() -> None:
    sweep, run = Sweep(), planned(1)
    sweep.start(run)
    sweep.work()
    sweep.publisher.abandon()
    assert {r["status"] for r in sweep.remote.store.values()} == {"KILLED"}


def test_a_publisher_that_was_superseded_leaves_runs_alone() -> None:
    sweep, run = Sweep(), planned(1)
    sweep.start(run)
    sweep.work()
    Sweep(sweep.remote, sweep.source).publisher.step()
    sweep.remote.of(run.run_id)["status"] = "RUNNING"
    sweep.publisher.abandon()
    assert sweep.remote.of(run.run_id)["status"] == "RUNNING"


def test_an_outage_loses_nothing() -> None:
    sweep, run = Sweep(), planned(1)
    sweep.start(run)
    sweep.work()
    sweep.remote.fail = OutageError("connection refused")
    sweep.stream(run, 1, range(12))
    sweep.finish(run)
    for _ in range(5):
        sweep.clock.now += 10
        with pytest.raises(OutageError):
            sweep.publisher.step()
    assert sweep.publisher.status().waiting == 1
    sweep.remote.fail = None
    sweep.end()
    shown = sweep.remote.of(run.run_id)
    assert shown["status"] == "FINISHED"
    assert sorted(curve(shown, "stream/entropy")) == list(range(12))
    assert doubled(shown["points"]) == []


def test_an_outage_from_the_start() -> None:
    sweep = Sweep(runs=3)
    sweep.remote.fail = OutageError("down")
    for number in range(3):
        sweep.whole(planned(number))
        with pytest.raises(OutageError):
            sweep.publisher.step()
    sweep.remote.fail = None
    sweep.end()
    assert all(sweep.remote.of(planned(n).run_id)["status"] == "FINISHED" for n in range(3))
    assert sweep.publisher.published == 3


def test_half_written_points_are_written_once() -> None:
    sweep, run = Sweep(), planned(1)
    sweep.whole(run)
    sweep.publisher.step()
    sweep.clock.now += 10
    sweep.remote.fail_on = {"log_dataset": OutageError("timeout")}
    with pytest.raises(OutageError):
        sweep.publisher.step()
    sweep.remote.fail_on = {}
    sweep.end()
    assert doubled(sweep.remote.of(run.run_id)["points"]) == []
    assert len(sweep.remote.of(run.run_id)["inputs"]) == 1


def test_a_run_deleted_by_hand_stays_deleted_and_the_rest_goes_on() -> None:
    sweep, run, other = Sweep(), planned(1), planned(2)
    sweep.start(run)
    sweep.stream(run, 1, range(4))
    sweep.work()
    sweep.remote.of(run.run_id)["deleted"] = True
    sweep.stream(run, 1, range(4, 12))
    sweep.finish(run)
    sweep.whole(other)
    sweep.end()
    assert sweep.remote.of(other.run_id)["status"] == "FINISHED"
    assert sweep.publisher.status().deleted == 1
    assert sweep.publisher.status().waiting == 0
    again = Sweep(sweep.remote, sweep.source)
    again.end()
    assert [r["deleted"] for r in sweep.remote.store.values() if r["tags"][naming.KEY] == run.run_id] == [True]


def test_the_parent_deleted_by_hand_does_not_stop_the_runs() -> None:
    sweep = Sweep()
    sweep.whole(planned(1))
    sweep.work()
    sweep.remote.of("demo")["deleted"] = True
    sweep.whole(planned(2))
    sweep.end()
    assert sweep.remote.of(planned(2).run_id)["status"] == "FINISHED"
    assert sweep.publisher.idle()


def test_what_the_server_refuses_is_reported_once_and_not_tried_for_ever() -> None:
    sweep = Sweep()
    sweep.whole(planned(1))
    sweep.publisher.step()
    sweep.clock.now += 10
    sweep.remote.fail_on = {"log_dataset": RefusedError("digest too odd")}
    sweep.work()
    status = sweep.publisher.status()
    assert (status.refused, status.waiting) == (1, 0)
    assert "digest too odd" in status.first_refusal
    sweep.remote.fail_on = {}
    sweep.end()
    assert sweep.remote.of(planned(1).run_id)["status"] == "KILLED"


def test_rows_that_were_lost_come_from_the_store() -> None:
    sweep, run = Sweep(), planned(1)
    sweep.start(run)
    sweep.stream(run, 1, range(4))
    sweep.publisher.ledger.lost_rows(run.run_id, 1)
    sweep.stream(run, 1, range(8, 12))
    sweep.finish(run)
    sweep.end()
    shown = sweep.remote.of(run.run_id)
    assert sorted(curve(shown, "stream/running_accuracy")) == list(range(12))
    assert doubled(shown["points"]) == []


def test_rows_of_a_superseded_attempt_are_ignored() -> None:
    sweep, run = Sweep(), planned(1)
    sweep.start(run, 2)
    sweep.stream(run, 1, range(8), bonus=9)
    sweep.stream(run, 2, range(12))
    sweep.finish(run, 2)
    sweep.end()
    assert curve(sweep.remote.of(run.run_id), "stream/running_accuracy")[0] == pytest.approx(31 / 64)


def test_memory_stays_bounded_while_the_server_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.tracking.ledger.MAX_WAITING", 5)
    monkeypatch.setattr("orchestrator.tracking.ledger.MAX_HELD_POINTS", 100)
    sweep = Sweep(runs=20)
    sweep.remote.fail = OutageError("down")
    for number in range(20):
        sweep.whole(planned(number))
    live = sweep.publisher.units.live.values()
    assert len(live) == 5
    assert sum(bool(m.points) for u in live for m in u.members.values()) == 2
    assert sweep.publisher.status().waiting == 20
    sweep.remote.fail = None
    sweep.end()
    for number in range(20):
        shown = sweep.remote.of(planned(number).run_id)
        assert sorted(curve(shown, "stream/running_accuracy")) == list(range(12))


def test_nan_and_infinity_become_tags_not_points() -> None:
    sweep, run = Sweep(), planned(1)
    row = sweep.source.commit(run, 1) | {"mean_entropy": math.inf, "aurc": math.nan, "collapsed": True, "nan_steps": 3}
    sweep.source.rows_of[run.run_id] = row
    sweep.publisher.ledger.run_finished(run, 1, row)
    sweep.end()
    shown = sweep.remote.of(run.run_id)
    assert all(math.isfinite(p.value) for p in shown["points"])
    assert shown["tags"]["deyo.not_finite"] == "aurc=nan, mean_entropy=inf"
    assert shown["tags"]["deyo.collapsed"] == "true"


def group_sweep(remote: FakeRemote | None = None, source: FakeSource | None = None, seeds: int = 3) -> Sweep:
    key = naming.group_key(naming.axes(planned(0).config))
    return Sweep(remote, source, granularity="group", sizes={key: seeds}, runs=seeds)


GROUP = naming.group_key(naming.axes(planned(0).config))


def test_a_group_has_its_seeds_inside() -> None:
    sweep = group_sweep()
    for number in range(3):
        sweep.whole(planned(number))
        sweep.work()
    sweep.end()
    shown = sweep.remote.of(GROUP)
    accuracies = [run_row(planned(n), 1, 12)["accuracy"] for n in range(3)]
    assert curve(shown, "by_seed/accuracy") == pytest.approx(dict(enumerate(accuracies)))
    assert curve(shown, "accuracy")[3] == pytest.approx(sum(accuracies) / 3)
    assert curve(shown, "seeds") == {1: 1.0, 2: 2.0, 3: 3.0}
    assert sorted(curve(shown, "stream/running_accuracy/seed-2")) == list(range(12))
    assert shown["status"] == "FINISHED"
    assert "seed" not in shown["params"]
    assert len(sweep.remote.store) == 2


def test_a_group_is_open_until_its_last_seed() -> None:
    sweep = group_sweep()
    sweep.whole(planned(0))
    sweep.work()
    assert sweep.remote.of(GROUP)["status"] == "RUNNING"
    sweep.end("KILLED")
    assert sweep.remote.of(GROUP)["status"] == "KILLED"


def test_a_seed_added_later_joins_its_group() -> None:
    first = group_sweep(seeds=2)
    for number in range(2):
        first.whole(planned(number))
    first.end()
    before = set(first.remote.of(GROUP)["points"])
    second = group_sweep(first.remote, first.source, seeds=3)
    second.whole(planned(2))
    second.end()
    shown = first.remote.of(GROUP)
    assert before < shown["points"]
    assert doubled(shown["points"]) == []
    assert curve(shown, "seeds") == {2: 2.0, 3: 3.0}
    assert shown["status"] == "FINISHED"


def test_only_ten_seeds_of_a_group_get_curves() -> None:
    sweep = group_sweep(seeds=12)
    for number in range(12):
        sweep.whole(planned(number))
    sweep.end()
    shown = sweep.remote.of(GROUP)
    assert sum(p.key.startswith("stream/entropy/") and p.step == 0 for p in shown["points"]) == 10
    assert len(curve(shown, "by_seed/accuracy")) == 12


def test_a_killed_group_is_finished_from_the_store() -> None:
    first = group_sweep(seeds=2)
    first.whole(planned(0))
    first.start(planned(1))
    first.stream(planned(1), 1, range(8))
    first.work()
    second = group_sweep(first.remote, first.source, seeds=2)
    second.whole(planned(1), 2)
    second.end()
    shown = first.remote.of(GROUP)
    assert doubled(shown["points"]) == []
    assert sorted(curve(shown, "stream/running_accuracy/seed-1")) == list(range(12))
    assert shown["status"] == "FINISHED"


def test_what_a_newer_run_replaced_is_marked_stale() -> None:
    sweep, old, new = Sweep(), planned(1), planned(2, seed=1)
    sweep.whole(old)
    sweep.end()
    row = sweep.source.rows_of.pop(old.run_id)  # the store shows the newest run of a config only
    again = Sweep(sweep.remote, sweep.source)
    again.whole(new)
    again.end()
    assert sweep.remote.of(old.run_id)["tags"]["deyo.stale"] == "true"
    assert sweep.remote.of(new.run_id)["tags"]["deyo.stale"] == "false"
    sweep.source.rows_of[old.run_id] = row
    Sweep(sweep.remote, sweep.source).end()
    assert sweep.remote.of(old.run_id)["tags"]["deyo.stale"] == "false"
    sweep.remote.of(old.run_id)["tags"]["deyo.stale"] = "true"
    last = Sweep(sweep.remote, sweep.source)
    last.whole(old, 2)  # a run that counts again with a new attempt
    last.end()
    assert sweep.remote.of(old.run_id)["tags"]["deyo.stale"] == "false"


def test_a_seed_run_anew_with_other_numbers_replaces_its_group() -> None:
    sweep, old, new = group_sweep(seeds=1), planned(1), planned(2, seed=1)
    sweep.whole(old)
    sweep.end()
    del sweep.source.rows_of[old.run_id]
    again = group_sweep(sweep.remote, sweep.source, seeds=1)
    again.whole(new, bonus=2)
    again.end()
    shown = sweep.remote.of(GROUP)
    assert doubled(shown["points"]) == []
    assert curve(shown, "by_seed/accuracy") == {1: pytest.approx(run_row(new, 1, 12, bonus=2)["accuracy"])}


def test_an_unheard_message_is_made_up_for_at_the_end() -> None:
    sweep, run = Sweep(), planned(1)
    sweep.work()
    sweep.source.commit(run, 1)
    sweep.end()
    assert sweep.remote.of(run.run_id)["status"] == "FINISHED"
