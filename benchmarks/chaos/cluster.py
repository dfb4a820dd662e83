"""The Slurm test cluster that is harmed: its daemons are killed and started again."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "tests" / "slurm" / "cluster.sh"
OWN, FIRST_PORT, PORTS, MOST_CLUSTERS = "/tmp/trisweep_chaos_slurm", 20800, 40, 30
"""The folders of clusters of our own, and their ports: runs may go side by side."""

START_SECONDS = 280
LOST_NUMBERS = 30
"""At least as many jobs as a scenario submits within a few seconds."""


class Cluster:
    """A Slurm cluster whose daemons a scenario kills and starts again.

    Attributes:
        folder: its configuration, state and process ids.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def kill(self, daemon: str) -> None:
        """`slurmctld`, `slurmdbd`, or `slurmd.node1`, by SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(int((self.folder / "run" / f"{daemon}.pid").read_text()), signal.SIGKILL)

    def restore(self) -> None:
        """Start what does not run, bring back nodes that are drained or down, and wait until every node is usable."""
        # Where slurmctld does not run, the script writes the configuration anew, and must find the same port.
        configuration = (self.folder / "slurm.conf").read_text()
        (port,) = re.findall(r"^SlurmctldPort=(\d+)$", configuration, re.MULTILINE)
        environment = {**os.environ, "SLURM_TEST_DIR": str(self.folder), "SLURM_TEST_PORT": port}
        subprocess.run([SCRIPT, "up"], env=environment, capture_output=True, timeout=START_SECONDS, check=True)

    @contextlib.contextmanager
    def without(self, node: str) -> Iterator[None]:
        """The node fails, as its daemons are killed and Slurm is told that it is down; then it is back."""
        self.kill(f"slurmd.{node}")
        command("scontrol", "update", f"nodename={node}", "state=down", "reason=chaos")
        try:
            yield
        finally:
            wait_for(lambda: "down" in command("sinfo", "-h", "-n", node, "-o", "%T"))
            self.restore()

    def clear(self) -> None:
        """End all jobs, as those of a scenario that broke off would disturb the next, and use up numbers of lost ones.

        A slurmctld that was killed gives the numbers of its last seconds out again, and a node that still knows jobs of
        those numbers is drained ("Duplicate jobid"), so that the next scenario would wait for it in vain.
        """
        for _ in range(LOST_NUMBERS):
            command("sbatch", "--hold", "--output=/dev/null", "--wrap=true")
        command("scancel", f"--user={getpass.getuser()}", check=False)
        wait_for(lambda: not command("squeue", "--noheader"))


@contextlib.contextmanager
def test_cluster() -> Iterator[Cluster]:
    """A cluster of its own, or the one whose folder SLURM_TEST_DIR names, which is left up."""
    given = "SLURM_TEST_DIR" in os.environ
    with _place_of_its_own() as number:
        os.environ.setdefault("SLURM_TEST_DIR", f"{OWN}_{number}")
        os.environ.setdefault("SLURM_TEST_PORT", str(FIRST_PORT + PORTS * number))
        cluster = Cluster(Path(os.environ["SLURM_TEST_DIR"]))
        try:
            subprocess.run([SCRIPT, "up"], stdout=subprocess.DEVNULL, timeout=START_SECONDS, check=True)
            os.environ["SLURM_CONF"] = str(cluster.folder / "slurm.conf")
            yield cluster
        finally:
            if not given:
                subprocess.run([SCRIPT, "down"], capture_output=True, timeout=120, check=True)


@contextlib.contextmanager
def _place_of_its_own() -> Iterator[int]:
    """A number that no other run holds, as long as the block lasts."""
    for number in range(MOST_CLUSTERS):
        with Path(f"{OWN}_{number}.held").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield number
            return
    raise TimeoutError(f"{MOST_CLUSTERS} runs are under way on this machine")


def command(*words: str, check: bool = True) -> str:
    """The output of one of Slurm's commands."""
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=check).stdout


def wait_for(condition: Callable[[], object], seconds: float = 60.0, every: float = 0.1) -> None:
    """Raises TimeoutError where it does not become true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s in vain")
        time.sleep(every)
