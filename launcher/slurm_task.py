"""`python -m launcher.slurm_task FILE.pkl`: what srun starts once for every task of a job."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from pathlib import Path

from conf.private_files import keep_private


def main(work: Path) -> None:
    """Call the function in the file with the folder of this element of the array.

    SIGUSR2 is Slurm's warning before the time limit. By default it would kill the process, so it is ignored until a
    training that can save listens to it.
    """
    keep_private()
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    function, folders = pickle.loads(work.read_bytes())
    function(folders[int(os.environ.get("SLURM_ARRAY_TASK_ID", "0"))])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
