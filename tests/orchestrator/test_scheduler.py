"""What goes where: order, affinity, groups, GPU kinds, nodes to avoid."""

from __future__ import annotations

import itertools

import pytest
from exec_fakes import job, slot
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.scheduler import Scheduler
from orchestrator.types import PretrainTask, Slot
from orchestrator.widths import Widths


def drain(scheduler: Scheduler) -> list[list[int]]:
    """Every group's seeds, in order; each slot finishes at once."""
    groups = []
    while (found := scheduler.next()) is not None:
        groups.append([j.run.config.seed for j in found.jobs])
        scheduler.finished(found.slot.slot_id)
    return groups


def test_longest_runs_start_first() -> None:
    scheduler = Scheduler()
    for number, cost in enumerate((1.0, 100.0, 10.0)):
        scheduler.add(job(number, cost=cost))
    scheduler.join(slot())
    assert drain(scheduler) == [[1], [2], [0]]


def test_priority_comes_before_length() -> None:
    scheduler = Scheduler()
    scheduler.add(job(0, cost=100.0))
    scheduler.add(job(1, cost=1.0, priority=5))
    scheduler.join(slot())
    assert drain(scheduler) == [[1], [0]]


def test_a_slot_keeps_its_network_and_images() -> None:
    """ray#15498's shape: 40 runs alternate between two networks; one slot changes network once."""
    scheduler = Scheduler()
    for number in range(40):
        scheduler.add(
            job(
                number,
                model=("resnet50-gn", "vit-base-ln")[number % 2],
                corruption=("contrast", "fog")[number // 2 % 2],
            )
        )
    scheduler.join(slot())
    seen = []
    while (found := scheduler.next()) is not None:
        c = found.jobs[0].run.config
        seen.append((c.model, c.corruption))
        scheduler.finished(found.slot.slot_id)
    changes = [(a, b) for a, b in itertools.pairwise(seen) if a != b]
    assert len(seen) == 40
    assert sum(a[0] != b[0] for a, b in changes) == 1
    assert len(changes) == 3


def test_two_slots_take_different_networks() -> None:
    scheduler = Scheduler()
    for number in range(8):
        scheduler.add(job(number, model=("resnet50-gn", "vit-base-ln")[number % 2]))
    scheduler.join(slot("a"))
    scheduler.join(slot("b"))
    first, second = scheduler.next(), scheduler.next()
    assert first is not None
    assert second is not None
    assert {a.jobs[0].network for a in (first, second)} == {"resnet50-gn", "vit-base-ln"}


def test_groups_hold_compatible_runs_up_to_the_limit() -> None:
    scheduler = Scheduler(group_limit=lambda config, slot: 4)
    for number in range(10):
        scheduler.add(job(number, method="tent" if number < 6 else "deyo"))
    scheduler.join(slot())
    groups = drain(scheduler)
    assert sorted(map(len, groups)) == [3, 3, 4]  # of the same size, as near the limit as that goes
    assert all({n < 6 for n in g} in ({True}, {False}) for g in groups)


def test_settings_that_shape_the_computation_keep_runs_apart() -> None:
    scheduler = Scheduler(group_limit=lambda config, slot: 8)
    scheduler.add(job(0, settings={"patches": 4, "threshold": 0.2, "filter": True}))
    scheduler.add(job(1, settings={"patches": 4, "threshold": 0.5, "filter": False}))
    scheduler.add(job(2, settings={"patches": 6, "threshold": 0.2, "filter": True}))
    scheduler.join(slot())
    assert sorted(map(sorted, drain(scheduler))) == [[0, 1], [2]]


def test_a_width_once_decided_is_kept_whatever_the_number_of_runs_and_slots() -> None:
    widths = Widths()
    for runs, slots, sizes in ((12, 1, [4, 4, 4]), (2, 1, [2]), (9, 3, [4, 4, 1])):
        scheduler = Scheduler(group_limit=lambda config, slot: 4, widths=widths)
        for number in range(runs):
            scheduler.add(job(number))
        for name in range(slots):
            scheduler.join(slot(f"s{name}"))
        groups = []
        while (found := scheduler.next()) is not None:
            groups.append(found)
            scheduler.finished(found.slot.slot_id)
        assert [len(g.jobs) for g in groups] == sizes
        assert {g.width for g in groups} == {4}


def test_each_kind_of_card_has_its_own_width() -> None:
    limits = {"small": 2, "large": 8}
    scheduler = Scheduler(group_limit=lambda config, slot: limits[slot.gpu_name])
    for number in range(32):
        scheduler.add(job(number))
    scheduler.join(slot("a", gpu="small"))
    scheduler.join(slot("b", gpu="large"))
    found = [scheduler.next(), scheduler.next()]
    assert {a.slot.gpu_name: a.width for a in found if a} == limits


@pytest.mark.parametrize("slots", [1, 2, 8])
def test_a_size_asked_for_is_the_same_on_any_number_of_slots(slots: int) -> None:
    jobs = [job(number) for number in range(8)]
    scheduler = Scheduler(
        group_limit=lambda config, slot: 4, widths=Widths(planned={jobs[0].group: 8}, asked=4), expected=lambda: slots
    )
    for one in jobs:
        scheduler.add(one)
    scheduler.join(slot())
    first = scheduler.next()
    assert first is not None
    assert first.width == 4


def test_few_runs_left_of_a_plan_go_at_the_width_of_the_whole() -> None:
    one = job(0)
    scheduler = Scheduler(group_limit=lambda config, slot: 16, widths=Widths(planned={one.group: 400}))
    scheduler.add(one)
    scheduler.join(slot())
    first = scheduler.next()
    assert first is not None
    assert (len(first.jobs), first.width) == (1, 16)


def test_a_card_that_a_probe_could_not_tell_of_is_no_other_card() -> None:
    scheduler = Scheduler(group_limit=lambda config, slot: 8 if slot.gpu_name == "H100" else None)
    for number in range(16):
        scheduler.add(job(number))
    scheduler.cannot_tell(job(0), slot("a", gpu="A100"))
    for name, gpu in (("a", "A100"), ("h", "H100")):
        scheduler.join(slot(name, gpu=gpu))
    found = [scheduler.next(), scheduler.next()]
    assert {a.slot.gpu_name: a.width for a in found if a} == {"A100": 1, "H100": 8}


def test_memory_not_measured_yet_asks_for_a_probe_of_one_run() -> None:
    known: list[int] = []
    scheduler = Scheduler(group_limit=lambda config, slot: known[0] if known else None)
    for number in range(4):
        scheduler.add(job(number))
    scheduler.join(slot())
    first = scheduler.next()
    assert first is not None
    assert (first.probe, len(first.jobs)) == (True, 1)
    scheduler.finished("s0")
    scheduler.add(first.jobs[0])
    known.append(4)
    second = scheduler.next()
    assert second is not None
    assert (second.probe, len(second.jobs), second.width) == (False, 4, 4)


def test_slots_that_are_about_to_join_count_for_an_even_share() -> None:
    scheduler = Scheduler(group_limit=lambda config, slot: 64, expected=lambda: 4)
    for number in range(40):
        scheduler.add(job(number))
    scheduler.join(slot())
    first = scheduler.next()
    assert first is not None
    assert first.width == 10


def test_an_even_share_for_every_slot() -> None:
    scheduler = Scheduler(group_limit=lambda config, slot: 64)
    for number in range(45):
        scheduler.add(job(number))
    for name in range(8):
        scheduler.join(slot(f"s{name}"))
    sizes = []
    while (found := scheduler.next()) is not None:
        sizes.append(len(found.jobs))
    assert len(sizes) == 8
    assert max(sizes) == 6
    assert sum(sizes) == 45


@pytest.mark.parametrize("gpu", ["H100", "h100", "NVIDIA H100 80GB HBM3", "H100 80GB"])
def test_runs_for_one_kind_of_gpu_wait_for_it(gpu: str) -> None:
    scheduler = Scheduler()
    scheduler.add(job(0, gpu=gpu))
    scheduler.add(job(1))
    scheduler.join(slot("a", gpu="NVIDIA A100-SXM4-80GB"))
    assert drain(scheduler) == [[1]]
    scheduler.join(slot("h", gpu="NVIDIA H100 80GB HBM3"))
    assert drain(scheduler) == [[0]]


def test_the_special_slot_does_the_special_runs_first() -> None:
    scheduler = Scheduler()
    scheduler.add(job(0))
    scheduler.add(job(1, gpu="H100"))
    scheduler.join(slot("h", gpu="NVIDIA H100 80GB HBM3"))
    assert drain(scheduler) == [[1], [0]]


def test_a_retried_run_goes_elsewhere_if_there_is_elsewhere() -> None:
    retried = job(0)
    retried.avoid = frozenset({"n0"})
    scheduler = Scheduler()
    scheduler.add(retried)
    scheduler.join(slot("a", node="n0"))
    scheduler.join(slot("b", node="n1"))
    found = scheduler.next()
    assert found is not None
    assert found.slot.node == "n1"


def test_a_retried_run_stays_if_there_is_no_other_node() -> None:
    retried = job(0)
    retried.avoid = frozenset({"n0"})
    scheduler = Scheduler()
    scheduler.add(retried)
    scheduler.join(slot("a", node="n0"))
    assert drain(scheduler) == [[0]]


def test_pretraining_goes_first_and_releases_its_runs() -> None:
    scheduler = Scheduler()
    waiting = job(0, pretrain_seed=3)
    waiting.needs = waiting.network
    scheduler.add(waiting)
    scheduler.add_pretraining(PretrainTask(task_id="t", key=waiting.network, model="m", benchmark="b", seed=3), cost=1)
    scheduler.join(slot())
    first = scheduler.next()
    assert first is not None
    assert first.pretrain is not None
    assert scheduler.waiting == 1
    scheduler.ready(waiting.network)
    scheduler.finished("s0")
    assert drain(scheduler) == [[0]]


def test_runs_of_a_stopped_kind_are_set_aside() -> None:
    scheduler = Scheduler()
    for number in range(4):
        scheduler.add(job(number, method="tent" if number % 2 else "deyo"))
    scheduler.stop(job(0, method="tent").kind)
    scheduler.join(slot())
    assert sorted(drain(scheduler)) == [[0], [2]]
    assert sorted(j.run.config.seed for j in scheduler.held) == [1, 3]
    assert not scheduler.pending


def test_a_slot_that_leaves_gets_nothing() -> None:
    scheduler = Scheduler()
    scheduler.add(job(0))
    scheduler.join(slot("a"))
    scheduler.leave("a")
    assert scheduler.next() is None
    assert scheduler.slots == 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0.01, 1000),
            st.sampled_from(["a", "b", "c"]),
            st.sampled_from(["x", "y"]),
            st.integers(-1, 1),
            st.sampled_from(["", "H100"]),
        ),
        max_size=40,
    ),
    st.integers(1, 5),
    st.integers(1, 4),
)
def test_every_run_is_assigned_exactly_once(
    runs: list[tuple[float, str, str, int, str]], slots: int, limit: int
) -> None:
    scheduler = Scheduler(group_limit=lambda config, slot: limit)
    for number, (cost, model, corruption, priority, gpu) in enumerate(runs):
        scheduler.add(job(number, cost=cost, model=model, corruption=corruption, priority=priority, gpu=gpu))
    for name in range(slots):
        scheduler.join(slot(f"s{name}", gpu="NVIDIA H100" if name == 0 else ""))
    seen = [n for group in drain(scheduler) for n in group]
    assert sorted(seen) == list(range(len(runs)))
    assert scheduler.pending == 0
    assert scheduler.running == 0
    assert scheduler.idle == slots


