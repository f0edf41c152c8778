"""The engine of deyo-sweep: test-time adaptation methods, networks, benchmarks and streams, usable alone.

>>> import deyo
>>> benchmark = deyo.open_benchmark("digits-c")
>>> network = deyo.load_network("small-resnet-bn", benchmark=benchmark)
>>> stream = deyo.make_stream("mild", benchmark.images("contrast", 3), seed=0, batch_size=64)
>>> method = deyo.build_method("deyo", network, benchmark=benchmark, seed=0)
>>> for record in deyo.adapt(method, stream):
...     print(record.step, record.correct.mean())
"""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = {
    "adapt": "deyo.loop",
    "build_method": "deyo.easy",
    "create_method": "deyo.methods",
    "load_network": "deyo.networks",
    "make_stream": "deyo.streams",
    "method_names": "deyo.methods",
    "open_benchmark": "deyo.benchmarks",
    "resolve_settings": "deyo.methods",
    "ConfigError": "deyo.types",
    "DataError": "deyo.types",
    "MethodContext": "deyo.types",
}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'deyo' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
