"""Benchmarks: named sources of shifted test images (methods.md §3). Each is one file and one registry line."""

from deyo.benchmarks.info import BenchmarkInfo, default_cache
from deyo.benchmarks.registry import benchmark_info, benchmark_names, open_benchmark

__all__ = ["BenchmarkInfo", "benchmark_info", "benchmark_names", "default_cache", "open_benchmark"]
