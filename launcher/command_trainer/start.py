"""The command line and the environment with which a process of the program is started."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from conf.plan.experiment import Experiment
from conf.plan.trainer_call import Call, call_of, torchrun_words
from launcher.command_trainer.seat import ProgramSeat, without_seat
from train_core.process.git_sha import ROOT
from train_core.trial_folder import TrialFolder
from train_core.whole_files import write_atomically

VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
OF_OUR_OWN_CODE = ("PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH")
"""What a job sets so that it runs the snapshot, and the snapshot alone."""

HUGGINGFACE_STARTER = Path(__file__).with_name("huggingface.py")
"""Run by a program's own Python, and never imported here: it needs transformers."""


@dataclass(frozen=True, slots=True)
class Start:
    """The command line and environment of one process; its output goes to `log`.

    Attributes:
        named_by: the key that gives the first of the words.
    """

    words: tuple[str, ...]
    named_by: str
    environment: dict[str, str]
    working_dir: str | None
    log: Path


def start_of(trial: TrialFolder, experiment: Experiment, seat: ProgramSeat, devices: tuple[int, ...] = ()) -> Start:
    """Return how the process of a seat is started, after writing the files that the program wants.

    Args:
        devices: GPUs of the process, as numbers among the visible ones; none leaves them as they are.
    """
    trainer = experiment.trainer
    python = trainer.python or sys.executable
    call = call_of(trainer, experiment, _job_names(trial, seat, python) | _earlier_folders(trial, experiment))
    for name, content in call.files.items():  # every process writes the same, as none knows when another has
        write_atomically(trial.path / name, content, durable=False)
    words = call.words
    if trainer.start == "torchrun":
        words = (*torchrun_words(python, seat.num_nodes, seat.ranks_per_node, call.words[0], _meeting(seat)), *words)
    return Start(
        words=(*trainer.prefix, *words),
        named_by="trainer.prefix" if trainer.prefix else "trainer.command",
        environment=_environment(os.environ, call, experiment, seat, devices),
        working_dir=trainer.working_dir and str(Path(trainer.working_dir).expanduser()),
        log=trial.rank_log(seat.first_rank),
    )


def _job_names(trial: TrialFolder, seat: ProgramSeat, python: str) -> dict[str, str | int]:
    return {
        "node_rank": seat.node_rank,
        "master_addr": seat.master_addr,
        "master_port": seat.master_port,
        "trial_folder": str(trial.path.absolute()),
        "python": python,
        "rank": seat.first_rank,
        "local_rank": seat.local_rank,
        "huggingface_starter": str(HUGGINGFACE_STARTER),
    }


def _earlier_folders(trial: TrialFolder, experiment: Experiment) -> dict[str, str | int]:
    """The folders of the stages before this one, which lie beside its own, wherever the sweep was moved."""
    if experiment.stage is None:
        return {}
    folders = experiment.stage.folders_beside(trial.path)
    return dict(zip(experiment.stage.folder_names, map(str, folders), strict=True))


def _meeting(seat: ProgramSeat) -> tuple[str, ...]:
    return (
        f"--node-rank={seat.node_rank}",
        f"--master-addr={seat.master_addr}",
        f"--master-port={seat.master_port}",
    )


def _environment(
    inherited: Mapping[str, str], call: Call, experiment: Experiment, seat: ProgramSeat, devices: tuple[int, ...]
) -> dict[str, str]:
    """The job's environment without what is there for our own code, and with what torch reads of a rank."""
    environment = without_own_code(without_seat(inherited))
    environment["PYTHONUNBUFFERED"] = "1"  # else steps would appear in the log long after they were made
    environment |= {"MASTER_ADDR": seat.master_addr, "MASTER_PORT": str(seat.master_port)}
    if experiment.trainer.start == "srun":
        environment |= {
            "RANK": str(seat.first_rank),
            "WORLD_SIZE": str(seat.size),
            "LOCAL_RANK": str(seat.local_rank),
            "LOCAL_WORLD_SIZE": str(seat.ranks_per_node),
            "GROUP_RANK": str(seat.node_rank),
        }
    for name in VISIBLE_DEVICES if devices else ():
        # Numbers count among the devices that this process sees, whose names may be others, such as UUIDs.
        visible = [entry for entry in inherited.get(name, "").split(",") if entry.strip()]
        environment[name] = ",".join(visible[device] if visible else str(device) for device in devices)
    # What a person sets for the program comes last, and so replaces ours.
    return environment | call.environment


def without_own_code(inherited: Mapping[str, str]) -> dict[str, str]:
    """An environment without what is there for our own packages, whose names a program may have, such as `conf`."""
    environment = {name: value for name, value in inherited.items() if name not in OF_OUR_OWN_CODE}
    ours = str(ROOT)
    theirs = [path for path in inherited.get("PYTHONPATH", "").split(os.pathsep) if path and path != ours]
    return environment | ({"PYTHONPATH": os.pathsep.join(theirs)} if theirs else {})
