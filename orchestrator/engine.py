"""The few public names of ``deyo`` that workers use, gathered in one place.

Importing this module imports the whole engine, so a worker's code is fixed from its start: nothing is loaded
from edited files in the middle of a sweep.
"""

from __future__ import annotations

from deyo.benchmarks import benchmark_info, open_benchmark
from deyo.loop import adapt
from deyo.methods import create_method, method_lockstep, settings_from_json
from deyo.metrics import RunMetrics
from deyo.networks import load_network
from deyo.numerics import NUMERICS_VERSION, code_digest
from deyo.pretrain import pretrain, recipe_for
from deyo.streams import images_for, make_stream

__all__ = [
    "NUMERICS_VERSION",
    "RunMetrics",
    "adapt",
    "benchmark_info",
    "code_digest",
    "create_method",
    "images_for",
    "load_network",
    "make_stream",
    "method_lockstep",
    "open_benchmark",
    "pretrain",
    "recipe_for",
    "settings_from_json",
]
