"""Folders that earlier code wrote are read, and what they measured is recognised as the same experiment.

`old_sweep` was written when an experiment held a tokenizer and a number of bytes also where it reads no text.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeps.trial import SweepFolder
from tests.composed import load

OLD_SWEEP = SweepFolder(Path(__file__).parent / "old_sweep")
TRIAL = "tp1-pp1-dp1-mb1-gb8-3885f1"
GPT_3 = ["model=gpt-175b", "cluster=frontier", "parallel=frontier-175b"]
LLAMA = ["model=llama-3.1-8b", "cluster=dgx-h100", "parallel.world_size=16", "batch.global_batch_size=64"]
RECOMPUTED = ["precision=bf16", "training.dropout=0.1", "parallel.recompute=full", "parallel.recompute_every=2"]


def test_an_old_measurement_belongs_to_the_experiment_of_its_trial() -> None:
    (trial,) = OLD_SWEEP.read_record().trials
    measurement, experiment = OLD_SWEEP.trial(TRIAL).read_measurement(), OLD_SWEEP.trial(TRIAL).read_experiment()
    assert measurement is not None
    assert trial.experiment is not None
    assert measurement.fingerprint == experiment.fingerprint == trial.experiment.fingerprint


def test_what_old_files_say_of_text_that_is_not_read_is_nothing() -> None:
    (trial,) = OLD_SWEEP.read_record().trials
    assert trial.experiment is not None
    assert trial.experiment.data == load(["data=synthetic"]).data
    assert trial.experiment.data.max_bytes is None


@pytest.mark.parametrize(
    ("overrides", "fingerprint"),
    [
        (["data=synthetic"], "1e83473119bd"),
        (["data=megatron", "data.path=x"], "b2cd5efc5e6d"),
        (["data=text-bpe"], "f6aeec8f631a"),
        (["data=text", "data.source=synthetic"], "deb3d7274481"),
        (["data=text", "data.max_bytes=20000"], "21324e16e5da"),
        (
            [
                "model=gpt-175b",
                "cluster=frontier",
                "parallel=frontier-175b",
                "precision=fp16",
                "batch.global_batch_size=1536",
            ],
            "f700dbab1422",
        ),
        (
            [
                "model=llama-3.1-8b",
                "model.rotary_scaling=null",  # as when its positions were not yet scaled
                "cluster=dgx-h100",
                "precision=bf16",
                "parallel.world_size=16",
                "batch.global_batch_size=64",
                "training.dropout=0.1",
                "parallel.recompute=full",
                "parallel.recompute_every=2",
            ],
            "5d718f6d855a",
        ),
    ],
)
def test_the_fingerprint_of_a_configuration_is_that_of_folders_written_before(
    overrides: list[str], fingerprint: str
) -> None:
    assert load(overrides).experiment().fingerprint == fingerprint
