"""Sentences about a shell's variables for sbatch."""

from __future__ import annotations

import pytest

from launcher.slurm.shell import shell_lines, without_srun_requests
from tests.launcher.conftest import SlurmOf


def test_a_line_says_whose_value_counts(slurm_of: SlurmOf, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shell_lines(slurm_of()) == []
    for name, value in {"SBATCH_ACCOUNT": "mine", "SBATCH_PARTITION": "urgent", "SBATCH_TIMELIMIT": "1"}.items():
        monkeypatch.setenv(name, value)
    counts, does_not = shell_lines(slurm_of("slurm.partition=gpu"))
    assert (
        counts == "From your shell, SBATCH_ACCOUNT=mine holds for these jobs, as the configuration states nothing else."
    )
    assert does_not.startswith("From your shell, SBATCH_PARTITION=urgent, SBATCH_TIMELIMIT=1 does not hold")
    assert shell_lines(slurm_of("slurm.scheduler=pbs")) == []


def test_a_step_is_not_changed_by_what_its_shell_says_of_tasks() -> None:
    of_the_job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_CONF": "/x", "PATH": "/bin"}
    of_the_shell = {"SLURM_LABELIO": "1", "SLURM_TIMELIMIT": "1", "SLURM_EXPORT_ENV": "NONE"}
    assert without_srun_requests(of_the_job | of_the_shell) == of_the_job
