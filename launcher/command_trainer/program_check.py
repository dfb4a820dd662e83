"""Looks for another trainer's program and folder before anything starts: what is not there fails every trial alike."""

from __future__ import annotations

import shutil
from collections.abc import Hashable, Sequence
from itertools import pairwise
from pathlib import Path

from conf.errors import ConfigError
from conf.nearest import most_like
from conf.plan.experiment import Experiment
from conf.plan.trainer_call import JOB_NAMES, call_of
from sweeps.trial import SweepRecord

OF_THE_JOB = "\N{REPLACEMENT CHARACTER}"
"""Stands for what only the job knows, such as its folder: what holds it is not looked for."""


def require_programs(record: SweepRecord, *, on_slurm: bool) -> None:
    """Refuse a sweep whose program, its script or its folder is not there.

    A bare name may be one that a job's modules bring, so that it is looked for where trials run on this machine alone;
    what `trainer.prefix` starts, such as a container, may have files of its own.

    Raises:
        ConfigError: names what is missing, and where it was looked for.
    """
    seen = set[Hashable]()
    for trial in record.trials:
        if trial.selected and trial.experiment is not None and not trial.experiment.trainer.is_own:
            experiment = trial.experiment
            looked_for = (experiment.trainer.working_dir, experiment.trainer.prefix, _words(experiment))
            if looked_for not in seen:
                _require_program(experiment, looked_for[-1], on_slurm=on_slurm)
            seen.add(looked_for)


def _words(experiment: Experiment) -> tuple[str, ...]:
    """The words that may name a program or its script."""
    trainer, folders = experiment.trainer, experiment.stage.folder_names if experiment.stage else ()
    names = dict.fromkeys((*JOB_NAMES, *folders), OF_THE_JOB) | {"python": trainer.python or OF_THE_JOB}
    words = call_of(trainer.model_copy(update={"flags": {}}), experiment, names).words
    # torchrun is started by a Python, and is given a script, a module or a program.
    return (trainer.python or OF_THE_JOB, *words) if trainer.start == "torchrun" else words


def _require_program(experiment: Experiment, words: Sequence[str], *, on_slurm: bool) -> None:
    trainer = experiment.trainer
    alone = " What the nodes alone have is not looked for behind trainer.prefix=[env]." if on_slurm else ""
    folder = Path(trainer.working_dir or ".").expanduser()
    if trainer.prefix and (on_slurm or folder.is_dir()):
        return
    if not folder.is_dir():
        remedy = "Give the folder of the program; null takes the one in which the sweep is started."
        raise ConfigError("trainer.working_dir", trainer.working_dir, "is not a folder here", remedy + alone)
    files = [word for word in (words[0], _script_in(words)) if "/" in word or word.endswith((".py", ".sh"))]
    for name in files:
        if OF_THE_JOB not in name and not (folder / Path(name).expanduser()).is_file():
            like = most_like(name, sorted(path.name for path in folder.glob("*.py")))
            remedy = f"Did you mean {like}?" if like else "Give the path from trainer.working_dir on."
            problem = f"names {name}, and there is no such file in {folder.absolute()}"
            raise ConfigError("trainer.command", trainer.command, problem, remedy + alone)
    if not on_slurm and words[0] not in (*files, OF_THE_JOB) and shutil.which(words[0]) is None:
        problem = f"names {words[0]}, and no program of this name is on the PATH"
        raise ConfigError("trainer.command", trainer.command, problem, "Give its path, or load what brings it.")


def _script_in(words: Sequence[str]) -> str:
    """The script that a Python, a shell or another launcher is given; empty without one."""
    for before, word in pairwise(words):
        if word in ("-m", "-c"):
            return ""
        if word.endswith((".py", ".sh")) and ("=" in before or not before.startswith("--")):
            return word
    return ""
