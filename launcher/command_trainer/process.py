"""The processes of a program on this machine, from their start to the end of the last of their descendants."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from launcher.command_trainer.start import Start

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # from Linux' <sys/prctl.h>, which Python does not pass on
END_SECONDS = 5.0
"""So long a program may take to end its own workers before they are killed."""

MOST_GENERATIONS = 5
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None  # loaded before any fork


class CannotStart(Exception):
    """The program or its folder is not there, or may not be used."""


class Programs:
    """The processes that were started. Whatever they leave behind is ended with them."""

    def __init__(self, starts: Sequence[Start], *, ends_its_workers: bool, inherited: tuple[int, ...] = ()) -> None:
        """Prepare to run the program, once for each of these starts.

        Args:
            ends_its_workers: the program ends its workers when it is asked to end, as torchrun does.
            inherited: descriptors that stay open in the program, such as that of a lock.
        """
        self.starts, self._inherited = starts, inherited
        self._death_signal = signal.SIGTERM if ends_its_workers else signal.SIGKILL
        self._processes: list[subprocess.Popen[bytes]] = []
        self._others: list[psutil.Process] = []

    def start(self) -> None:
        """Raises CannotStart."""
        self._others = psutil.Process().children()
        if LIBC is not None:  # workers whose parent dies become ours, so that they can be found and ended
            LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        for start in self.starts:
            start.log.parent.mkdir(parents=True, exist_ok=True)
            with start.log.open("wb") as log:
                self._processes.append(self._start_program(start, log.fileno()))

    def _start_program(self, start: Start, log: int) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                start.words,
                env=start.environment,
                cwd=start.working_dir,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that a Ctrl-C reaches the program only through us
                pass_fds=self._inherited,
                preexec_fn=self._prepare_process,  # noqa: PLW1509 (no thread runs beside us)
            )
        except (OSError, ValueError) as error:
            raise CannotStart(_refusal(start, error)) from None

    def _prepare_process(self) -> None:
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)  # a Slurm task ignores it, which a program would inherit
        if LIBC is not None:
            LIBC.prctl(PR_SET_PDEATHSIG, self._death_signal, 0, 0, 0)

    def exit_codes(self) -> list[int | None]:
        """The exit code of every process; negative for a signal, None while it runs."""
        return [process.poll() for process in self._processes]

    def end(self) -> None:
        """End what still runs: asked first, as torchrun ends its workers itself, and killed after a while."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + END_SECONDS
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for _ in range(MOST_GENERATIONS):  # one that is killed may have started another meanwhile
            remaining = self._remaining_processes()
            for survivor in remaining:
                with contextlib.suppress(psutil.NoSuchProcess):
                    survivor.kill()
            psutil.wait_procs(remaining, timeout=END_SECONDS)

    def _remaining_processes(self) -> list[psutil.Process]:
        """Return the program's processes that still run, and their workers, which this process has adopted."""
        ours = [child for child in psutil.Process().children() if child not in self._others]
        trees: list[psutil.Process] = []
        for child in ours:
            with contextlib.suppress(psutil.NoSuchProcess):
                trees += [child, *child.children(recursive=True)]
        return trees


def _refusal(start: Start, error: OSError | ValueError) -> str:
    """One sentence about why a program did not start."""
    if start.working_dir is not None and not Path(start.working_dir).is_dir():
        return f"trainer.working_dir = {start.working_dir!r} is no folder on {os.uname().nodename}"
    reason = error.strerror if isinstance(error, OSError) else str(error)
    word = start.words[0]
    # A bare name is looked for on the PATH alone, and a script without its mode or first line is no program.
    is_script = word.endswith(".py") and (Path(start.working_dir or ".") / word).is_file()
    remedy = ": a script is started by {python} in front of it" if is_script else ""
    return f"{start.named_by}: {word!r} cannot be started on {os.uname().nodename} ({reason}){remedy}"
