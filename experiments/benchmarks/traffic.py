"""What Inductor's kernels must read and write, counted in the code that it writes for a GPU.

A kernel that sums or maps values can be no faster than the device's memory. ``kernels_in`` counts for each kernel of a
piece of Inductor's code the distinct values that its loads and stores touch (the largest index of each, found by
evaluating it), times their size; what several kernels read counts for each of them.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SIZES = {"*i1": 1, "*i8": 1, "*u8": 1, "*bf16": 2, "*fp16": 2, "*i32": 4, "*fp32": 4, "*i64": 8, "*fp64": 8}
POINTS = 4000
"""Indices at which an expression is evaluated, the first and the last among them."""

_KERNEL = re.compile(r"^(triton_\w+) = async_compile\.triton\('\w+', '''(.*?)'''", re.DOTALL | re.MULTILINE)
_CALL = re.compile(r"^\s+(triton_\w+)\.run\(", re.MULTILINE)
_ACCESS = re.compile(r"tl\.(load|store)\((\w+) \+ \(")


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """``bytes`` that one call must move, and ``calls`` in the code."""

    name: str
    bytes: int
    calls: int


def kernels_in(code: str) -> list[Kernel]:
    """The Triton kernels of Inductor's ``code``, in the order in which they are defined."""
    calls = Counter(_CALL.findall(code))
    return [Kernel(name=name, bytes=moved(source), calls=calls[name]) for name, source in _KERNEL.findall(code)]


def moved(source: str) -> int:
    """Bytes that the kernel with this source reads and writes, each value of each access once."""
    signature = re.search(r"'signature': (\{.*?\})", source)
    types: Mapping[str, str] = ast.literal_eval(signature.group(1)) if signature else {}
    body = source[source.index("def triton_") :]
    indices = _indices(body)
    accesses = {access for line in body.splitlines() for access in _accesses(line)}
    return sum(
        _extent(expression, indices) * SIZES.get(types.get(pointer, ""), 0) for _, pointer, expression in accesses
    )


def compiled_code() -> list[str]:
    """The code of everything that Inductor has loaded in this process."""
    from torch._inductor.codecache import PyCodeCache

    files = {str(path) for module in PyCodeCache.modules if (path := getattr(module, "__file__", None))}
    return [Path(file).read_text() for file in sorted(files) if Path(file).exists()]


def least_milliseconds(codes: Iterable[str], bytes_per_second: float) -> dict[str, float]:
    """Kernel name -> milliseconds that a call takes at the speed of a copy; the longest of kernels of one name."""
    found: dict[str, float] = {}
    for code in codes:
        for kernel in kernels_in(code):
            found[kernel.name] = max(found.get(kernel.name, 0.0), 1000 * kernel.bytes / bytes_per_second)
    return found


def _indices(body: str) -> dict[str, np.ndarray]:
    """Values of the index variables (xindex, r0_index, x0, ...) at some points."""
    dice, values = np.random.default_rng(0), {}
    for axis, count in re.findall(r"^\s+(\w+)numel = (\d+)$", body, re.MULTILINE):
        points = dice.integers(0, int(count), POINTS)
        points[:2] = int(count) - 1, 0
        values[f"{axis}index"] = points
    for name, expression in re.findall(r"^\s+([xyzr]\w*) = ([\w\s()%/*+-]+)$", body, re.MULTILINE):
        if name not in values and (value := _value(expression, values)) is not None:
            values[name] = value
    return values


def _accesses(line: str) -> Iterator[tuple[str, str, str]]:
    """("load" or "store", pointer, index expression) of what ``line`` does with memory."""
    for match in _ACCESS.finditer(line):
        depth, start = 1, match.end()
        for end in range(start, len(line)):
            depth += {"(": 1, ")": -1}.get(line[end], 0)
            if depth == 0:
                yield *match.groups(), re.sub(r"tl\.broadcast_to\((\w+),.*?\]\)", r"\1", line[start:end])
                break


def _extent(expression: str, indices: Mapping[str, np.ndarray]) -> int:
    value = _value(expression, indices)
    return 0 if value is None else int(np.max(value)) + 1


def _value(expression: str, names: Mapping[str, np.ndarray]) -> np.ndarray | int | None:
    """Arithmetic over ``names``; None where there is anything else in it."""
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except SyntaxError:
        return None
    allowed = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Name, ast.Constant, ast.operator, ast.unaryop, ast.Load)
    if not all(isinstance(node, allowed) for node in ast.walk(tree)):
        return None
    if any(isinstance(node, ast.Name) and node.id not in names for node in ast.walk(tree)):
        return None
    return eval(compile(tree, "<index>", "eval"), {"__builtins__": {}}, dict(names))
