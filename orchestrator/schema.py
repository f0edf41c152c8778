"""The columns of the result store, versioned and additive only.

``runs`` has one row a run, ``batches`` one row a batch, ``samples`` one row an image (where the spec asks).
New columns are nullable and go to the end; a type never changes; ``VERSION`` grows with each addition.
"""

from __future__ import annotations

import pyarrow as pa

VERSION = 3

_TEXT = pa.string()
_INT = pa.int64()
_REAL = pa.float64()
_FLAG = pa.bool_()

_IDENTITY = [
    ("run_id", _TEXT),
    ("attempt", _INT),
]

_AXES = [
    ("sweep", _TEXT),
    ("benchmark", _TEXT),
    ("benchmark_options", _TEXT),  # JSON
    ("corruption", _TEXT),
    ("severity", _INT),
    ("corruptions", pa.list_(_TEXT)),
    ("scenario", _TEXT),
    ("scenario_options", _TEXT),  # JSON
    ("model", _TEXT),
    ("method", _TEXT),
    ("label", _TEXT),
    ("settings", _TEXT),  # JSON
    ("seed", _INT),
    ("pretrain_seed", _INT),
    ("batch_size", _INT),
    ("protocol", _TEXT),
    ("precision", _TEXT),
    ("max_images", _INT),
]

_GROUP = pa.struct([("name", _TEXT), ("images", _INT), ("correct", _INT)])

_METRICS = [
    ("images", _INT),
    ("accuracy", _REAL),  # fraction in [0, 1] over the whole stream: the sample mean
    ("group_accuracies", pa.list_(_GROUP)),
    ("average_accuracy", _REAL),  # unweighted mean over groups (the paper's average)
    ("adjusted_accuracy", _REAL),  # weighted by the training groups' sizes (WILDS)
    ("worst_group_accuracy", _REAL),
    ("domain_accuracies", pa.list_(_GROUP)),  # by corruption in mixed and continual streams
    ("aurc", _REAL),
    ("mean_entropy", _REAL),
    ("mean_plpd", _REAL),
    ("selected_entropy", _INT),  # samples that passed the entropy filter
    ("selected", _INT),  # samples that passed every filter
    ("forwards", _INT),  # in samples, by the paper's rules
    ("backwards", _INT),
    ("skipped_steps", _INT),
    ("resets", _INT),
    ("collapsed", _FLAG),
    ("nan_steps", _INT),
    ("skipped_images", _INT),  # bad files that --skip-bad left out
    ("seconds", _REAL),  # adaptation only, device synchronised
    ("decode_seconds", _REAL),
    ("images_per_second", _REAL),
    ("peak_memory_bytes", _INT),
    ("group_size", _INT),  # runs side by side (speed columns are of the whole group divided by it)
]

_PROVENANCE = [
    ("started_at", _TEXT),  # ISO 8601, UTC
    ("finished_at", _TEXT),
    ("code_version", _TEXT),
    ("code_dirty", _FLAG),
    ("code_digest", _TEXT),
    ("numerics_version", _INT),
    ("libraries", _TEXT),  # JSON name -> version
    ("host", _TEXT),
    ("device", _TEXT),  # "cuda:0" or "cpu"
    ("device_name", _TEXT),
    ("weights_sha256", _TEXT),
    ("weights_source", _TEXT),
    ("data_fingerprint", _TEXT),
    ("stream_digest", _TEXT),
    ("schema_version", _INT),
]

_VERSION_2 = [
    ("config_id", _TEXT),  # the hash of the config alone: equal for a run and the stale one that it replaces
    ("aliases", pa.list_(_TEXT)),  # labels of duplicates merged into this run
    ("stamps", _TEXT),  # JSON: what the identity rests on beside the config
]

_VERSION_3 = [
    ("analysis", _TEXT),  # JSON: what the picture of an analysis shows (orchestrator.analyses)
]

PROVENANCE = tuple(name for name, _ in _PROVENANCE if name not in ("started_at", "finished_at"))
"""Columns of ``runs`` that say by what a run was made."""

RUNS = pa.schema(_IDENTITY + _AXES + _METRICS + _PROVENANCE + _VERSION_2 + _VERSION_3)

BATCHES = pa.schema(
    [
        *_IDENTITY,
        ("step", _INT),
        ("images", _INT),
        ("correct", _INT),
        ("mean_entropy", _REAL),
        ("mean_plpd", _REAL),
        ("selected_entropy", _INT),
        ("selected", _INT),
        ("forwards", _INT),
        ("backwards", _INT),
        ("skipped", _FLAG),
        ("reset", _FLAG),
        ("recorded_at", _REAL),  # seconds since the epoch, when the block left the device
    ]
)

SAMPLES = pa.schema(
    [
        *_IDENTITY,
        ("position", _INT),  # in the stream
        ("index", _INT),  # in the image set
        ("label", _INT),
        ("group", _INT),
        ("domain", _TEXT),
        ("prediction", _INT),
        ("entropy", pa.float32()),
        ("plpd", pa.float32()),
        ("passed_entropy", _FLAG),
        ("passed_both", _FLAG),
    ]
)

AGGREGATES = pa.schema(
    [
        ("sweep", _TEXT),
        ("method", _TEXT),
        ("label", _TEXT),
        ("model", _TEXT),
        ("benchmark", _TEXT),
        ("corruption", _TEXT),
        ("severity", _INT),
        ("scenario", _TEXT),
        ("scenario_options", _TEXT),
        ("batch_size", _INT),
        ("pretrain_seeds", pa.list_(_INT)),
        ("metric", _TEXT),
        ("mean", _REAL),
        ("std", _REAL),  # sample standard deviation (ddof 1); null where n < 2
        ("n", _INT),
        ("seeds", pa.list_(_INT)),
        ("missing_seeds", pa.list_(_INT)),
        ("collapsed", _INT),
        ("protocol", _TEXT),
        ("precision", _TEXT),
        ("schema_version", _INT),
        # version 2
        ("nan_seeds", pa.list_(_INT)),  # committed, but the metric is NaN: not in mean, std and n; also missing
        ("corruptions", pa.list_(_TEXT)),  # those that the row spans: an average's, or a mixed stream's
        ("benchmark_options", _TEXT),  # JSON
        ("settings", _TEXT),  # JSON
        ("max_images", _INT),
    ]
)

GRAINS = {"runs": RUNS, "batches": BATCHES, "samples": SAMPLES}
