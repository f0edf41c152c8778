"""Sweeps found by name: the spec that a store keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deyo.types import ConfigError

if TYPE_CHECKING:
    from orchestrator.specmodel import SweepSpec


def sweeps_under(results: str) -> list[str]:
    """Names of the sweeps in the results root."""
    from orchestrator.results import sweeps

    return sweeps(results)


def stored_spec(results: str, sweep: str) -> SweepSpec:
    """The spec with which ``sweep`` was last run, as the store keeps it (overrides included)."""
    from orchestrator.spec import parse_spec
    from orchestrator.store import layout
    from orchestrator.store.tree import join, open_tree

    tree = open_tree(join(results, sweep))
    try:
        text = tree.read(layout.SPEC_JSON).decode()
    except FileNotFoundError:
        raise ConfigError(f"the sweep {sweep!r} under {results} has no spec; give its file instead") from None
    return parse_spec(text, path=f"{results}/{sweep}/{layout.SPEC_JSON}")
