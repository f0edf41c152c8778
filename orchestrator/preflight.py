"""What must be there before a sweep starts: data, weights, MLflow, disk space, a cache, and the resources asked for.

Every check is a line with its verdict; none of them changes anything, and all together take seconds.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deyo.types import ConfigError, DataError
from orchestrator.analyses import NO_NETWORK
from orchestrator.catalog import Catalog
from orchestrator.data_needs import Condition, DataNeeds, data_needs
from orchestrator.folders import existing, obstacle
from orchestrator.gpu_kinds import same_kind
from orchestrator.grouping import pretrain_key
from orchestrator.probe import ClusterError, ClusterFacts, Node, probe, version_mismatch
from orchestrator.shelf import Shelf
from orchestrator.specmodel import Resources, SweepSpec
from orchestrator.store.tree import join, open_tree
from orchestrator.types import Plan, RunConfig

DATA_SECONDS = 5.0
"""Time for looking into data sets; what is left over is for ``prepare``."""
BYTES_PER_RUN, BYTES_PER_BATCH, BYTES_PER_SAMPLE = 8_000, 90, 40
SPARE_BYTES = 200 << 20


@dataclass(frozen=True, kw_only=True)
class Check:
    """``ok`` is None where the answer is open: worth reading, but no reason to stop."""

    name: str
    ok: bool | None
    detail: str


def preflight(spec: SweepSpec, plan: Plan, *, results: str, address: str | None = None) -> list[Check]:
    """All checks of a sweep that would run here, or on the cluster at ``address``.

    With an address, data and weights that this machine lacks are no failure: ``doctor`` looks on the hosts.
    """
    todo = [run.config for run in plan.todo]
    here = not address
    return [
        *data_checks(spec, todo, fatal=here, kept=_kept_checkpoints(plan, join(results, spec.name))),
        *weight_checks(todo, fatal=here),
        mlflow_check(spec, results),
        disk_check(todo, results),
        cache_check(),
        *resource_checks(spec.resources, address),
    ]


def data_checks(spec: SweepSpec, todo: list[RunConfig], *, fatal: bool, kept: Collection[str] = ()) -> Iterator[Check]:
    """One check a benchmark: its files are listed and counted, as far as the time allows.

    ``kept``: checkpoints that need no training images any more (``data_needs``).
    """
    for needs in data_needs(todo, kept):
        check = _attempt(f"data: {needs.benchmark}", lambda n=needs: _look_at_data(spec, n))
        yield check if check.ok or fatal else Check(name=check.name, ok=None, detail=check.detail)


def weight_checks(todo: list[RunConfig], *, fatal: bool) -> Iterator[Check]:
    """One check a network: published weights on this machine, a file, or pretrained by the sweep.

    A network that would have to be pretrained on a benchmark without training images is a failure anywhere.
    """
    catalog = Catalog()
    for model, benchmark in dict.fromkeys((c.model, c.benchmark) for c in todo if c.model != NO_NETWORK):
        if catalog.has_recipe(model, benchmark) and not catalog.can_pretrain(benchmark):
            detail = (
                f"{benchmark} has no training images, and {model} comes without weights. Take a network that is "
                "pretrained, such as torchvision:NAME@WEIGHTS, timm:NAME.TAG or file:PATH.safetensors"
            )
            yield Check(name=f"weights: {model}", ok=False, detail=detail)
            continue
        check = _attempt(f"weights: {model}", lambda m=model, b=benchmark: _look_for_weights(catalog, m, b))
        yield check if check.ok or fatal else Check(name=check.name, ok=None, detail=check.detail)


def mlflow_check(spec: SweepSpec, results: str) -> Check:
    """Whether the tracking store can be used. One that is down is no reason to stop: results wait for it."""
    from orchestrator.tracking.options import TrackingOptions, redact, resolve_uri
    from orchestrator.tracking.preflight import check_tracking

    try:
        uri = resolve_uri(TrackingOptions.from_spec(spec.mlflow.model_dump()).uri, results)
    except ConfigError as error:
        return Check(name="mlflow", ok=False, detail=str(error))
    if uri is None:
        return Check(name="mlflow", ok=True, detail="off (results go to Parquet alone)")
    if problem := check_tracking(uri):
        return Check(name="mlflow", ok=None, detail=f"{problem}; the sweep runs and publishes it later")
    return Check(name="mlflow", ok=True, detail=redact(uri))


def disk_check(todo: list[RunConfig], results: str) -> Check:
    """Room for the results, by the number of runs, batches and samples."""
    if "://" in results:
        return Check(name="disk", ok=None, detail=f"{results}: an object store, its space is not checked")
    if problem := obstacle(Path(results)):
        return Check(name="disk", ok=False, detail=f"{problem}; --results names where results are kept")
    need = sum(_bytes(config) for config in todo) + SPARE_BYTES
    folder = existing(Path(results))
    free = shutil.disk_usage(folder).free
    detail = f"{free / 1e9:.1f} GB free at {folder}, about {need / 1e9:.2f} GB needed"
    if free < need:
        return Check(name="disk", ok=False, detail=f"{detail}; free some, or choose another --results")
    return Check(name="disk", ok=True, detail=detail)


def cache_check() -> Check:
    """Whether this machine can keep prepared data and checkpoints."""
    from deyo.benchmarks import default_cache

    folder = default_cache()
    if problem := obstacle(folder):
        detail = f"{problem}; DEYO_CACHE names the folder for prepared data and checkpoints"
        return Check(name="cache", ok=False, detail=detail)
    free = shutil.disk_usage(existing(folder)).free
    return Check(name="cache", ok=True, detail=f"{free / 1e9:.1f} GB free at {folder}")


def resource_checks(resources: Resources, address: str | None) -> list[Check]:
    """Whether this machine, or the cluster, has what the spec's ``resources`` ask for."""
    try:
        facts = probe(address) if address else local_facts()
    except ClusterError as error:
        return [Check(name="cluster", ok=False, detail=str(error))]
    checks = []
    if address and (mismatch := version_mismatch(facts)):
        checks.append(Check(name="versions", ok=False, detail=mismatch))
    return [*checks, fit_check(resources, facts)]