def ahead_of(scheduler: Scheduler, where: Slot) -> list[str]:
    return [j.run.config.corruption for j in scheduler.upcoming(where)]


def test_upcoming_names_image_sets_that_the_host_has_not_met_soonest_first() -> None:
    scheduler = Scheduler(group_limit=lambda config, slot: 2)
    here, there = slot("s0", node="n0"), slot("s1", node="n1")
    for number, corruption in enumerate(("fog", "fog", "snow", "frost", "fog", "contrast", "jpeg")):
        scheduler.add(job(number, corruption=corruption))
    scheduler.add(job(9, corruption="pixelate", method="eata", cost=100.0))
    scheduler.join(here)
    assert scheduler.next().jobs[0].run.config.corruption == "pixelate"  # the longest
    assert ahead_of(scheduler, here) == ["fog", "snow", "frost"]
    scheduler.finished("s0")
    assert [j.run.config.corruption for j in scheduler.next().jobs] == ["fog", "fog"]
    assert ahead_of(scheduler, here) == ["snow", "frost", "contrast"]
    scheduler.join(there)
    assert [j.run.config.corruption for j in scheduler.next().jobs] == ["snow", "frost"]
    assert ahead_of(scheduler, here) == ["contrast", "jpeg"]
    assert ahead_of(scheduler, there) == ["contrast", "jpeg", "fog"]


