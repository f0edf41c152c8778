"""Tracking: MLflow as a projection of the result store. Importing this package does not import mlflow."""

from __future__ import annotations

from orchestrator.tracking.null import NullTracker
from orchestrator.tracking.options import TrackingOptions, resolve_uri
from orchestrator.tracking.tracker import MlflowTracker
from orchestrator.types import Tracker

__all__ = ["MlflowTracker", "NullTracker", "TrackingOptions", "make_tracker", "resolve_uri"]


def make_tracker(sweep: str, root: str, options: TrackingOptions = TrackingOptions()) -> Tracker:
    """The tracker that a spec's ``mlflow`` section asks for (``TrackingOptions.from_spec``).

    Raises:
        ConfigError: the tracking URI cannot be used (``options.resolve_uri``).
    """
    uri = resolve_uri(options.uri, root)
    return NullTracker() if uri is None else MlflowTracker(uri, sweep, root=root, options=options)
