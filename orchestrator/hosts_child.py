"""Ask every host of a cluster what it has, and print one JSON line (see ``orchestrator.hosts``).

Self-contained, because the hosts may not have this project installed: it runs as a script in a process of its own
(which joins the cluster as a driver), or as the entrypoint of a Ray job.
"""

from __future__ import annotations

import json
import sys

MARK = "deyo-sweep hosts: "


def look(questions: dict) -> dict:
    """On one host: versions, GPUs, and the named paths ([benchmark, path or "", environment variable])."""
    import os
    import platform
    import shutil
    import subprocess
    from importlib.metadata import PackageNotFoundError, version

    def installed(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return ""

    def place(benchmark: str, path: str, variable: str) -> dict:
        common = os.environ.get("DEYO_DATA", "")
        path = path or os.environ.get(variable, "") or (os.path.join(common, benchmark) if common else "")
        return {"path": path, "entries": len(os.listdir(path)) if path and os.path.isdir(path) else None}

    def gpus() -> list:
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        try:
            return subprocess.run(query, capture_output=True, text=True, timeout=10).stdout.split("\n")[:-1]
        except (OSError, subprocess.TimeoutExpired):
            return []

    cache = os.environ.get("DEYO_CACHE") or os.path.expanduser("~")
    while not os.path.isdir(cache):
        cache = os.path.dirname(cache)
    return {
        "host": platform.node(),
        "python": platform.python_version(),
        "versions": {name: installed(name) for name in questions["packages"]},
        "gpus": gpus(),
        "free_bytes": shutil.disk_usage(cache).free,
        "data": {benchmark: place(benchmark, path, name) for benchmark, path, name in questions["data"]},
    }


def main(address: str, questions: dict, timeout: float) -> list:
    """The answers of all live hosts; a host that does not answer is named with an error."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.init(address=address, log_to_driver=False, logging_level="error")
    task = ray.remote(num_cpus=0, max_retries=0)(look)
    pending = {}
    for node in ray.nodes():
        if node["Alive"]:
            here = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            pending[task.options(scheduling_strategy=here).remote(questions)] = node["NodeManagerHostname"]
    ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=timeout)
    answers = []
    for ref, host in pending.items():
        try:
            answers.append(ray.get(ref) if ref in ready else {"host": host, "error": "no answer in time"})
        except Exception as error:
            answers.append({"host": host, "error": str(error).strip().split("\n")[-1]})
    return answers


if __name__ == "__main__":
    print(MARK + json.dumps(main(sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3]))), flush=True)
