"""Ctrl-C ends a command without a traceback, whenever it comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

INTERRUPTED_IMPORT = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from cli.entry import main
main()
"""

INTERRUPTED_LIBRARY = """
import os, signal
import hydra
from pydantic import BaseModel, model_serializer

class Interrupting(BaseModel):
    @model_serializer
    def _in_short(self):
        os.kill(os.getpid(), signal.SIGINT)

hydra.compose = lambda *args, **settings: Interrupting().model_dump()
from cli.entry import main
main()
"""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("module", ["typer", "pydantic", "hydra", "sweeps.points.plan"])
def test_ctrl_c_while_a_command_is_imported_ends_it_without_a_traceback(module: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED_IMPORT.format(module=module), "plan", "smoke"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 130, done.stderr
    assert done.stdout == ""
    assert done.stderr in ("", "Interrupted.\n")


def test_ctrl_c_of_which_a_library_makes_an_error_is_still_ctrl_c(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED_LIBRARY, "plan", "smoke"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Interrupted.\n")


@pytest.mark.slow
def test_ctrl_c_in_a_rehearsal_ends_its_processes_without_a_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from cli.entry import main; main()", "rehearse", "model=tiny"]
    pipe = subprocess.PIPE
    rehearsal = subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    assert rehearsal.stderr is not None
    assert rehearsal.stderr.readline() == "Rehearsed 0 of 1 different stage\n"
    os.killpg(rehearsal.pid, signal.SIGINT)  # as a terminal sends it, to all processes
    said, complained = rehearsal.communicate(timeout=60)
    assert (rehearsal.returncode, said) == (130, "")
    # Rich may write its last line once more if the signal comes while it writes.
    assert complained.removeprefix("Rehearsed 0 of 1 different stage\n") == "Interrupted.\n"
    deadline = time.monotonic() + 60
    while _living(rehearsal.pid):
        assert time.monotonic() < deadline, "a process of the rehearsal lives on"
        time.sleep(0.1)


def _living(session: int) -> bool:
    """Whether any process of a session still runs; one that has ended may wait for its parent to ask for it."""
    found = subprocess.run(["ps", "-s", str(session), "-o", "stat="], capture_output=True, text=True, check=False)
    return any(not state.startswith("Z") for state in found.stdout.split())