def test_upcoming_leaves_out_kinds_that_were_stopped() -> None:
    scheduler = Scheduler()
    scheduler.join(slot())
    for number, (corruption, method) in enumerate((("fog", "tent"), ("snow", "eata"), ("frost", "tent"))):
        scheduler.add(job(number, corruption=corruption, method=method))
    scheduler.next()
    assert ahead_of(scheduler, slot()) == ["frost", "snow"]
    scheduler.stop(job(1, method="eata").kind)
    assert ahead_of(scheduler, slot()) == ["frost"]


def test_clean_source_images_count_as_a_set() -> None:
    scheduler = Scheduler()
    scheduler.join(slot())
    measured = {"learning_rate": 0.001, "fisher_strength": 2000.0}
    for number, settings_of in enumerate(({}, measured, measured)):
        scheduler.add(job(number, corruption="fog", method="eata" if settings_of else "tent", settings=settings_of))
    assert scheduler.next().jobs[0].run.config.method == "eata"
    assert ahead_of(scheduler, slot()) == []
    other = Scheduler()
    other.join(slot())
    other.add(job(0, corruption="fog", settings={}, cost=9.0))
    other.add(job(1, corruption="fog", method="eata", settings=measured))
    other.next()
    assert [j.run.config.method for j in other.upcoming(slot())] == ["eata"]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.sampled_from([1.0, 5.0])), max_size=30))
@settings(max_examples=30, deadline=None)
def test_asking_what_comes_changes_nothing(drawn: list[tuple[int, int, float]]) -> None:
    def groups(ask: bool) -> list[list[int]]:
        scheduler = Scheduler(group_limit=lambda config, slot: 3)
        for number, (corruption, method, cost) in enumerate(drawn):
            scheduler.add(job(number, corruption=f"c{corruption}", method=f"m{method}", cost=cost))
        for name in ("s0", "s1"):
            scheduler.join(slot(name))
        found = []
        while (assignment := scheduler.next()) is not None:
            if ask:
                scheduler.upcoming(assignment.slot)
            found.append([j.run.config.seed for j in assignment.jobs])
            scheduler.finished(assignment.slot.slot_id)
        return found

    assert groups(ask=True) == groups(ask=False)
