"""``--set KEY=VALUE``: change a parsed spec from the command line, before it is validated.

``KEY`` is a path such as ``seeds``, ``settings.deyo.plpd_threshold``, ``runs[0].methods`` or ``runs[*].models``;
``VALUE`` is YAML. The ``smoke:`` section of a spec uses the same keys.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from deyo.types import ConfigError
from orchestrator.specfile import Document, Key, key_text, parse_value
from orchestrator.suggest import shown

_PART = re.compile(r"(?:^|\.)([^.\[\]=]+)|\[(\d{1,6}|\*)\]")


def apply_overrides(document: Document, overrides: Iterable[str]) -> Document:
    """``document`` with each ``KEY=VALUE`` applied in order; ``ConfigError`` says which one is wrong."""
    pairs = []
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {shown(text)}: expected KEY=VALUE, for example --set seeds=[0]")
        origin = f"--set {shown(text, 80)}"
        pairs.append((key.strip(), parse_value(value, origin), origin))
    return _apply(document, pairs)


def apply_mapping(document: Document, changes: Mapping[str, Any], origin: str) -> Document:
    """``document`` with each ``KEY: VALUE`` of ``changes``; ``origin`` names them in errors."""
    return _apply(document, [(key, value, f"{origin} {key}") for key, value in changes.items()])


def _apply(document: Document, pairs: Iterable[tuple[str, Any, str]]) -> Document:
    tree = copy.deepcopy(document.tree)
    overridden = dict(document.overridden)
    lines = dict(document.lines)
    for key, value, origin in pairs:
        for place in _places(tree, _parse_key(key, origin), origin):
            _assign(tree, place, copy.deepcopy(value), origin)
            overridden[place] = origin
            lines = {k: line for k, line in lines.items() if k[: len(place)] != place}
    return replace(document, tree=tree, lines=lines, overridden=overridden)


def _parse_key(text: str, origin: str) -> Key:
    parts: list[str | int] = []
    end = 0
    for match in _PART.finditer(text):
        if match.start() != end:
            break
        end = match.end()
        name, index = match.groups()
        parts.append(name if name is not None else "*" if index == "*" else int(index))
    if end != len(text) or not parts or not isinstance(parts[0], str):
        raise ConfigError(f"{origin}: {shown(text)} is no key; write it like seeds or runs[0].methods")
    return tuple(parts)


def _places(tree: Any, key: Key, origin: str) -> list[Key]:
    """``key`` with each ``[*]`` replaced by every index that is there."""
    if "*" not in key:
        return [key]
    at = key.index("*")
    target = _walk(tree, key[:at], origin)
    if not isinstance(target, list):
        raise ConfigError(f"{origin}: {key_text(key[:at])} is not a list")
    return [p for i in range(len(target)) for p in _places(tree, (*key[:at], i, *key[at + 1 :]), origin)]


def _walk(tree: Any, key: Key, origin: str) -> Any:
    for depth, part in enumerate(key):
        tree = _child(tree, part, key[:depth], origin)
    return tree


def _child(parent: Any, part: str | int, at: Key, origin: str) -> Any:
    """The value under ``part``, made an empty mapping where a mapping has no such key yet."""
    _check(parent, part, at, origin)
    if isinstance(part, int):
        return parent[part]
    if parent.get(part) is None:
        parent[part] = {}
    return parent[part]


def _check(parent: Any, part: str | int, at: Key, origin: str) -> None:
    if isinstance(part, int):
        if not isinstance(parent, list):
            raise ConfigError(f"{origin}: {key_text(at)} is not a list, so it has no [{part}]")
        if part >= len(parent):
            raise ConfigError(f"{origin}: {key_text(at)} has {len(parent)} entries ([0] is the first), no [{part}]")
    elif not isinstance(parent, dict):
        hint = f"; write {key_text(at)}[0].{part} or {key_text(at)}[*].{part}" if isinstance(parent, list) else ""
        raise ConfigError(f"{origin}: {key_text(at)} is not a mapping, so it has no key {part!r}{hint}")


def _assign(tree: Any, key: Key, value: Any, origin: str) -> None:
    parent = _walk(tree, key[:-1], origin)
    _check(parent, key[-1], key[:-1], origin)
    parent[key[-1]] = value
