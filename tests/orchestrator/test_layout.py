"""How a host is cut into workers."""

from __future__ import annotations

import pytest

from orchestrator.executors.growth import GROW_SECONDS, Growth, words
from orchestrator.executors.layout import WorkerLayout


@pytest.mark.parametrize("cores", [0, 1, 2, 3, 16])
@pytest.mark.parametrize("gpus", [1, 2, 3, 8])
@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.25])
def test_all_gpu_workers_of_a_host_find_cores(cores: int, gpus: int, fraction: float) -> None:
    layout = WorkerLayout(device="gpu", gpu_fraction=fraction)
    host = {"CPU": float(cores), "GPU": float(gpus)}
    workers = layout.on_node(host, {}, True)
    assert workers == gpus / fraction
    units = round(layout.cores_beside_gpu(host) * 10_000)  # Ray counts in these
    assert units * workers <= cores * 10_000


def test_a_gpu_worker_takes_no_more_cores_than_asked_for() -> None:
    assert WorkerLayout(device="gpu", cpus_per_worker=2).cores_beside_gpu({"CPU": 64, "GPU": 4}) == 2
    assert WorkerLayout(device="gpu", cpus_per_worker=2).cores_beside_gpu({"CPU": 4, "GPU": 4}) == 1


@pytest.mark.parametrize(
    ("gpu_type", "label", "workers"),
    [
        ("H100", "H100", 4),
        ("h100", "H100", 4),
        ("NVIDIA H100 80GB HBM3", "H100", 4),
        ("H100", "nvidia-h100-80gb", 4),
        ("H100", "", 4),
        ("A100", "H100", 0),
        ("A10", "A100", 0),
    ],
)
def test_hosts_with_another_kind_of_gpu_get_no_workers(gpu_type: str, label: str, workers: int) -> None:
    labels = {"ray.io/accelerator-type": label} if label else {}
    assert WorkerLayout(device="gpu", gpu_type=gpu_type).on_node({"CPU": 8, "GPU": 4}, labels, True) == workers


RAYS = ["A10G", "A100", "A100-40G", "H100", "H200", "L4", "RTX-PRO-6000"]


@pytest.mark.parametrize(
    ("layout", "bundle", "said"),
    [
        (WorkerLayout(), {"GPU": 1.0, "CPU": 1.0}, "1 GPU and 1 CPU core"),
        (WorkerLayout(device="cpu", cpus_per_worker=4), {"CPU": 4}, "4 CPU cores"),
        (
            WorkerLayout(device="gpu", gpu_type="NVIDIA H100 80GB HBM3", gpu_fraction=0.5, memory_gb=16),
            {"GPU": 0.5, "accelerator_type:H100": 0.001, "CPU": 1.0, "memory": 16 * 2**30},
            "0.5 GPU of type H100, 1 CPU core and 16 GB",
        ),
    ],
)
def test_an_autoscaler_is_asked_for_all_that_a_worker_takes(layout: WorkerLayout, bundle: dict, said: str) -> None:
    assert layout.bundle(RAYS) == bundle
    assert words(bundle) == said


@pytest.mark.parametrize(
    ("gpu_type", "name"),
    [
        ("h100", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("A100-40G", "A100-40G"),
        ("NVIDIA GeForce RTX 5090", "GeForce-RTX-5090"),
        ("NVIDIA L40S", "L40S"),
    ],
)
def test_a_kind_of_gpu_is_asked_for_by_rays_name_of_it(gpu_type: str, name: str) -> None:
    assert f"accelerator_type:{name}" in WorkerLayout(device="gpu", gpu_type=gpu_type).bundle(RAYS)


def test_a_growing_cluster_is_waited_for_as_long_as_hosts_come() -> None:
    growth = Growth(workers=3, bundle={"CPU": 1}, since=0.0)
    assert growth.asked == "the autoscaler was asked for 3 workers, each with 1 CPU core"
    assert growth.waits(GROW_SECONDS)
    growth.see(1, GROW_SECONDS + 1)
    assert growth.waits(2 * GROW_SECONDS), "one came: the hour begins anew"
    assert not growth.waits(2 * GROW_SECONDS + 2)
    assert "60 min ago" in growth.trouble(2 * GROW_SECONDS + 2)
    growth.see(3, 2 * GROW_SECONDS + 3)
    assert not growth.waits(2 * GROW_SECONDS + 4), "all are there"
    assert growth.trouble(9 * GROW_SECONDS) == ""
    growth.see(0, 9 * GROW_SECONDS)
    assert growth.waits(10 * GROW_SECONDS), "all are lost: others may come"


def test_a_kind_of_gpu_that_never_comes_is_named_as_its_node_types_have_to() -> None:
    bundle = WorkerLayout(device="gpu", gpu_type="h100").bundle(RAYS)
    told = Growth(workers=1, bundle=bundle, since=0.0).trouble(GROW_SECONDS + 1)
    assert told.startswith("the autoscaler was asked for 1 worker with 1 GPU of type H100 and 1 CPU core 60 min ago")
    assert told.endswith("with the resource accelerator_type:H100?")


def test_a_cluster_that_cannot_grow_is_not_waited_for() -> None:
    growth = Growth(workers=3, bundle={"CPU": 1}, since=0.0, able=False)
    assert not growth.waits(1.0)
    assert growth.trouble(9 * GROW_SECONDS) == ""
