"""The result store: Parquet tables, commit markers and row streams of one sweep. See ``layout`` for the files."""

from __future__ import annotations

from orchestrator.store.errors import DamagedError, StoreError, StoreFullError
from orchestrator.store.writer import ParquetStore

__all__ = ["DamagedError", "ParquetStore", "StoreError", "StoreFullError"]