def fit_check(resources: Resources, facts: ClusterFacts) -> Check:
    """Whether the cluster has what is asked for. One that grows on demand may get it: a note, if it will be asked."""
    problem = shortage(resources, facts)
    if not problem:
        detail = f"{len(facts.nodes)} host(s), {facts.gpus} GPU(s); the biggest is {describe(facts.biggest)}"
        return Check(name="resources", ok=True, detail=detail)
    if not facts.grows:
        return Check(name="resources", ok=False, detail=problem)
    if resources.gpus or resources.workers:
        return Check(name="resources", ok=None, detail=f"now: {problem}. The autoscaler is asked for the rest")
    how = "The cluster grows on demand for sweeps that say how far: set resources.gpus or resources.workers"
    return Check(name="resources", ok=False, detail=f"{problem}. {how}")


def shortage(resources: Resources, facts: ClusterFacts) -> str | None:
    """What the spec asks for and the hosts that are there now cannot give, or None."""
    nodes = facts.nodes
    if resources.gpu_type:
        kinds = sorted({node.gpu_type for node in nodes if node.gpu_type})
        nodes = tuple(node for node in nodes if same_kind(resources.gpu_type, node.gpu_type))
        if not nodes:
            return f"resources.gpu_type is {resources.gpu_type!r}; {facts.address} has {', '.join(kinds) or 'no GPU'}"
    gpus = int(sum(node.gpus for node in nodes))
    big = max(nodes, key=lambda node: (node.gpus, node.cpus))
    kind = f" of type {resources.gpu_type}" if resources.gpu_type else ""
    if resources.gpus and resources.gpus > gpus:
        advice = "" if facts.grows else ". Lower it, or leave it out to use what there is"
        return (
            f"resources.gpus is {resources.gpus}, but {facts.address} has {gpus}{kind} in all; "
            f"the biggest node is {describe(big)}{advice}"
        )
    need = (resources.memory_gb or 0) * 1e9
    if need > max(node.memory_bytes for node in nodes):
        return f"resources.memory_gb is {resources.memory_gb:g}, more than any node has; the biggest is {describe(big)}"
    if resources.cpus_per_worker > max(node.cpus for node in nodes):
        return f"resources.cpus_per_worker is {resources.cpus_per_worker:g}; the biggest node is {describe(big)}"
    return None


def local_facts() -> ClusterFacts:
    """This machine as a cluster of one."""
    import platform

    import torch

    from orchestrator.session import fake_gpus

    real = torch.cuda.device_count()
    gpus = fake_gpus() or real
    node = Node(
        name=platform.node(),
        address="127.0.0.1",
        cpus=float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1),
        gpus=float(gpus),
        gpu_type=torch.cuda.get_device_name(0) if real else "",
        memory_bytes=float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        head=True,
    )
    return ClusterFacts(address="this machine", ray_version="", python_version="", nodes=(node,))


