"""AURC from recorded samples, run by run."""

from __future__ import annotations

import numpy as np
import pytest
import store_runs as sr

from deyo.confidence import aurc
from deyo.types import ConfigError
from orchestrator import open_results
from orchestrator.risk import aurc_by_run
from orchestrator.store import ParquetStore, compactor


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(compactor, "ROW_GROUP", 50)  # runs of 72 images lie across row groups
    store = ParquetStore(str(tmp_path), "sweep")
    for seed in range(5):
        sr.run_once(store, sr.planned(seed), steps=9, samples=seed != 3)
        if seed == 2:
            compactor.compact(store.tree)
    return open_results(str(tmp_path))


@pytest.mark.parametrize(("score", "sign"), [("entropy", -1), ("plpd", 1)])
def test_every_run_has_the_area_that_its_samples_give(results, score, sign):
    found = {r["run_id"]: r for r in aurc_by_run(results, score).to_pylist()}
    frame = results.pandas("samples")
    assert set(found) == set(frame["run_id"])
    assert len(found) == 4
    for run_id, rows in frame.groupby("run_id"):
        rows = rows.sort_values("position")
        correct = (rows["prediction"] == rows["label"]).to_numpy()
        assert found[run_id]["aurc"] == aurc(sign * rows[score].to_numpy(), correct)
        assert (found[run_id]["samples"], found[run_id]["accuracy"]) == (72, correct.mean())
    assert len(np.unique([r["aurc"] for r in found.values()])) == 1  # all runs have the same samples


def test_runs_can_be_chosen_and_scores_are_checked(results):
    one = sr.planned(4).run_id
    assert aurc_by_run(results, run_ids=[one])["run_id"].to_pylist() == [one]
    assert len(aurc_by_run(results, run_ids=["0" * 16])) == 0
    with pytest.raises(ConfigError, match="expected one of entropy, plpd"):
        aurc_by_run(results, "margin")
