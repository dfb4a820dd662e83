"""Looks at another trainer's program before anything starts: what is not there, or it does not take, fails all trials.

A parser can be asked where the configuration names the program's checkout or its Python, and that Python can import it
here: Megatron-LM's arguments, their checks and its configuration; torchtitan's `JobConfig`. Of every other program,
what a person has said and it is not told is known all the same: keys of points, which it would run twice, and a Python.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from conf.errors import ConfigError
from conf.grouped import grouped
from conf.nearest import most_like
from conf.plan.experiment import Experiment
from conf.plan.trainer_call import JOB_NAMES, call_of
from conf.types.trainer_spec import TrainerSpec
from launcher.command_trainer.process import without_own_code
from sweeps.labels import dotted_value
from sweeps.trial import SweepRecord, Trial

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


PROGRAM = Path(__file__).with_name("parser_program.py")
"""Run by a trainer's own Python; this one never imports it."""

TIMEOUT_SECONDS = 900.0
"""A first import of torch and a trainer from a network file system takes minutes."""

CAPABILITIES = {"V100": 7, "A100": 8, "A800": 8, "B200": 10, "B300": 10, "GB200": 10, "GB300": 10}
"""Major compute capability by the beginning of a device's name, where it is not Hopper's 9. Source: CUDA's list."""


class UncheckedError(Exception):
    """The parser cannot be asked here: why, in one sentence."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A command line that a parser does not take.

    Attributes:
        flag: the flag that it does not know; None where it knows all of them.
        known: the flags that it has.
    """

    problem: str
    flag: str | None
    known: tuple[str, ...]


def names_its_place(trainer: TrainerSpec) -> bool:
    """True if the configuration says where the program's own parser is."""
    named = trainer.working_dir or trainer.python or Path(*trainer.command[:1]).is_file()
    return trainer.parser is not None and bool(named)


def check_record(record: SweepRecord, warn: Callable[[str], None]) -> SweepRecord:
    """The record in which a trial that its program's own parser refuses cannot run, and says so.

    `warn` takes a sentence for each program whose parser cannot be asked here.

    Raises:
        ConfigError: a program has no such flag.
    """
    selected = ((trial.trial_id, trial.experiment) for trial in record.trials if trial.selected and trial.experiment)
    asked = [(trial_id, experiment) for trial_id, experiment in selected if names_its_place(experiment.trainer)]
    refused: dict[str, str] = {}
    for alike in grouped(asked, lambda each: _parser_of(each[1].trainer)).values():
        experiments = [experiment for _, experiment in alike]
        try:
            refusals = refusals_of(experiments)
        except UncheckedError as reason:
            warn(f"The flags of {experiments[0].trainer.name} were not checked by its own parser: {reason}.")
            continue
        for (trial_id, experiment), refusal in zip(alike, refusals, strict=True):
            if refusal is not None:
                refused[trial_id] = _reason_of(experiment.trainer, refusal)
    trials = (
        trial.model_copy(update={"selected": False, "infeasible_reason": refused[trial.trial_id]})
        if trial.trial_id in refused
        else trial
        for trial in record.trials
    )
    return record.model_copy(update={"trials": tuple(trials)})


def _parser_of(trainer: TrainerSpec) -> Hashable:
    """What decides which parser is asked, and how."""
    return (trainer.parser, trainer.python, trainer.working_dir, trainer.prefix)


def _reason_of(trainer: TrainerSpec, refusal: Refusal) -> str:
    """The reason why a plan cannot run. A flag that the program does not have is refused, as no plan could run."""
    if refusal.flag is None:
        return f"trainer = {trainer.name}: its own parser refuses the command: {refusal.problem}"
    name = refusal.flag.lstrip("-")
    bare = {option.lstrip("-"): option for option in refusal.known}
    meant = most_like(name.replace("-", "_"), [option.replace("-", "_") for option in bare])
    nearest = next((option for key, option in bare.items() if key.replace("-", "_") == meant), None)
    remedy = f"Did you mean {nearest}?" if nearest else "Look at the flags of its version, or leave this one out."
    raise ConfigError(f"trainer.flags.{name}", refusal.flag, f"is not a flag of {trainer.name}", remedy)


