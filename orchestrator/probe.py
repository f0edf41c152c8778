"""Whether a Ray cluster can be reached, with which token, and what it has: in seconds, without joining it.

``ray.init`` takes 21 s to say "Failed to connect" where a token is missing, and an enabled authentication without a
token aborts the process. So the question is asked in a child process with a time limit, of the cluster's own
registry (what ``ray health-check`` talks to) or of its dashboard.
"""

from __future__ import annotations

import http.client
import json
import os
import platform
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

TIMEOUT = 5.0


class ClusterError(Exception):
    """A cluster that cannot be used; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """One host of a cluster."""

    name: str
    address: str
    cpus: float
    gpus: float
    gpu_type: str
    memory_bytes: float
    head: bool


@dataclass(frozen=True, kw_only=True)
class ClusterFacts:
    """What a cluster said of itself. ``grows``: an autoscaler starts hosts on demand."""

    address: str
    ray_version: str
    python_version: str
    nodes: tuple[Node, ...]
    grows: bool = False

    @property
    def gpus(self) -> int:
        return int(sum(node.gpus for node in self.nodes))

    @property
    def biggest(self) -> Node:
        """The node with most GPUs, then most CPU cores."""
        return max(self.nodes, key=lambda node: (node.gpus, node.cpus))


@dataclass(frozen=True, kw_only=True)
class Token:
    """Where Ray's authentication token comes from in this shell. The token itself is never kept."""

    mode: str
    source: str
    present: bool
    path: Path | None = None

    @property
    def file_mode(self) -> int | None:
        """Permission bits of the token's file, or None where it is not in a file."""
        return self.path.stat().st_mode & 0o777 if self.path and self.path.is_file() else None


def token_in_use(environment: Mapping[str, str] | None = None) -> Token:
    """Ray's own order: RAY_AUTH_TOKEN, then RAY_AUTH_TOKEN_PATH, then ~/.ray/auth_token.

    Where RAY_AUTH_MODE is not set, a token that is there is used.
    """
    env = os.environ if environment is None else environment
    if env.get("RAY_AUTH_TOKEN"):
        source, present, path = "RAY_AUTH_TOKEN", True, None
    else:
        named = env.get("RAY_AUTH_TOKEN_PATH")
        path = Path(named).expanduser() if named else Path.home() / ".ray" / "auth_token"
        source = f"RAY_AUTH_TOKEN_PATH={path}" if named else str(path)
        present = path.is_file() and path.stat().st_size > 0
    mode = env.get("RAY_AUTH_MODE") or ("token" if present else "disabled")
    return Token(mode=mode, source=source, present=present, path=path)


def probe(address: str, *, timeout: float = TIMEOUT, authenticated: bool = True) -> ClusterFacts:
    """Facts of the cluster at ``address`` (``HOST:6379`` or ``http://HOST:8265``), within ``timeout`` seconds.

    ``authenticated=False`` asks without a token: success then means that anyone may use the cluster. Raises
    ``ClusterError``.
    """
    if address.startswith(("http://", "https://")):
        return _probe_dashboard(address.rstrip("/"), timeout, authenticated)
    _check_listening(address)
    token = token_in_use()
    mode = token.mode if authenticated else "disabled"
    if mode == "token" and not token.present:
        raise ClusterError(f"RAY_AUTH_MODE=token, but there is no token: {_advice(token)}")
    environment = {**os.environ, "RAY_AUTH_MODE": mode, "RAY_USAGE_STATS_ENABLED": "0"}
    answer = _ask(address, environment, timeout)
    if "unauthenticated" in answer:
        raise ClusterError(f"the cluster at {address} refused the token. {_advice(token)}")
    if "error" in answer:
        raise ClusterError(f"the cluster at {address} did not answer: {answer['error']}")
    return _facts(address, answer["ray_version"], answer["python_version"], answer["nodes"], answer["autoscaling"])


def version_mismatch(facts: ClusterFacts) -> str | None:
    """Why this Python cannot drive that cluster (Ray wants equal versions), or None."""
    here = f"Ray {_ray_version()}, Python {_minor(platform.python_version())}"
    there = f"Ray {facts.ray_version}, Python {_minor(facts.python_version)}"
    if not facts.python_version:
        there, here = there.split(",")[0], here.split(",")[0]
    return None if here == there else f"here: {here}; on {facts.address}: {there}. Ray needs both to be the same"


def is_loopback(address: str) -> bool:
    """Whether ``address`` can be reached from its own machine alone."""
    host = urlsplit(address if "://" in address else f"//{address}").hostname or ""
    return host == "localhost" or host.startswith("127.") or host == "::1"


def only_here(address: str, facts: ClusterFacts) -> bool:
    """Whether the cluster can be reached from this machine alone: by its hosts' own addresses too, since a head that
    has one of the network listens there as well, whatever it is called here."""
    return is_loopback(address) and all(is_loopback(node.address) for node in facts.nodes)


