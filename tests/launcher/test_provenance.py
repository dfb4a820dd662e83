"""What is kept of where numbers come from, and what is not."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from conf.folders import further_folders
from launcher.provenance import (
    keep_configuration,
    keep_job_provenance,
    keep_provenance,
    recorded_variables,
    remove_secrets,
)
from launcher.slurm.job_records import COLUMNS, keep_job_records
from sweeps.folder.submission import Submission, write_submission
from sweeps.reading import Reading
from sweeps.trial import SweepFolder
from tests.composed import composed
from tests.results.conftest import experiment
from train_core.job.failures import without_numbers
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import Outcome

PATCH = """diff --git a/.env b/.env
+PASSWORD=hunter2
diff --git a/conf/x.yaml b/conf/x.yaml
+api_key: hunter2
+url: https://me:hunter2@host/x
+num_layers: 4
diff --git a/certs/site.pem b/certs/site.pem
+hunter2
"""


def test_variables_are_kept_by_a_list_and_never_if_they_sound_like_secrets() -> None:
    environment = {
        "NCCL_DEBUG": "INFO",
        "LOADEDMODULES": "rocm/6.2",
        "SLURM_JOB_ID": "12",
        "PYTHONPATH": "/code",
        "SLURM_JWT": "secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "TORCH_HUB_TOKEN": "secret",
        "HOME": "/home/me",
        "FI_PROVIDER": "https://me:secret@host",
    }
    kept = recorded_variables(environment)
    assert list(kept) == ["FI_PROVIDER", "LOADEDMODULES", "NCCL_DEBUG", "PYTHONPATH", "SLURM_JOB_ID"]
    assert "secret" not in str(kept)


def test_a_patch_keeps_the_changes_and_no_secret() -> None:
    kept = remove_secrets(PATCH)
    assert "num_layers: 4" in kept
    assert "hunter2" not in kept
    assert kept.count("diff --git") == 1


def test_each_command_leaves_what_it_was_given_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADEDMODULES", "gcc/12:rocm/6.2")
    folder = SweepFolder(tmp_path / "sweep")
    own = tmp_path / "conf" / "cluster"
    own.mkdir(parents=True)
    with further_folders([own.parent]):
        keep_provenance(folder, ["cluster=frontier", "tracking.uri=https://me:pw@host"])
    (path,) = (folder.path / "provenance").glob("*.json")
    kept = json.loads(path.read_text())
    assert kept["overrides"] == ["cluster=frontier", "tracking.uri=https://host"]
    assert kept["config_words"] == ["--config-dir", str(own.parent)]
    assert kept["modules"] == ["gcc/12", "rocm/6.2"]
    assert {"torch", "numpy", "pydantic"} <= kept["packages"].keys()
    assert kept["git_sha"]
    if kept["uncommitted_changes"]:
        assert (folder.path / "provenance" / kept["uncommitted_changes"]).exists()


def test_an_odd_machine_is_written_down_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is no UTF-8, a user without a name, and a package of which an installer left half."""

    def no_name(number: int) -> None:
        raise KeyError(number)

    (tmp_path / "half.dist-info").mkdir()
    monkeypatch.setenv("LD_LIBRARY_PATH", "/lib\udcff")
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", no_name)
    monkeypatch.syspath_prepend(tmp_path)
    keep_provenance(SweepFolder(tmp_path), [])
    keep_job_provenance(TrialFolder(tmp_path))
    (of_command,) = (tmp_path / "provenance").glob("*.json")
    kept, of_trial = json.loads(of_command.read_text()), json.loads((tmp_path / "provenance.json").read_text())
    assert kept["user"] == str(os.getuid())
    assert "half" not in kept["packages"]
    assert kept["environment"]["LD_LIBRARY_PATH"] == of_trial["environment"]["LD_LIBRARY_PATH"] == "/lib?"


def test_the_configuration_is_kept_without_secrets(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path / "sweep")
    keep_configuration(folder, composed(["sweep=smoke", "+slurm.environment.TOKEN=t0ken"]).tree)
    text = (folder.path / "provenance" / "configuration.yaml").read_text()
    assert "num_layers" in text
    assert "t0ken" not in text


def test_a_folder_that_cannot_be_written_ends_nothing() -> None:
    keep_provenance(SweepFolder("/proc/none-such"), [])
    keep_job_provenance(TrialFolder("/proc/none-such"))


NAMES = ("12_0", "12_1", "12_2", "12_3", "13")


def test_slurms_record_is_kept_of_ended_jobs_that_are_ours(
    tmp_path: Path, tools: Callable[..., None], slurm_submission: Callable[..., Submission]
) -> None:
    readings = [_ended(tmp_path / name, slurm_submission(name, job_name=name)) for name in NAMES]
    rows = [
        ["12_0", "12_0", "local", "COMPLETED"],
        ["12_1", "somebody-elses", "local", "COMPLETED"],
        ["12_2", "12_2", "local", "RUNNING"],  # the accounting hears of its end later
        ["12_3", "12_3", "local", "CANCELLED by 1000"],
    ]
    lines = "\n".join("|".join([*row, *["x"] * (len(COLUMNS) - len(row))]) for row in rows)
    tools(sacct=f"echo '{lines}'; echo asked >> {tmp_path}/questions")
    assert keep_job_records(readings) == 2
    assert not (tmp_path / "12_2" / "slurm_job.json").exists()
    assert json.loads((tmp_path / "12_0" / "slurm_job.json").read_text())["JobName"] == "12_0"
    assert keep_job_records(readings[:1]) == 0
    assert (tmp_path / "questions").read_text() == "asked\n"


def _ended(path: Path, submission: Submission) -> Reading:
    folder = TrialFolder(path)
    path.mkdir()
    write_submission(folder, submission)
    folder.write_measurement(without_numbers(experiment().fingerprint, Outcome.FAILED, "it broke", 0.0))
    return Reading(folder=folder, experiment=experiment())
