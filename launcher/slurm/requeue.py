"""The job in which this process runs: its number, and having Slurm run it again. No torch."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping


def own_job_id(environment: Mapping[str, str] = os.environ) -> str:
    """The job's number as squeue and submissions have it: every element of an array also has another of its own."""
    if "SLURM_ARRAY_JOB_ID" in environment:
        return f"{environment['SLURM_ARRAY_JOB_ID']}_{environment['SLURM_ARRAY_TASK_ID']}"
    # A heterogeneous job goes by the number of its first component.
    return environment.get("SLURM_JOB_ID_HET_GROUP_0") or environment["SLURM_JOB_ID"]


def requeue() -> None:
    """Have Slurm run this job again; it goes on from what was saved."""
    # A site may forbid requeueing. Everything is saved by now, so a refusal is worth a line and is no failure.
    command = ["scontrol", "requeue", own_job_id()]
    try:
        refusal = subprocess.run(command, capture_output=True, text=True, check=False)
        said = refusal.stderr.strip() if refusal.returncode else ""
    except OSError as error:
        said = str(error)
    if said:
        print(f"saved, but Slurm did not requeue the job ({said}); the command that submitted it goes on from there")
