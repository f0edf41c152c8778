"""Which tracking store a sweep uses, for verbs that come after it (``ui``, ``sync-mlflow``)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from deyo.types import ConfigError
from orchestrator.tracking import local
from orchestrator.tracking.options import TrackingOptions, resolve_uri


@dataclass(frozen=True, kw_only=True)
class StoreInUse:
    """The tracking URI of a sweep, with the sweep's options and resolved spec."""

    uri: str
    options: TrackingOptions = field(default_factory=TrackingOptions)
    resolved: Mapping[str, Any] = field(default_factory=dict)


def store_in_use(root: str, sweep: str | None, *, uri: str | None = None) -> StoreInUse:
    """``uri`` if given, else the spec's, ``MLFLOW_TRACKING_URI``, the one last used, or the embedded SQLite.

    Raises:
        ConfigError: the sweep's spec turns tracking off, or the URI cannot be used.
    """
    resolved = _resolved(root, sweep) if sweep else {}
    options = TrackingOptions.from_spec(resolved.get("mlflow"))
    if uri is not None:
        options = replace(options, uri=uri)
    elif options.uri == "auto" and sweep and not os.environ.get("MLFLOW_TRACKING_URI"):
        options = replace(options, uri=local.recall(root, sweep).get("uri") or "auto")
    found = resolve_uri(options.uri, root)
    if found is None:
        raise ConfigError(f"the spec of {sweep!r} has `mlflow: false`; name a store with --uri URI")
    return StoreInUse(uri=found, options=options, resolved=resolved)


def _resolved(root: str, sweep: str) -> dict[str, Any]:
    """The resolved spec that the store keeps; empty if it keeps none."""
    import json

    from orchestrator.store import layout
    from orchestrator.store.tree import join, open_tree

    try:
        return dict(json.loads(open_tree(join(root, sweep)).read(layout.SPEC_JSON)))
    except FileNotFoundError:
        return {}
