"""From `SlurmSpec` to what submitit gives to sbatch: parameters, the job's container and shell command, the exact text.

At the end, the file for sbatch of a command that somebody starts by hand: what a job of a trial asks for, and no trial.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from conf.credentials import HIDDEN
from conf.errors import ConfigError
from conf.plan.experiment import Experiment
from conf.types.sbatch_options import sbatch_table, srun_options
from conf.types.sites import SlurmSpec
from conf.units import SECONDS_PER_MINUTE
from launcher.job_payload import PREFLIGHT, REFUSES
from launcher.provenance import checksum_command, checksum_of
from launcher.slurm.shell import shell_options
from launcher.submitit_internals import sbatch_names, sbatch_string
from sweeps.folder.submission import JobShape, shape_of

OWN_VARIABLES = ("PYTHONPATH", "PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE")
OF_THE_JOB = (
    *("SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_NUM_NODES", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"),
    *("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_LAUNCH_NODE_IPADDR"),
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
)
"""What the code of a trial reads of its job; enroot hands over the variables that are named, and no others."""
DRIVER_LIBRARIES = {"nvidia": "--nv", "amd": "--rocm"}

OF_EVERY_STEP = {"kill-on-bad-exit": "--kill-on-bad-exit=1", "export": "--export=ALL"}
ONE_GPU_PER_TASK = ("gpus-per-task", "gpu-bind", "ntasks-per-gpu")
SAVE_SECONDS = 180
"""How long before its time limit a job is warned, to write a checkpoint; `slurm.extra_sbatch.signal` says otherwise."""
LEAST_WARNINGS = 3
"""A time limit must be at least so many times SAVE_SECONDS: once to start, once to train, and once to save."""

CONTROL = re.compile(r"[\x00-\x1f\x7f]")
IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
GPU = re.compile(r"(^|[,/])gpu(?![\w-])")
"""How a list of generic resources names GPUs."""


def container_srun_args(slurm: SlurmSpec) -> list[str]:
    """Options of srun where its plugin pyxis starts the container.

    What our job exports holds inside too; else variables of the image would come before it.
    """
    if slurm.container != "pyxis":
        return []
    mounts = ",".join(_both_sides(mount) for mount in slurm.container_mounts)
    names = ",".join((*OWN_VARIABLES, *slurm.environment))
    given = [f"--container-mounts={mounts}"] if mounts else []
    return [f"--container-image={slurm.container_image}", *given, f"--container-env={names}"]


def _apptainer(slurm: SlurmSpec) -> list[str]:
    # A driver's libraries have to fit the node's kernel module, and so come from the node and not from the image.
    libraries = [DRIVER_LIBRARIES[slurm.container_gpus]] if slurm.container_gpus else []
    binds = (f"--bind={mount}" for mount in slurm.container_mounts)
    return [slurm.container, "exec", *libraries, *binds, str(slurm.container_image)]


def _charliecloud(slurm: SlurmSpec) -> list[str]:
    binds = (f"--bind={_both_sides(mount)}" for mount in slurm.container_mounts)
    return ["ch-run", *binds, str(slurm.container_image), "--"]


def _enroot(slurm: SlurmSpec) -> list[str]:
    mounts = (word for mount in slurm.container_mounts for word in ("--mount", _both_sides(mount)))
    names = (*OWN_VARIABLES, *slurm.environment, *OF_THE_JOB)
    return [
        "enroot",
        "start",
        *mounts,
        *(word for name in names for word in ("--env", name)),
        str(slurm.container_image),
    ]


def _both_sides(mount: str) -> str:
    """A folder that is mounted under its own name has to say so twice."""
    return mount if ":" in mount else f"{mount}:{mount}"


WORDS: Mapping[str, Callable[[SlurmSpec], list[str]]] = {
    "apptainer": _apptainer,
    "singularity": _apptainer,
    "charliecloud": _charliecloud,
    "enroot": _enroot,
}
"""Sources: apptainer exec, ch-run 0.31, enroot start, and the options that pyxis gives to srun, by their manuals."""


def sbatch_parameters(
    slurm: SlurmSpec, shape: JobShape, code: Path | None, job_name: str, *, requeues: bool = False
) -> dict[str, Any]:
    """Arguments of submitit's `SlurmExecutor.update_parameters`, for jobs of one shape that run the code in `code`.

    Without any they are those of a script that runs none of ours.

    A job that requeues itself is warned before its time limit, to save. A trial without checkpoints gets no such
    warning: the signal would turn its time-out into an error.

    Raises:
        ConfigError: `slurm.extra_sbatch` contradicts itself or the trial, or a value cannot be written into a script.
    """
    _require_plain(slurm)
    optional = {
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "cpus_per_task": _cpus_per_task(slurm, shape),
    }
    return {
        "job_name": job_name,
        "time": slurm.time_limit_minutes,
        "nodes": shape.num_nodes,
        "ntasks_per_node": shape.tasks_per_node,
        "array_parallelism": slurm.array_parallelism,
        "signal_delay_s": SAVE_SECONDS if requeues else 0,
        "wckey": None,  # submitit's own default is refused where wckeys are tracked
        "setup": setup_lines(slurm, code),
        "srun_args": srun_args(slurm, shape),
        **{name: value for name, value in optional.items() if value is not None},
        **gpu_request(slurm, shape),
        "additional_parameters": {**shell_options(slurm).options, **_extra(slurm, shape, requeues=requeues)},
    }


def require_time_to_save(slurm: SlurmSpec) -> None:
    """Raises ConfigError where a job would be warned of its time limit before it has trained for long."""
    least = LEAST_WARNINGS * SAVE_SECONDS / SECONDS_PER_MINUTE
    if "signal" not in slurm.extra_sbatch and slurm.time_limit_minutes < least:
        problem = f"is too short: {SAVE_SECONDS} s before its end Slurm warns the job, which then saves"
        remedy = f"Give at least {least:g} minutes."
        raise ConfigError("slurm.time_limit_minutes", slurm.time_limit_minutes, problem, remedy)


def sbatch_text(parameters: dict[str, Any], logs: Path, num_folders: int, command: str) -> str:
    """The text that submitit gives to sbatch: one array of so many jobs, each task of which runs the shell command.

    Raises:
        ConfigError: the path of the logs means something else to Slurm.
    """
    require_plain_path(logs)
    map_count = num_folders if num_folders > 1 else None  # a single job needs no array
    return sbatch_string(command, logs, map_count, parameters)


def require_plain_path(logs: Path) -> None:
    """Raises ConfigError where Slurm would read the path of the logs as something else."""
    if "%" in str(logs) or CONTROL.search(str(logs)):
        problem = "holds a % or a control character, which Slurm reads as something else in the paths of a job's output"
        raise ConfigError("output_dir", str(logs), problem, "Choose another with output_dir=PATH.")


def python_command(slurm: SlurmSpec) -> str:
    """The interpreter on the compute nodes, in its container where there is one, quoted for a shell.

    Raises:
        ConfigError: a quotation mark is left open.
    """
    own = "python3" if slurm.container != "none" else sys.executable
    python = _words("python", slurm.python) if slurm.python else [own]
    return shlex.join([*container_words(slurm), *python])


def container_words(slurm: SlurmSpec) -> list[str]:
    """The words before a program that start the container; none where srun starts it (pyxis), or there is none."""
    container = WORDS[slurm.container](slurm) if slurm.container in WORDS else []
    return [*_words("container_prefix", slurm.container_prefix or ""), *container]


def _words(key: str, value: str) -> list[str]:
    """The words of a setting, as a shell takes them apart; it expands nothing in them, and runs nothing."""
    try:
        return shlex.split(value)
    except ValueError as error:
        raise ConfigError(f"slurm.{key}", value, f"cannot be read ({error})", "Close every quotation mark.") from None


def _require_plain(slurm: SlurmSpec) -> None:
    """A line break in a value would end its `#SBATCH` line, and what follows would be taken for a line of its own."""
    own = {key: getattr(slurm, key) for key in ("partition", "account", "qos", "constraint", "gpu_type")}
    extra = {f"extra_sbatch.{option}": f"{option}{value}" for option, value in slurm.extra_sbatch.items()}
    for key, value in (own | extra).items():
        if value is not None and CONTROL.search(value):
            raise ConfigError(f"slurm.{key}", value, "holds a control character", "Write it on one line.")
    for name in slurm.environment:
        if not IDENTIFIER.fullmatch(name):
            remedy = "Use letters, digits and underscores, and begin with no digit."
            raise ConfigError("slurm.environment", f"{name}={HIDDEN}", f"{name!r} cannot name a variable", remedy)


def setup_lines(slurm: SlurmSpec, code: Path | None) -> list[str]:
    """The site's lines first: a module may set the variables that follow. Without code of ours, its variables alone.

    PYTHONSAFEPATH keeps the folder of submission, perhaps a checkout being edited, from hiding the snapshot, and
    PYTHONDONTWRITEBYTECODE keeps the snapshot as it is checked, where nodes have another Python.
    """
    if code is None:
        return [*slurm.setup, *_exports(slurm.environment)]
    exported = {"PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1", **slurm.environment}
    if slurm.preflight:
        exported[PREFLIGHT] = "1"
    # The colon comes only with what follows it: an empty entry would stand for the working folder.
    path = f"export PYTHONPATH={shlex.quote(str(code))}${{PYTHONPATH:+:$PYTHONPATH}}"
    return [*slurm.setup, *_check_of(code), path, *_exports(exported)]


def _exports(variables: Mapping[str, str]) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


def _check_of(code: Path) -> list[str]:
    """Lines that end the job where the snapshot is not what it was at submission: somebody may have replaced it.

    Slurm keeps the script, and with it the checksum. Where the code is only shown, its place stands for the checksum.
    """
    expected = checksum_of(code) if code.exists() else "SHA256"
    how = "somebody has changed or replaced it, or lets others write there. Give the command again."
    return [
        f'if [ "$({checksum_command(code)})" != {expected} ]; then',
        f"  echo {shlex.quote(f'{REFUSES}{code} is not the code that was submitted: {how}')} >&2; exit 1",
        "fi",
    ]


def _cpus_per_task(slurm: SlurmSpec, shape: JobShape) -> int | None:
    """The site's number is for one device; a task with several has workers on all of them."""
    if shape.devices_per_task == 1:
        return slurm.cpus_per_task
    return (slurm.cpus_per_task or 1) * shape.devices_per_task


