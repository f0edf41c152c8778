"""YAML as data, with the line of every value.

The semantics are ``yaml.safe_load``'s, and narrower: only text, numbers, booleans, null, lists and mappings;
no tags, no duplicate keys, no NaN or infinity, bounded size, depth and aliases. ``1e-3`` is a number, as YAML 1.2
has it (PyYAML alone would read it as text).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from deyo.types import ConfigError
from orchestrator.suggest import shown

Key = tuple[str | int, ...]

MAX_BYTES = 200_000
MAX_VALUES = 10_000
MAX_DEPTH = 40
MAX_DIGITS = 30
_TOO_LARGE = f"more than {MAX_DEPTH} levels or {MAX_VALUES:,} values (many aliases, or one that contains itself?)"

_PLAIN = {f"tag:yaml.org,2002:{t}" for t in ("str", "int", "float", "bool", "null", "timestamp", "seq", "map")}
_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads ``1e-3`` as a number, and stops as soon as a file is too deep or too long."""

    depth = 0
    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth += 1
        self.nodes += 1
        if self.depth > MAX_DEPTH or self.nodes > MAX_VALUES:
            raise yaml.composer.ComposerError(None, None, _TOO_LARGE, self.peek_event().start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


@dataclass(frozen=True)
class Document:
    """A parsed file: ``tree`` of plain values, and ``lines``, where each value stands (1-based)."""

    path: str
    tree: dict[str, Any]
    text: str = ""
    lines: dict[Key, int] = field(default_factory=dict)
    overridden: dict[Key, str] = field(default_factory=dict)

    def where(self, key: Key) -> str:
        """``FILE:LINE: KEY`` of the nearest enclosing value that is known, or the override that set it."""
        for cut in range(len(key), -1, -1):
            if key[:cut] in self.overridden:
                return f"{self.overridden[key[:cut]]}: {key_text(key)}"
            if key[:cut] in self.lines:
                return f"{self.path}:{self.lines[key[:cut]]}: {key_text(key)}"
        return f"{self.path}: {key_text(key)}"

    def error(self, key: Key, message: str) -> ConfigError:
        """A ``ConfigError`` that says where ``key`` was written."""
        return ConfigError(f"{self.where(key)}: {message}")


def key_text(key: Key) -> str:
    """``("runs", 0, "methods")`` as ``runs[0].methods``, the form that ``--set`` takes."""
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "the spec"


def read_document(path: str | Path) -> Document:
    """Parse the YAML mapping in ``path``; ``ConfigError`` says file, line and reason."""
    path = Path(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_BYTES:,} bytes; a sweep spec is a short file")
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from None
    except ValueError as error:  # a NUL byte in the path
        raise ConfigError(f"{shown(str(path))}: not a path ({error})") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text (byte 0x{raw[error.start]:02x})") from None
    return parse_document(text, str(path))


def parse_document(text: str, path: str) -> Document:
    """Like ``read_document`` for text at hand; ``path`` is what errors call it."""
    lines: dict[Key, int] = {}
    tree = _parse(text, path, lines)
    if not isinstance(tree, dict):
        what = "empty" if tree is None else f"{shown(tree)}, not a mapping"
        raise ConfigError(f"{path}: the spec is {what}; it needs at least `name:` and `runs:`")
    return Document(path=path, tree=tree, text=text, lines=lines)


def parse_value(text: str, origin: str) -> Any:
    """One YAML value (the right side of ``--set KEY=VALUE``); ``origin`` is what errors call it."""
    return _parse(text, origin, None)


def _parse(text: str, path: str, lines: dict[Key, int] | None) -> Any:
    builder = _Builder(path, lines)
    try:
        node = yaml.compose(text, Loader=_Loader)
        return None if node is None else builder.build(node, ())
    except yaml.MarkedYAMLError as error:
        at = builder.at(error.problem_mark or error.context_mark)
        raise ConfigError(f"{at}: not valid YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {str(error).splitlines()[0]}") from None


class _Builder:
    """Turns composed nodes into plain values and notes their lines (``lines`` is None for a one-line value)."""

    def __init__(self, path: str, lines: dict[Key, int] | None) -> None:
        self.path = path
        self.lines = lines
        self.values = 0
        self.scalars = yaml.constructor.SafeConstructor()

    def at(self, mark: yaml.Mark | None, key: Key = ()) -> str:
        place = self.path if self.lines is None or mark is None else f"{self.path}:{mark.line + 1}"
        return f"{place}: {key_text(key)}" if key else place

    def build(self, node: yaml.Node, key: Key) -> Any:
        self.values += 1
        if self.values > MAX_VALUES or len(key) > MAX_DEPTH:
            raise ConfigError(f"{self.at(node.start_mark, key[:4])}: {_TOO_LARGE}")
        if self.lines is not None:
            self.lines.setdefault(key, node.start_mark.line + 1)
        if node.tag not in _PLAIN:
            tag = shown(node.tag.replace("tag:yaml.org,2002:", "!!"))
            raise ConfigError(
                f"{self.at(node.start_mark, key)}: tag {tag} is not allowed; a spec is plain data: "
                "text, numbers, true/false, lists and mappings"
            )
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, key)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(child, (*key, i)) for i, child in enumerate(node.value)]
        return self._scalar(node, self.at(node.start_mark, key))

    def _mapping(self, node: yaml.MappingNode, key: Key) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name_node, value_node in self._merged(node):
            if not isinstance(name_node, yaml.ScalarNode):
                raise ConfigError(f"{self.at(name_node.start_mark, key)}: a key must be text")
            name = name_node.value
            if name in result:
                raise ConfigError(f"{self.at(name_node.start_mark, (*key, name))}: written twice")
            if self.lines is not None:
                self.lines[(*key, name)] = name_node.start_mark.line + 1
            result[name] = self.build(value_node, (*key, name))
        return result

    def _merged(self, node: yaml.MappingNode) -> list[tuple[yaml.Node, yaml.Node]]:
        """The pairs of ``node``, with those that ``<<`` brings in and that it does not have itself."""
        pairs = [(k, v) for k, v in node.value if k.tag != _MERGE]
        taken = {k.value for k, _ in pairs if isinstance(k, yaml.ScalarNode)}
        for k, v in node.value:
            if k.tag != _MERGE:
                continue
            for source in v.value if isinstance(v, yaml.SequenceNode) else [v]:
                if not isinstance(source, yaml.MappingNode):
                    raise ConfigError(f"{self.at(k.start_mark)}: `<<` takes an alias of a mapping")
                for a, b in source.value:
                    if isinstance(a, yaml.ScalarNode) and a.value not in taken:
                        pairs.append((a, b))
                        taken.add(a.value)
        return pairs

    def _scalar(self, node: yaml.ScalarNode, at: str) -> Any:
        kind = node.tag.rsplit(":", 1)[-1]
        if kind in ("str", "timestamp"):  # a date is text here; a field that wants a number will say so
            return node.value
        if kind in ("int", "float") and (len(node.value) > MAX_DIGITS or ":" in node.value):
            raise ConfigError(f"{at}: {shown(node.value)} is not a number that a spec can hold; quote it if it is text")
        try:
            value = self.scalars.construct_object(node)
        except (ValueError, OverflowError, KeyError, yaml.YAMLError):
            raise ConfigError(f"{at}: {shown(node.value)} is not a {kind}") from None
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{at}: {node.value} is not allowed; every number of a spec is finite")
        return value


def plain(value: Any) -> Any:
    """``value`` with mappings as dicts and tuples as lists: what JSON can hold."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value
