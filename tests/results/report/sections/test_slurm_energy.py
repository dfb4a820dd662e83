"""What Slurm's accounting says of a job's power."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from results.report.sections.cost import slurm_watts
from train_core.trial.folder import TrialFolder


@pytest.mark.parametrize(
    ("joules", "elapsed", "watts"),
    [
        ("120000", "60", 2000.0),
        ("0", "60", None),  # as a site without a plugin for energy shows it
        ("", "60", None),
        ("18446744073709551614", "60", None),
        ("120000", "0", None),
    ],
)
def test_power_is_joules_over_elapsed_seconds(tmp_path: Path, joules: str, elapsed: str, watts: float | None) -> None:
    folder = TrialFolder(tmp_path)
    folder.slurm_job.write_text(json.dumps({"ConsumedEnergyRaw": joules, "ElapsedRaw": elapsed}))
    assert slurm_watts(folder) == watts


@pytest.mark.parametrize("text", [None, "", "[]", "{}"])
def test_a_folder_without_a_sound_record_has_no_such_power(tmp_path: Path, text: str | None) -> None:
    folder = TrialFolder(tmp_path)
    if text is not None:
        folder.slurm_job.write_text(text)
    assert slurm_watts(folder) is None