def srun_args(slurm: SlurmSpec, shape: JobShape) -> list[str]:
    """The options of the job's srun: the site's own, and three that every job needs unless the site gives them.

    Without --kill-on-bad-exit, the ranks beside a failed one would wait for it until the time limit. And since Slurm
    22.05, srun does not inherit sbatch's --cpus-per-task. Options that give every task one GPU are left out where a
    task has all of its node's.
    """
    options = [
        (option, words)
        for option, words in srun_options(slurm.srun_args)
        if shape.devices_per_task == 1 or option not in ONE_GPU_PER_TASK
    ]
    named = {option for option, _ in options}
    # Said outright: srun would inherit sbatch's --export=NONE, and drop what the script has set.
    args = [text for option, text in OF_EVERY_STEP.items() if option not in named]
    cpus = _cpus_per_task(slurm, shape)
    if cpus and "cpus-per-task" not in named:
        args.append(f"--cpus-per-task={cpus}")
    return [*args, *(word for _, words in options for word in words), *container_srun_args(slurm)]


def gpu_request(slurm: SlurmSpec, shape: JobShape) -> dict[str, Any]:
    """Return the option that asks for the devices of one node; empty if they come with the node."""
    if not shape.uses_gpus or slurm.gpu_request == "none":
        return {}
    number = shape.devices_per_node if slurm.gpu_type is None else f"{slurm.gpu_type}:{shape.devices_per_node}"
    return {"gres": f"gpu:{number}"} if slurm.gpu_request == "gres" else {"gpus_per_node": number}


