"""MLflow follows sweeps while they run: a process of its own imports, so that no command waits for MLflow."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conf.types.sites import TrackingSpec

PROGRAM = "results.mlflow.follow"
STOP_SECONDS = 5.0


@contextmanager
def followed_in_mlflow(folder: Path, tracking: TrackingSpec) -> Iterator[None]:
    """While the block runs, its sweep is imported every `tracking.live_seconds`; not at all where that is null.

    Args:
        folder: of the sweep, or of sweeps, of which those are imported that have not ended.
    """
    if tracking.live_seconds is None:
        yield
        return
    from train_core.process.git_sha import variables_of

    # In a session of its own, so that a Ctrl-C is the command's alone.
    process = subprocess.Popen(
        [sys.executable, "-m", PROGRAM, str(folder.absolute())],
        env={**os.environ, **variables_of()},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(tracking.model_dump_json() + "\n")
    process.stdin.flush()
    try:
        yield
    finally:
        # An import that is cut short is completed by the next one, which the command makes itself.
        process.terminate()
        process.stdin.close()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
