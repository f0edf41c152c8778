"""Keys of runs that go together, and group sizes from measured memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from exec_fakes import config, slot

from orchestrator.grouping import GroupSizer, MemoryModel, group_key, memory_key, network_key, pretrain_key

GIB = 1 << 30


@pytest.mark.parametrize(
    "change",
    [
        {"method": "deyo"},
        {"model": "vit-base-ln"},
        {"batch_size": 1},
        {"precision": "bf16"},
        {"max_images": 100},
        {"pretrain_seed": 1},
        {"scenario": "biased"},
        {"benchmark_options": {"split": "test"}},
        {"corruptions": ("contrast", "fog")},
    ],
)
def test_what_keeps_runs_apart(change: dict) -> None:
    assert group_key(config()) != group_key(config(**change))


@pytest.mark.parametrize(
    "change", [{"seed": 5}, {"corruption": "fog"}, {"severity": 1}, {"settings": {"learning_rate": 0.1}}]
)
def test_what_runs_of_a_group_may_differ_in(change: dict) -> None:
    assert group_key(config()) == group_key(config(**change))


def test_networks_pretrained_differently_are_different_networks() -> None:
    one, other = config(pretrain_seed=0), config(pretrain_seed=1)
    assert network_key(one) != network_key(other)
    assert pretrain_key(one) != pretrain_key(config(pretrain_seed=0, benchmark_options={"a": 1}))
    assert network_key(config()) == "resnet50-gn"


def test_memory_grows_with_the_group_as_measured() -> None:
    memory = MemoryModel(share=0.5)
    assert memory.fitting("k", "H100", 80 * GIB) is None
    memory.measured("k", 1, 5 * GIB)
    assert memory.fitting("k", "H100", 80 * GIB) == 8  # the base counts as part of each run
    memory.measured("k", 8, 19 * GIB)  # 3 GiB + 2 GiB for each
    assert memory.fitting("k", "H100", 80 * GIB) == 18


def test_a_group_that_did_not_fit_is_a_ceiling_for_its_card_alone() -> None:
    memory = MemoryModel(share=0.5)
    memory.measured("k", 1, 1 * GIB)
    memory.too_large("k", "small", 8)
    assert memory.fitting("k", "small", 80 * GIB) == 4
    assert memory.fitting("k", "large", 80 * GIB) == 40
    memory.too_large("k", "small", 4)
    assert memory.fitting("k", "small", 80 * GIB) == 2


def test_measurements_outlive_the_sweep(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "memory.json"
    memory = MemoryModel(path=path)
    memory.measured("k", 4, 7)
    memory.save()
    assert MemoryModel(path=path).peaks == {"k": {4: 7}}
    path.write_text("{torn")
    assert MemoryModel(path=path).peaks == {}


def test_sizes_of_groups() -> None:
    memory = MemoryModel(share=0.5)
    sizer = GroupSizer(memory=memory, lockstep=lambda method: method != "alone")
    gpu = slot("g", gpu="NVIDIA H100", memory=80 * GIB)
    assert sizer.limit(config(method="alone"), gpu) == 1
    assert sizer.limit(config(batch_size=1), gpu) is None  # nothing measured: a probe first
    memory.measured(memory_key(config(batch_size=1), 224), 1, GIB // 4)
    assert sizer.limit(config(batch_size=1), gpu) == 160
    memory.measured(memory_key(config(batch_size=64), 224), 1, GIB)
    assert sizer.limit(config(batch_size=64), gpu) == 4  # 256 images in a forward
    small = GroupSizer(memory=memory, lockstep=lambda method: True, side=lambda config: 32)
    assert small.limit(config(batch_size=64), gpu) is None  # smaller images take less memory
    memory.measured(memory_key(config(batch_size=64), 32), 1, GIB)
    assert small.limit(config(batch_size=64), gpu) == 28  # 7 times as many of 32×32
    assert sizer.limit(config(batch_size=1), slot()) == 16
    assert sizer.limit(config(batch_size=64), slot()) == 1
    assert GroupSizer(memory=memory, lockstep=lambda m: True, fixed=3).limit(config(), slot()) == 3