def refusals_of(experiments: Sequence[Experiment]) -> list[Refusal | None]:
    """What the parser of a program, which all of the experiments share, refuses of each command; None: nothing.

    Raises:
        UncheckedError: it cannot be asked here.
    """
    trainer = experiments[0].trainer
    if trainer.prefix:
        raise UncheckedError(f"it is started by {trainer.prefix[0]} (trainer.prefix), which is left to the job")
    request = {"parser": trainer.parser, "calls": [_call_for_parser(experiment) for experiment in experiments]}
    answer = _answer(trainer, request)
    if "missing" in answer:
        raise UncheckedError(answer["missing"])
    return [entry and Refusal(entry["problem"], entry["flag"], tuple(entry["known"])) for entry in answer["refusals"]]


def _call_for_parser(experiment: Experiment) -> dict[str, Any]:
    call = call_of(experiment.trainer, experiment, {**dict.fromkeys(JOB_NAMES, "0"), "trial_folder": "."})
    first = next((index for index, word in enumerate(call.words) if word.startswith("--")), len(call.words))
    device = experiment.cluster.device.name
    return {
        "words": call.words[first:],
        "environment": call.environment,
        "world_size": experiment.parallel.world_size,
        "capability": next((major for name, major in CAPABILITIES.items() if device.startswith(name)), 9),
    }


def _answer(trainer: TrainerSpec, request: dict[str, Any]) -> Any:
    folder = trainer.working_dir and str(Path(trainer.working_dir).expanduser())
    with tempfile.TemporaryDirectory() as temporary:
        answer = Path(temporary) / "answer.json"
        try:
            ended = subprocess.run(
                [trainer.python or sys.executable, str(PROGRAM), str(answer)],
                input=json.dumps(request),
                cwd=folder,
                env=without_own_code(os.environ) | request["calls"][0]["environment"],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
        except OSError as error:
            raise UncheckedError(f"{error.filename} cannot be started ({error.strerror})") from None
        except subprocess.TimeoutExpired:
            raise UncheckedError(f"it took longer than {TIMEOUT_SECONDS:g} s") from None
        if not answer.is_file():
            last = (ended.stderr.strip().splitlines() or ["nothing"])[-1]
            raise UncheckedError(f"it ended with code {ended.returncode} and said {last}")
        return json.loads(answer.read_text())


def untold_keys(record: SweepRecord) -> list[str]:
    """The keys in which points differ that start another program with the same words, files and variables."""
    started = ((trial, trial.experiment) for trial in record.trials if trial.selected and not trial.stage)
    others = [(trial, experiment) for trial, experiment in started if experiment and not experiment.trainer.is_own]
    groups = grouped(others, lambda each: _start_of(each[1]))
    return sorted({key for trials in groups.values() for key in _differing_keys(trials)})


def starts_without_python(record: SweepRecord) -> bool:
    """True if trainer.python was given for programs that are started by their own words, none of which asks for it."""
    trainers = [trial.experiment.trainer for trial in record.trials if trial.selected and trial.experiment]
    return any(
        trainer.python is not None
        and trainer.start != "torchrun"
        and not any("{python}" in word for word in (*trainer.prefix, *(trainer.command or ())))
        for trainer in trainers
    )


def _differing_keys(trials: list[tuple[Trial, Experiment]]) -> set[str]:
    keys = {key for trial, _ in trials for key in trial.point}
    return {key for key in keys if len({dotted_value(experiment, key) for _, experiment in trials}) > 1}


def _start_of(experiment: Experiment) -> Hashable:
    """All that the program finds when it is started, but for its place."""
    trainer = experiment.trainer
    call = call_of(trainer, experiment, {**dict.fromkeys(JOB_NAMES, "0"), "trial_folder": "."})
    how = (trainer.start, trainer.prefix, trainer.python, trainer.working_dir, experiment.cluster.name)
    shape = (experiment.parallel.world_size, experiment.num_nodes)
    return (*how, *shape, call.words, *(tuple(sorted(part.items())) for part in (call.files, call.environment)))