def _advice(token: Token) -> str:
    have = "present" if token.present else "missing"
    return (
        f"RAY_AUTH_MODE is {token.mode!r} and the token comes from {token.source} ({have}). "
        "Copy the head's token (`ray get-auth-token` there prints it) into ~/.ray/auth_token, "
        "chmod 600 it, and export RAY_AUTH_MODE=token"
    )


def _check_listening(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in address:
        raise ClusterError(f"{address!r} is no address; write HOST:6379 or http://HOST:8265")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=2).close()
    except OSError as error:
        raise ClusterError(f"nothing answers at {address} ({error.strerror or error})") from None


def _ask(address: str, environment: Mapping[str, str], timeout: float) -> dict[str, Any]:
    # -P: this folder must not be on the child's path, where its types.py would hide the standard library's
    command = [sys.executable, "-P", str(Path(__file__).with_name("probe_child.py")), address]
    try:
        done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"error": f"nothing within {timeout:.0f} s"}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            return json.loads(line)
    return {"error": f"the question ended with code {done.returncode}"}


def _probe_dashboard(address: str, timeout: float, authenticated: bool) -> ClusterFacts:
    token = token_in_use()
    headers = {}
    if authenticated and token.mode == "token":
        if not token.present:
            raise ClusterError(f"RAY_AUTH_MODE=token, but there is no token: {_advice(token)}")
        secret = os.environ.get("RAY_AUTH_TOKEN") or (token.path.read_text().strip() if token.path else "")
        headers["Authorization"] = f"Bearer {secret}"
    try:
        about = _get(f"{address}/api/version", headers, timeout)
        summary = _get(f"{address}/nodes?view=summary", headers, timeout)
        status = _get(f"{address}/api/cluster_status", headers, timeout)
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise ClusterError(f"the cluster at {address} refused the token. {_advice(token)}") from None
        raise ClusterError(f"{address} answered {error.code}; is it a Ray dashboard?") from None
    except http.client.HTTPException:
        raise ClusterError(f"{address} speaks no HTTP: Ray Jobs are at the dashboard's port, 8265 by default") from None
    except (OSError, ValueError) as error:
        raise ClusterError(f"nothing answers at {address} ({getattr(error, 'reason', error)})") from None
    raylets = [entry.get("raylet", {}) for entry in summary["data"]["summary"]]
    nodes = [
        {
            "name": raylet.get("nodeManagerHostname", ""),
            "address": raylet.get("nodeManagerAddress", ""),
            "resources": raylet.get("resourcesTotal", {}),
            "labels": raylet.get("labels", {}),
            "head": bool(raylet.get("isHeadNode")),
            "type": raylet.get("nodeTypeName", ""),
        }
        for raylet in raylets
        if raylet.get("state") == "ALIVE"
    ]
    return _facts(address, about["ray_version"], "", nodes, status["data"].get("clusterStatus") or {})


def _get(url: str, headers: Mapping[str, str], timeout: float) -> dict[str, Any]:
    request = urllib.request.Request(url, headers=dict(headers))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=timeout) as response:
        return json.load(response)


def _facts(
    address: str, ray_version: str, python_version: str, nodes: list[dict[str, Any]], status: Mapping[str, Any]
) -> ClusterFacts:
    if not nodes:
        raise ClusterError(f"the cluster at {address} has no live node")
    found = tuple(
        Node(
            name=node["name"],
            address=node["address"],
            cpus=node["resources"].get("CPU", 0.0),
            gpus=node["resources"].get("GPU", 0.0),
            gpu_type=node["labels"].get("ray.io/accelerator-type", ""),
            memory_bytes=node["resources"].get("memory", 0.0),
            head=node["head"],
        )
        for node in nodes
    )
    return ClusterFacts(
        address=address,
        ray_version=ray_version,
        python_version=python_version,
        nodes=found,
        grows=has_autoscaler(status, [node["type"] for node in nodes]),
    )


def has_autoscaler(status: Mapping[str, Any], node_types: Iterable[str]) -> bool:
    """Whether a cluster grows on demand, by what Ray's monitor wrote and by the node types that hosts were started as.

    The older autoscaler writes a status. So does the monitor of a cluster that was started by hand, which cannot
    grow: it makes a type of each host's own id. The newer autoscaler writes none, but starts hosts with a type's name.
    The dashboard writes the status's keys, hosts' types too, in camel case.
    """
    report = status.get("autoscaler_report") or status.get("autoscalerReport")
    types = report.get("active_nodes") or report.get("activeNodes") or () if report else filter(None, node_types)
    return any(not re.fullmatch(r"node_?[0-9a-fA-F]{40,}", name) for name in types)


def _ray_version() -> str:
    try:
        return version("ray")
    except PackageNotFoundError:
        return "none"


def _minor(text: str) -> str:
    return ".".join(text.split(".")[:2])
