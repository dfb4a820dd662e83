"""`python -m launcher.slurm.task FILE.pkl SHA256 [ELEMENT]`: what srun starts once for every task of a job or step.

On a PBS machine the job's mpiexec does so.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import signal
import sys
from pathlib import Path

from conf.private_files import keep_private, read_own
from launcher.executor import PBS_JOB
from launcher.slurm.pbs import take_seat


def main(work: Path, sha256: str, element: int) -> None:
    """Call the function in the file with the folder of this element of the array, or of this step.

    The file can name any program. Its checksum came with the job, which Slurm keeps, so nobody can have replaced it.

    SIGUSR2 is Slurm's warning before the time limit. By default it would kill the process, so it is ignored until a
    training that can save listens to it.
    """
    keep_private()
    if PBS_JOB in os.environ:
        take_seat()
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    content = read_own(work)
    if hashlib.sha256(content).hexdigest() != sha256:
        sys.exit(f"{work} is not what was submitted: somebody has replaced it. Give the command again.")
    function, folders = pickle.loads(content)
    function(folders[element])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int((*sys.argv[3:], os.environ.get("SLURM_ARRAY_TASK_ID", "0"))[0]))
