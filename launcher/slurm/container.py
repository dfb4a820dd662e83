"""The container in which the Python of a job runs: the words before it, and what srun is told of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from conf.types.sites import SlurmSpec

OWN_VARIABLES = ("PYTHONPATH", "PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE")
OF_THE_JOB = (
    *("SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_NUM_NODES", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"),
    *("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_LAUNCH_NODE_IPADDR"),
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
)
"""What the code of a trial reads of its job; enroot hands over the variables that are named, and no others."""
DRIVER_LIBRARIES = {"nvidia": "--nv", "amd": "--rocm"}


def container_words(slurm: SlurmSpec) -> list[str]:
    """The words before the Python of a job; none where the job has no container, or srun starts it (pyxis)."""
    words = WORDS.get(slurm.container)
    return [] if words is None else words(slurm)


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
