"""Is this machine, or that cluster, fit for sweeps? One line a question, with what to do where the answer is no."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from orchestrator.analyses import SYNTHETIC
from orchestrator.hosts import PACKAGES, PHOTOGRAPHS, ask_hosts
from orchestrator.preflight import Check, cache_check, data_checks, describe, is_bundled, mlflow_check, resource_checks
from orchestrator.probe import ClusterError, ClusterFacts, only_here, probe, token_in_use, version_mismatch
from orchestrator.specmodel import Resources, SweepSpec
from orchestrator.types import RunConfig

UNRESOLVABLE_MLFLOW = "3.18.0"
LIBRARIES = ("torch", "torchvision", "timm", "ray", "mlflow", "pyarrow", "deyo-sweep")


def examine(spec: SweepSpec | None, runs: list[RunConfig], *, results: str, address: str | None) -> Iterator[Check]:
    """All checks, each as soon as its answer is known. ``runs`` are those of ``spec``."""
    yield versions_check()
    yield token_check(needed=address is not None)
    if address:
        yield from cluster_checks(address, spec, runs)
    else:
        yield from resource_checks(spec.resources if spec else Resources(), None)
        yield cache_check()
        if spec:
            yield from data_checks(spec, runs, fatal=True)
    if spec:
        yield mlflow_check(spec, results)


def versions_check() -> Check:
    """Python and the libraries of this machine."""
    found = {name: _version(name) for name in LIBRARIES}
    missing = [name for name, number in found.items() if not number and name != "deyo-sweep"]
    listed = ", ".join(f"{name} {number}" for name, number in found.items() if number)
    detail = f"Python {platform.python_version()}, {listed}"
    if missing:
        return Check(name="versions", ok=False, detail=f"{detail}; missing: pip install {' '.join(missing)}")
    if found["mlflow"] == UNRESOLVABLE_MLFLOW:
        return Check(name="versions", ok=False, detail=f"{detail}; pip install 'mlflow!=3.18.0'")
    return Check(name="versions", ok=True, detail=detail)


def token_check(*, needed: bool) -> Check:
    """Ray's authentication token: where it comes from, and that nobody else can read it."""
    token = token_in_use()
    detail = f"RAY_AUTH_MODE is {token.mode!r}, token from {token.source} ({'present' if token.present else 'missing'})"
    mode = token.file_mode
    if mode is not None and mode & 0o077:
        return Check(
            name="token", ok=False, detail=f"{detail}, readable by others ({mode:04o}): chmod 600 {token.path}"
        )
    if token.present and token.mode != "token":
        return Check(name="token", ok=False if needed else None, detail=f"{detail}: export RAY_AUTH_MODE=token")
    if not token.present:
        how = "a sweep on this machine makes its own" if not needed else "copy the head's token there, chmod 600"
        return Check(name="token", ok=None, detail=f"{detail}; {how}")
    return Check(name="token", ok=True, detail=f"{detail}{'' if mode is None else f', mode {mode:04o}'}")


def cluster_checks(address: str, spec: SweepSpec | None, runs: list[RunConfig]) -> Iterator[Check]:
    """Reachability and token within seconds, then versions, openness, resources, and each host's view."""
    try:
        facts = probe(address)
    except ClusterError as error:
        yield Check(name="cluster", ok=False, detail=str(error))
        return
    yield Check(name="cluster", ok=True, detail=f"{address}: Ray {facts.ray_version}, {len(facts.nodes)} host(s)")
    if mismatch := version_mismatch(facts):
        yield Check(name="cluster versions", ok=False, detail=mismatch)
    yield openness_check(address, facts)
    for node in facts.nodes:
        yield Check(name="host", ok=True, detail=describe(node))
    if spec:
        yield from (check for check in resource_checks(spec.resources, address) if check.name == "resources")
    try:
        answers = ask_hosts(address, wanted_data(spec, runs) if spec else ())
    except ClusterError as error:
        yield Check(name="hosts", ok=False, detail=str(error))
        return
    yield from host_checks(answers, frost=makes_frost(runs))


