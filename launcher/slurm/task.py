"""`python -m launcher.slurm.task FILE.pkl [ELEMENT]`: what srun starts once for every task of a job or step."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from pathlib import Path

from conf.private_files import keep_private, read_own


def main(work: Path, element: int) -> None:
    """Call the function in the file with the folder of this element of the array, or of this step.

    SIGUSR2 is Slurm's warning before the time limit. By default it would kill the process, so it is ignored until a
    training that can save listens to it.
    """
    keep_private()
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    function, folders = pickle.loads(read_own(work))  # it can name any program
    function(folders[element])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int((*sys.argv[2:], os.environ.get("SLURM_ARRAY_TASK_ID", "0"))[0]))