def describe(node: Node) -> str:
    """A node in words."""
    kind = f" ({node.gpu_type})" if node.gpu_type else ""
    return f"{node.name} with {node.gpus:g} GPU(s){kind}, {node.cpus:g} CPU core(s), {node.memory_bytes / 1e9:.0f} GB"


def _attempt(name: str, look: Callable[[], str | Check]) -> Check:
    try:
        found = look()
    except (ConfigError, DataError, OSError) as error:
        return Check(name=name, ok=False, detail=str(error))
    return found if isinstance(found, Check) else Check(name=name, ok=True, detail=found)


def _kept_checkpoints(plan: Plan, folder: str) -> set[str]:
    """Those that the sweep began with and goes on from, by ``pretrain_key``."""
    runs = {pretrain_key(run.config): run for run in plan.todo if run.config.pretrain_seed is not None}
    if not runs:
        return set()
    shelf = Shelf(open_tree(folder))
    return {key for key, run in runs.items() if shelf.has(key, run.stamps)}


def _look_at_data(spec: SweepSpec, needs: DataNeeds) -> str:
    from deyo.benchmarks import open_benchmark
    from deyo.corruptions.photographs import PHOTOGRAPHIC

    benchmark: Any = open_benchmark(needs.benchmark, roots=spec.data, **needs.options)
    conditions, further = sorted(needs.conditions, key=lambda c: c[0] != PHOTOGRAPHIC), needs.further(benchmark)
    if not hasattr(benchmark, "recipe"):  # of an installed package: only opening it shows
        benchmark.images(*conditions[0])
        for look in further.values():
            look()
        return "opened"
    benchmark.build, benchmark.skip_bad = False, True  # unreadable images are for `prepare` to find
    if is_bundled(needs.benchmark, needs.options):
        _open_in_time(benchmark, [condition for condition in conditions if condition[0] == PHOTOGRAPHIC])
        return "comes with the package"
    done = _open_in_time(benchmark, conditions)
    for look in further.values():
        look()
    where = _where(benchmark, [*further])
    if done < len(conditions):
        return f"{done} of {len(conditions)} conditions looked at{where}; `deyo-sweep prepare` checks all"
    return f"{len(conditions)} condition(s){where}"


def _open_in_time(benchmark: Any, conditions: list[Condition]) -> int:
    """How many of ``conditions`` could be opened in time: files are listed, or found prepared."""
    end = time.monotonic() + DATA_SECONDS
    for done, condition in enumerate(conditions, start=1):
        benchmark.images(*condition)
        if time.monotonic() > end:
            return done
    return len(conditions)


def _where(benchmark: Any, further: list[str]) -> str:
    root: Path | None = benchmark.root
    if root is None or not root.is_dir():
        return ", ".join(("", *further, "prepared earlier"))
    made = f" made of {len(benchmark.images_clean()):,} images" if benchmark.info.generated else ""
    return ", ".join((made, *further, f"at {root}"))


def is_bundled(benchmark: str, options: Mapping[str, Any]) -> bool:
    """Whether the benchmark's images come with an installed package: it then takes no root."""
    from deyo.benchmarks import benchmark_info, open_benchmark

    if benchmark_info(benchmark, **options).bundled:
        return True
    return getattr(open_benchmark(benchmark, root=os.devnull, **options), "root", None) is None


def _look_for_weights(catalog: Catalog, model: str, benchmark: str) -> str | Check:
    name = f"weights: {model}"
    if catalog.has_recipe(model, benchmark):
        return Check(name=name, ok=True, detail=f"pretrained by the sweep on {benchmark} (or taken from its cache)")
    identity = catalog.weights_id(model, benchmark)  # raises DataError for a file that is not there
    where = catalog.weights_here(model)
    if where is None:
        return Check(name=name, ok=None, detail=f"{identity}: not on this machine yet; fetched at first use")
    return f"{identity}, {where}"


def _bytes(config: RunConfig) -> int:
    from orchestrator.cost import IMAGES

    images = config.max_images or IMAGES.get(config.benchmark, 2_000) * (len(config.corruptions) or 1)
    samples = images * BYTES_PER_SAMPLE if config.record_samples else 0
    return BYTES_PER_RUN + images // config.batch_size * BYTES_PER_BATCH + samples
