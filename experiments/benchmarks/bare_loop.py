"""The runs of a sweep as a bare loop over the engine on the CPU: what orchestration is measured against.

    python -m experiments.benchmarks.bare_loop SPEC

Plans the spec, then builds each group's method and adapts it over its streams, one group after the other in this
process, keeping the accuracies. Prints one line of JSON: seconds from the start of this process, of the groups alone,
and the accuracies by run id.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STARTED = time.time()


def groups_of(spec_file: str) -> Iterator[list[Any]]:
    """The planned runs, as many side by side as the spec's ``group_size`` says."""
    from orchestrator.grouping import group_key
    from orchestrator.plan import make_plan
    from orchestrator.spec import load_spec

    spec = load_spec(spec_file, [])
    by_key: dict[Any, list[Any]] = {}
    for run in make_plan(spec, None, results=None).runs:
        by_key.setdefault(group_key(run.config), []).append(run)
    size = spec.resources.group_size or 1
    for runs in by_key.values():
        for start in range(0, len(runs), size):
            yield runs[start : start + size]


class Loop:
    """Benchmark and network, opened once; ``run`` adapts one group."""

    def __init__(self, spec_file: str) -> None:
        self.data = json.loads(Path(spec_file).read_text())["data"]
        self.benchmark: Any = None
        self.network: Any = None

    def run(self, runs: list[Any]) -> dict[str, float]:
        """Accuracy by run id."""
        from deyo.benchmarks import open_benchmark
        from deyo.loop import adapt
        from deyo.methods import create_method, settings_from_json
        from deyo.networks import load_network
        from deyo.streams import make_stream
        from deyo.types import MethodContext

        config = runs[0].config
        if self.benchmark is None:
            root = self.data[config.benchmark]
            self.benchmark = open_benchmark(config.benchmark, root=root, **config.benchmark_options)
            self.network = load_network(config.model, benchmark=self.benchmark)
        streams = [
            make_stream(
                c.scenario,
                self.benchmark.images(c.corruption, c.severity),
                seed=c.seed,
                batch_size=c.batch_size,
                max_images=c.max_images,
            )
            for c in (run.config for run in runs)
        ]
        context = MethodContext(
            network=self.network,
            seeds=[run.config.seed for run in runs],
            batch_size=config.batch_size,
            precision=config.precision,
            source=self.benchmark.source_images() if config.settings.get("fisher_strength") else None,
        )
        settings = [settings_from_json(config.method, dict(run.config.settings)) for run in runs]
        correct = [0] * len(runs)
        for record in adapt(create_method(config.method, context, settings), streams):
            for position, right in enumerate(record.correct):
                correct[position] += int(right.sum())
        return {run.run_id: n / len(s.order) for run, n, s in zip(runs, correct, streams)}


def main() -> None:
    loop, accuracies = Loop(sys.argv[1]), {}
    groups = list(groups_of(sys.argv[1]))
    start = time.time()
    for runs in groups:
        accuracies |= loop.run(runs)
    end = time.time()
    print(json.dumps({"seconds": end - STARTED, "loop_seconds": end - start, "accuracies": accuracies}))


if __name__ == "__main__":
    main()
