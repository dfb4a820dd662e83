"""What a dry run says below the texts for sbatch: what stands in them, what does not, and what Slurm would say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from cli.output.console import print_unwrapped
from conf.compose.settings import Settings
from conf.credentials import hide_credentials
from conf.folders import package_content
from conf.types.sbatch_options import sbatch_table
from conf.types.sites import SlurmSpec
from launcher.command_trainer.process import shown_command
from launcher.doctor.node_report import DoctorFolder
from launcher.doctor.slurm_checks import slurm_findings
from launcher.doctor.tiny_job import TinyJob
from launcher.slurm.shell import shell_lines
from launcher.where import slurm_answers
from sweeps.sweep import Sweep
from sweeps.trial import Trial

WORDS = package_content("explained.yaml", "cli.output")


def explain(texts: Sequence[str], settings: Settings) -> None:
    """Print what the texts' placeholders are, what they leave to the site, and what the doctor finds without a job."""
    text = "\n".join(texts)
    if not text:
        return
    for line in (says for pattern, says in WORDS["words"].items() if re.search(pattern, text)):
        print_unwrapped(f"  {line}")
    if settings.slurm.scheduler == "pbs":
        return
    print_shell_lines(settings.slurm)
    if unset := [*_unset(text, settings)]:
        print_unwrapped("Not stated, so that the site decides:")
    for line in unset:
        print_unwrapped(f"  {line}")
    _print_findings(settings)


def print_shell_lines(slurm: SlurmSpec) -> None:
    """Print whose value counts where this shell has one for sbatch, too."""
    for line in shell_lines(slurm):
        print_unwrapped(line)


def _unset(text: str, settings: Settings) -> Iterator[str]:
    is_on_gpus, table = settings.cluster.device.kind == "gpu", sbatch_table()
    given = {table.option(name) for name in re.findall(r"^#SBATCH (-[\w-]+)", text, re.MULTILINE)}
    for key, says in WORDS["defaults"].items():
        option = key.rpartition(".")[2].replace("_", "-")
        # A rank on a CPU is a core.
        is_needed = is_on_gpus or option != "cpus-per-task"
        if is_needed and given.isdisjoint({option, *table.rivals.get(option, ())}):
            yield f"{key}: {says}"
    if is_on_gpus and not (settings.slurm.setup or settings.slurm.environment):
        yield "slurm.setup, slurm.environment: no module is loaded, and NCCL or RCCL chooses its network by itself"


def _print_findings(settings: Settings) -> None:
    """The doctor's warnings and problems about Slurm, where it answers; a dry run needs none."""
    if not slurm_answers():
        return
    folder = DoctorFolder(Path(settings.output_dir).absolute() / f"doctor-{settings.cluster.name}")
    for found in slurm_findings(TinyJob(settings.slurm, settings.cluster, folder)):
        if found.status in ("warning", "problem"):
            print_unwrapped(f"Doctor: {found.status}: {found.name}: {found.says}. {found.remedy}")


def print_command_of(trial: Trial, sweep: Sweep) -> None:
    """Print what runs in the end, which the text for sbatch does not show."""
    experiment = trial.planned
    if experiment.trainer.is_own:
        print_unwrapped(f"Its tasks train {trial.trial_id} with Trisweep's own trainer; no other program is started.")
        return
    print_unwrapped(f"Its first task starts, for {trial.trial_id}:")
    print_unwrapped(f"  {hide_credentials(shown_command(sweep.folder_of(trial), experiment))}")
