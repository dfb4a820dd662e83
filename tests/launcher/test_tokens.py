"""Which tokens a sweep's trials need, before the first of them starts."""

from __future__ import annotations

from pathlib import Path

import pytest

import train_core.data.tokens
from conf.plan.experiment import Experiment
from launcher.sweep import prepare_tokens
from sweeps.trial import SweepFolder
from tests.conftest import RecordOf


def test_trials_that_differ_in_what_no_token_depends_on_prepare_them_once(
    record_of: RecordOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[Experiment] = []
    monkeypatch.setattr(train_core.data.tokens, "prepare", lambda experiment, _: prepared.append(experiment))
    points = [{"training.seed": seed, "model.seq_length": length} for seed in range(4) for length in (8, 16)]
    record = record_of(points)
    trials = tuple(trial.model_copy(update={"selected": True}) for trial in record.trials)
    prepare_tokens(SweepFolder(tmp_path), record.model_copy(update={"trials": trials}))
    assert sorted(experiment.model.seq_length for experiment in prepared) == [8, 16]
