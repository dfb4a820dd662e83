"""The files that a run keeps: a few, all of which MLflow's page can show."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from conf.credentials import HIDDEN
from conf.plan.experiment import Experiment
from sweeps.folder.submission import Submission
from sweeps.reading import Reading, TrialReading
from sweeps.trial import SweepFolder
from train_core.costs import estimate
from train_core.log_files import tail

REPORTS: tuple[Literal["html", "md", "csv"], ...] = ("html", "md", "csv")
EXPORTED = re.compile(r"^(export (?!PYTHON)\w+=)(?:'[^']*'|\"[^\"]*\"|[^\s'\"])*", re.MULTILINE)
"""The value that a job's script gives a variable, quoted for a shell; PYTHONPATH and its like are of this package."""

MAX_RECORD_BYTES = 20_000_000
"""Beyond this the sweep's record, which is in its folder, is not copied: a browser would not show it."""


def report_digest(folder: SweepFolder) -> str:
    """Changes when one of the report's files does; empty before there is a report."""
    reports = [folder.report(suffix) for suffix in REPORTS if folder.report(suffix).exists()]
    content = b"".join(hashlib.sha256(path.read_bytes()).digest() for path in reports)
    return hashlib.sha256(content).hexdigest()[:16] if reports else ""


def log_sweep_files(repository: Any, folder: SweepFolder) -> None:
    """The report, which opens on the run's page, and the record of what the sweep measures."""
    paths = [folder.report(suffix) for suffix in REPORTS]
    if folder.record.stat().st_size <= MAX_RECORD_BYTES:
        paths.append(folder.record)
    for path in paths:
        if path.exists():
            repository.log_artifact(str(path))


def log_trial_files(repository: Any, reading: Reading) -> None:
    """The resolved configuration, the prediction, the measurement, the end of the log, and what sbatch was given."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in _trial_files(reading).items():
            (Path(folder) / name).write_text(text)
        repository.log_artifacts(folder)


def _trial_files(reading: Reading) -> Mapping[str, str]:
    files: dict[str, str] = {}
    if reading.experiment is not None:
        # What another program finds in its environment may be a password.
        files["config.json"] = reading.experiment.model_dump_json(indent=1, exclude={"trainer": {"environment"}})
        files["estimate.json"] = _prediction(reading, reading.experiment)
    if reading.measurement is not None:
        files["measurement.json"] = reading.measurement.model_dump_json(indent=1)
    if reading.log is not None and (end := tail(reading.log).strip()):
        files["log_tail.txt"] = end + "\n"
    if reading.submission is not None and (script := _sbatch_text(reading.submission)):
        files["sbatch.sh"] = script
    return files


def _prediction(reading: Reading, experiment: Experiment) -> str:
    predicted = reading.trial.estimate if isinstance(reading, TrialReading) else None
    return (predicted or estimate(experiment)).model_dump_json(indent=1)


def _sbatch_text(submission: Submission) -> str:
    """Return the script that sbatch was given, kept beside the job's output, without the values of its variables.

    Empty for a job of this machine.
    """
    if submission.executor != "slurm" or submission.job_id is None:
        return ""
    array = submission.job_id.split("_")[0].split(".")[0]
    script = Path(submission.output).parent / f"{array}_submission.sh"
    try:
        return EXPORTED.sub(rf"\1{HIDDEN}", script.read_text(errors="replace"))
    except OSError:
        return ""