def openness_check(address: str, facts: ClusterFacts) -> Check:
    """Whether the cluster serves those who have no token."""
    try:
        probe(address, authenticated=False)
    except ClusterError:
        return Check(name="authentication", ok=True, detail="the cluster asks for a token")
    detail = "the cluster serves anyone who can reach it"
    if only_here(address, facts):
        return Check(name="authentication", ok=None, detail=f"{detail}; it listens on loopback")
    fix = "start its hosts with RAY_AUTH_MODE=token (`ray get-auth-token --generate`)"
    return Check(name="authentication", ok=False, detail=f"{detail}; {fix}")


def makes_frost(runs: list[RunConfig]) -> bool:
    """Whether workers make images with frost, which takes photographs."""
    from deyo.benchmarks import benchmark_info
    from deyo.corruptions.photographs import PHOTOGRAPHIC

    with_it = {c.benchmark: c.benchmark_options for c in runs if PHOTOGRAPHIC in (c.corruption, *c.corruptions)}
    return any(benchmark_info(name, **options).generated for name, options in with_it.items())


def host_checks(answers: list[dict[str, Any]], *, frost: bool = False) -> Iterator[Check]:
    """One check a host: its versions against this machine's, and the data it sees; with ``frost`` its photographs."""
    here = {name: _version(name) for name in PACKAGES}
    for answer in answers:
        name = f"host {answer['host']}"
        if "error" in answer:
            yield Check(name=name, ok=False, detail=answer["error"])
            continue
        gpus = ", ".join(answer["gpus"]) or "no GPU"
        detail = f"Python {answer['python']}, {gpus}, {answer['free_bytes'] / 1e9:.0f} GB free for the cache"
        odd, unfit = _differing(answer["versions"], here), _unfit(answer)
        more = "".join(f"; {words}" for words in (odd, unfit) if words)
        yield Check(name=name, ok=False if unfit else None if odd else True, detail=f"{detail}{more}")
        for benchmark, place in answer["data"].items():
            yield _data_check(f"{name}, data {benchmark}", benchmark, place)
        if frost and not answer["versions"].get(PHOTOGRAPHS):
            detail = (
                f"{PHOTOGRAPHS} is missing there: pip install --no-deps {PHOTOGRAPHS} (not where frost is prepared)"
            )
            yield Check(name=f"{name}, frost", ok=None, detail=detail)


def wanted_data(spec: SweepSpec, runs: list[RunConfig]) -> list[tuple[str, str, str]]:
    """(benchmark, path in the spec, environment variable) of every benchmark that does not come with a package."""
    from deyo.benchmarks.info import root_variable

    wanted = {c.benchmark: c.benchmark_options for c in runs if c.benchmark != SYNTHETIC}
    return [
        (name, spec.data.get(name, ""), root_variable(name))
        for name, options in wanted.items()
        if not is_bundled(name, options)
    ]


def _data_check(name: str, benchmark: str, place: Mapping[str, Any]) -> Check:
    from deyo.benchmarks.info import root_variable

    if not place["path"]:
        how = f"set {root_variable(benchmark)} on the host, or `data: {{{benchmark}: PATH}}` in the spec"
        return Check(name=name, ok=False, detail=f"no path is named; {how}")
    if place["entries"] is None:
        return Check(name=name, ok=False, detail=f"{place['path']} is no folder there")
    return Check(name=name, ok=place["entries"] > 0, detail=f"{place['path']} holds {place['entries']} entries")


def _unfit(answer: Mapping[str, Any]) -> str:
    """Why no worker can start on a host; "" if one can. This project's own code travels with each sweep."""
    lacking = [name for name in ("ray", "torch") if not answer["versions"].get(name)]
    if lacking:
        return f"install {', '.join(lacking)} there"
    here = platform.python_version_tuple()[:2]
    if answer["python"].split(".")[:2] != list(here):
        return f"workers need Python {'.'.join(here)}, as here"
    return ""


def _differing(there: Mapping[str, str], here: Mapping[str, str]) -> str:
    odd = [f"{n} {there.get(n) or 'missing'} (here {here[n]})" for n in here if here[n] and there.get(n) != here[n]]
    return ", ".join(odd)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
