"""What a dry run says below the texts for sbatch: what stands in them, what does not, and what Slurm would say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from cli.output.console import print_unwrapped
from conf.compose.settings import Settings
from conf.credentials import hide_credentials
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

WORDS = {
    r"\bTOKEN\b": "TOKEN: digits that no other job has in its name",
    r"\bSNAPSHOT\b": "SNAPSHOT: the copy of the code that is made at submission, and that jobs run",
    r"\bSHA256\b": "SHA256: the checksum of that copy, or of the job's own file, so that nothing else is run",
    r"--signal=\S+@0\b": "--signal=...@0: no warning before the time limit, as these jobs save nothing",
    r"--signal=\S+@[1-9]": "--signal=...@N: Slurm warns the job N seconds before its time limit, to save and requeue",
}
"""What a text for sbatch holds that needs a word, by its pattern."""

DEFAULTS = {
    "slurm.partition": "jobs go to the site's default partition",
    "slurm.account": "your default account is charged",
    "slurm.qos": "jobs get your default QOS, with its limits",
    "slurm.cpus_per_task": "most sites give a rank one core, too few for a GPU",
    "slurm.extra_sbatch.mem": "most sites give some GB for each core and end a job that needs more; 0 takes all of a"
    " node's",
    "slurm.extra_sbatch.requeue": "the site decides whether Slurm runs a job again whose node failed; true or false"
    " says it",
}
"""What a site's own default then does, by the key that is unset, whose last part is the option's name."""


def explain(texts: Sequence[str], settings: Settings) -> None:
    """Print what the texts' placeholders are, what they leave to the site, and what the doctor finds without a job."""
    text = "\n".join(texts)
    if not text:
        return
    for line in (says for pattern, says in WORDS.items() if re.search(pattern, text)):
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
    for key, says in DEFAULTS.items():
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
