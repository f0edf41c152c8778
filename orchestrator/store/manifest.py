"""The list of Parquet files that readers go by; written by the compactor alone."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator import schema
from orchestrator.store import layout
from orchestrator.store.errors import DamagedError
from orchestrator.store.tree import Tree

_RUNS_KEY = b"deyo_runs"
_VERSION_KEY = b"deyo_schema_version"
_ID_LENGTH = 16
_REPAIR = "`deyo-sweep fsck --repair` sets it aside, and `deyo-sweep run` makes again what is lost with it"


@dataclass
class Manifest:
    """Paths of the parts of each grain, in the order in which they were begun."""

    parts: dict[str, list[str]] = field(default_factory=lambda: {grain: [] for grain in schema.GRAINS})

    def encode(self) -> bytes:
        return json.dumps({"format": 1, "schema_version": schema.VERSION, "parts": self.parts}, indent=1).encode()


def read_manifest(tree: Tree) -> Manifest:
    """The manifest; an empty one before the first compaction.

    Raises:
        DamagedError: the file is not what the compactor wrote.
    """
    try:
        data = tree.read(layout.MANIFEST)
    except FileNotFoundError:
        return Manifest()
    try:
        parts = json.loads(data)["parts"]
        return Manifest({grain: [str(path) for path in parts.get(grain, [])] for grain in schema.GRAINS})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(
            f"{layout.MANIFEST} is cut short or damaged; `deyo-sweep fsck --repair` rebuilds it from the parts"
        ) from error


class Part:
    """An open Parquet file of the tables. Its footer names the runs whose rows it holds."""

    def __init__(self, tree: Tree, path: str) -> None:
        self.path = path
        try:
            self.source = tree.open(path)
            self.file = pq.ParquetFile(self.source)
            metadata = self.file.schema_arrow.metadata or {}
            ids = metadata[_RUNS_KEY].decode()
            self.schema_version = int(metadata[_VERSION_KEY])
        except FileNotFoundError as error:
            raise DamagedError(f"{path} is listed in the manifest, but gone; {_REPAIR}") from error
        except (pa.ArrowInvalid, OSError, KeyError) as error:
            raise DamagedError(f"{path} is cut short or damaged ({error}); {_REPAIR}") from error
        self.runs = frozenset(ids[i : i + _ID_LENGTH] for i in range(0, len(ids), _ID_LENGTH))

    @property
    def rows(self) -> int:
        return self.file.metadata.num_rows


def part_schema(grain: str, runs: list[str]) -> pa.Schema:
    """The newest schema of ``grain`` with the metadata of a part that holds ``runs``."""
    metadata = {_RUNS_KEY: "".join(runs).encode(), _VERSION_KEY: str(schema.VERSION).encode()}
    return schema.GRAINS[grain].with_metadata(metadata)
