"""`python -m launcher.slurm.task FILE.pkl SHA256 [ELEMENT]`: what srun starts once for every task of a job or step.

On a PBS machine the job's mpiexec does so.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import signal
import sys
from collections.abc import MutableMapping
from pathlib import Path

from conf.errors import UsageError
from conf.private_files import keep_private, read_own
from launcher.job_payload import PBS_JOB, REFUSES

RANK = ("PALS_RANKID", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "RANK")
LOCAL_RANK = ("PALS_LOCAL_RANKID", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
"""The variables in which a rank's place stands: Cray's PALS, Hydra, Open MPI, the mpiexec of Slurm's wrappers, and a
script that starts one process itself."""


def main(work: Path, sha256: str, element: int) -> None:
    """Call the function in the file with the folder of this element of the array, or of this step.

    The file can name any program. Its checksum came with the job, which Slurm keeps, so nobody can have replaced it.

    SIGUSR2 is Slurm's warning before the time limit. By default it would kill the process, so it is ignored until a
    training that can save listens to it.
    """
    keep_private()
    if PBS_JOB in os.environ:
        take_seat()
    # A job knows its folders by the name that it was submitted under, whatever it has been called since.
    os.environ["SLURM_JOB_NAME"] = work.stem
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        content = read_own(work)
        if hashlib.sha256(content).hexdigest() != sha256:
            raise UsageError(f"{work} is not what was submitted: somebody has replaced it", "Give the command again.")
        function, folders = pickle.loads(content)
        function(folders[element])
    except UsageError as refusal:
        sys.exit(f"{REFUSES}{refusal}")


def take_seat(environment: MutableMapping[str, str] = os.environ) -> None:
    """Give a rank that a PBS job's mpiexec started the variables that jobs read, and output files of its own.

    Raises:
        UsageError: mpiexec says nowhere which rank this is.
    """
    rank, local_rank = (
        next((environment[key] for key in keys if key in environment), "") for keys in (RANK, LOCAL_RANK)
    )
    if not rank:
        problem = f"mpiexec sets none of {', '.join(RANK)}"
        raise UsageError(problem, "Set slurm.pbs_mpiexec to one that does.")
    environment.update({"RANK": rank, "LOCAL_RANK": local_rank or rank})
    # Under these names Slurm says the same, and the functions that run in jobs know no others.
    environment.update({"SLURM_PROCID": rank, "SLURM_JOB_ID": environment["PBS_JOBID"]})
    for stream, suffix in ((sys.stdout, "out"), (sys.stderr, "err")):
        stream.flush()
        path = f"{Path(sys.argv[1]).with_suffix('')}_{rank}_log.{suffix}"
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), stream.fileno())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int((*sys.argv[3:], os.environ.get("SLURM_ARRAY_TASK_ID", "0"))[0]))