def _extra(slurm: SlurmSpec, shape: JobShape, *, requeues: bool) -> dict[str, Any]:
    """The site's further options, spelt as submitit spells its own, so that the site's value replaces submitit's.

    Raises:
        ConfigError: two options contradict each other, or one asks for the trial's devices beside us.
    """
    given = {option: value for option, value in slurm.extra_sbatch.items() if value is not False}
    rivals, devices = sbatch_table().rivals, gpu_request(slurm, shape)
    for option, value in given.items():
        key = f"slurm.extra_sbatch.{option}"
        if others := rivals.get(option, frozenset()) & given.keys() - {option}:
            problem = f"contradicts slurm.extra_sbatch.{min(others)}"
            raise ConfigError(key, value, problem, f"Set {key}=false, or the other; false leaves an option out.")
        if option == "cpus-per-gpu" and slurm.cpus_per_task:
            problem = f"contradicts slurm.cpus_per_task = {slurm.cpus_per_task}"
            raise ConfigError(key, value, problem, "Leave it out, or set slurm.cpus_per_task=null.")
        if devices and _asks_for_devices(option, str(value), shape):
            remedy = "Leave it out; slurm.gpu_request and slurm.gpu_type say how they are asked for."
            raise ConfigError(key, value, "asks for GPUs, which follow from the trial", remedy)
    if "gres" in devices and "gres" in given:
        given["gres"] = f"{devices['gres']},{given['gres']}"
    # Without --requeue, a site whose default is JobRequeue=0 refuses `scontrol requeue`.
    if requeues and "no-requeue" not in given:
        given["requeue"] = True
    known = sbatch_names()
    return {name if (name := option.replace("-", "_")) in known else option: each for option, each in given.items()}


