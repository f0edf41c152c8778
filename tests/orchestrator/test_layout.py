"""How a host is cut into workers."""

from __future__ import annotations

import pytest

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
