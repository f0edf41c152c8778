"""Names to objects: built-in ones, loaded when first asked for, and those of installed packages."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from deyo.settings import nearest
from deyo.types import ConfigError


class Registry:
    """``kind`` names what is registered, ``group`` the entry-point group, ``builtin`` maps names to "module:attr"."""

    def __init__(self, kind: str, group: str, builtin: Mapping[str, str]) -> None:
        self.kind = kind
        self.group = group
        self.builtin = dict(builtin)

    def names(self) -> list[str]:
        """Built-in names in their order, then the installed ones sorted."""
        return [*self.builtin, *sorted(set(self._installed()) - set(self.builtin))]

    def load(self, name: str) -> Any:
        """The object behind ``name``; ConfigError (with the nearest names) if there is none."""
        if name in self.builtin:
            module, _, attribute = self.builtin[name].partition(":")
            return getattr(importlib.import_module(module), attribute)
        entry = self._installed().get(name)
        if entry is None:
            raise ConfigError(f"unknown {self.kind} {name!r}{nearest(name, self.names())}")
        return entry.load()

    def _installed(self) -> Mapping[str, EntryPoint]:
        return _installed(self.group, tuple(sys.path))


@functools.cache
def _installed(group: str, path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    """Looked up once for each search path, since that is what decides the answer."""
    return {entry.name: entry for entry in entry_points(group=group)}