def _asks_for_devices(option: str, value: str, shape: JobShape) -> bool:
    if option in ("gres", "tres-per-task"):
        return GPU.search(value) is not None
    # A number for each task that comes to the same says only how they are handed out.
    is_same = option == "gpus-per-task" and value.rpartition(":")[2] == str(shape.devices_per_task)
    return option in sbatch_table().devices and not is_same


def option_lines(text: str) -> list[str]:
    """The lines of options in the text of a job, which are the first lines of their kind."""
    lines = text.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("#SBATCH"))
    end = next(index for index in range(start, len(lines)) if not lines[index].startswith("#SBATCH"))
    return lines[start:end]


OF_TRIALS = ("#SBATCH --output=", "#SBATCH --error=", "#SBATCH --open-mode=", "#SBATCH --signal=USR2@0")
"""Options for what follows trials; of a script of its own, Slurm writes the output beside it."""

MEETING = (
    'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
    "port=$((20000 + SLURM_JOB_ID % 20000))",
)
OF_A_TASK = {
    "torchrun": "export MASTER_ADDR=$1 MASTER_PORT=$2 NODE_RANK=$SLURM_NODEID",
    "srun": "export MASTER_ADDR=$1 MASTER_PORT=$2"
    " RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS",
    "once": "export MASTER_ADDR=$1 MASTER_PORT=$2",
}
"""What each task that srun starts exports, by who starts the program's processes."""
ONCE = ("--nodes=1", "--ntasks=1", "--overlap")
"""Options of srun for a program that starts its processes on all nodes itself, by steps of its own perhaps."""


def job_script(
    slurm: SlurmSpec, experiment: Experiment, before: Sequence[str], command: Sequence[str]
) -> Iterator[str]:
    """The lines of a file for sbatch that runs the command where a trial of this experiment would run.

    Args:
        before: lines that the job's first node runs.
        command: lines that every task runs; they may hold the variables of `OF_A_TASK` and Slurm's.

    Raises:
        ConfigError: the settings are for another scheduler, or cannot be written into a script.
    """
    if slurm.scheduler != "slurm":
        remedy = "Leave --sbatch out, and put the command into a job of your own."
        raise ConfigError("slurm.scheduler", slurm.scheduler, "takes no file for sbatch", remedy)
    trainer = experiment.trainer
    parameters = sbatch_parameters(slurm, shape_of(experiment), None, f"{trainer.name}-{experiment.model.name}")
    options = option_lines(sbatch_text(parameters, Path(), 1, "true"))
    once = ONCE if trainer.start == "once" else ()
    step = shlex.join(["srun", *once, "--unbuffered", *parameters["srun_args"], *container_words(slurm)])
    yield "#!/bin/bash"
    yield from (line for line in options if not line.startswith(OF_TRIALS))
    yield "#SBATCH --output=%x-%j.out"
    yield from setup_lines(slurm, None)
    yield from before
    yield from MEETING
    yield "read -r -d '' train <<'EACH_TASK'"
    yield from (OF_A_TASK[trainer.start], *command, "EACH_TASK")
    yield f'{step} bash -c "$train" train "$first" "$port"'
