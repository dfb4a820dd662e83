"""`trisweep status --watch`, on a terminal and in a pipe, and what of a large sweep it shows."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from cli.output.progress import worth_showing
from cli.output.status_table import watch
from sweeps.folder.journal import Cancelled, Journal
from sweeps.reading import Reading
from sweeps.trial import SweepFolder
from tests.results.conftest import WriteSweep, experiment, performance, trial, write_sweep
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import Measurement, Outcome

__all__ = ["write_sweep"]
EXPERIMENT = experiment()
ReadingOf = Callable[..., Reading]


@pytest.fixture
def reading_of(tmp_path: Path) -> ReadingOf:
    def build(
        name: str, outcome: Outcome | None = None, ended: float = 0.0, rate: float = 1e9, loss: float = 5.0
    ) -> Reading:
        folder = TrialFolder(tmp_path / name)
        folder.path.mkdir()
        if outcome is not None:
            measured = performance(1.0, model_flops_per_second_per_device=rate, losses=(loss,), final_loss=loss)
            folder.write_measurement(
                Measurement(
                    fingerprint=EXPERIMENT.fingerprint,
                    outcome=outcome,
                    cause="",
                    performance=measured if outcome is Outcome.COMPLETED else None,
                    started=0.0,
                    ended=ended,
                )
            )
        return Reading(folder=folder, experiment=EXPERIMENT)

    return build


def test_a_pipe_gets_a_line_and_the_command_ends_with_the_sweep(finished: Path) -> None:
    stream = io.StringIO()
    watch(SweepFolder(finished / "runs" / "smoke-local"), "smoke", Console(file=stream, width=80))
    (line,) = stream.getvalue().splitlines()
    assert line.endswith("3 COMPLETED, 1 INFEASIBLE")


def test_a_cancelled_sweep_is_not_waited_for_though_trials_were_never_started(
    write_sweep: WriteSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = write_sweep((trial("base"), trial("two", world_size=2)), {"base": performance(100.0)})
    Journal(sweep.folder.journal).append(Cancelled(trial_id=None))
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("the sweep was waited for"))
    stream = io.StringIO()
    watch(sweep.folder, "made-up", Console(file=stream, width=80))
    assert "1 CANCELLED" in stream.getvalue()


@pytest.mark.slow
def test_ctrl_c_leaves_without_a_word_of_error(finished: Path, tmp_path: Path) -> None:
    folder = SweepFolder(finished / "runs" / "smoke-local")
    # The lock tells that somebody works on the sweep, so that watching goes on.
    code = "from launcher.folder_lock import lock_folder; import time\nfrom sweeps.trial import SweepFolder\n"
    code += f"with lock_folder(SweepFolder({str(folder.path)!r})): print('held', flush=True); time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    ours, theirs = pty.openpty()
    # Where a shell runs the tests in the background, it has their processes ignore Ctrl-C.
    hears = ["env", "--default-signal=INT"]
    watching = subprocess.Popen(
        [*hears, Path(sys.executable).with_name("trisweep"), "status", "smoke", "--watch"],
        cwd=finished,
        env={**os.environ, "COLUMNS": "80", "LINES": "24", "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    try:
        said, deadline = "", time.monotonic() + 60
        while "Ctrl-C leaves" not in said and time.monotonic() < deadline:
            said += os.read(ours, 65536).decode(errors="replace")
        watching.send_signal(signal.SIGINT)
        assert watching.wait(90) == 0
        assert "3 COMPLETED, 1 INFEASIBLE" in said
        assert "Traceback" not in said
    finally:
        for process in (watching, holder):
            process.kill()
            process.wait()
        holder.stdout.close()
        os.close(ours)
        os.close(theirs)


def test_the_last_picture_of_a_sweep_that_has_ended_says_so(write_sweep: WriteSweep) -> None:
    sweep = write_sweep((trial("base"),), {"base": performance(100.0)})
    stream = io.StringIO()
    watch(sweep.folder, "made-up", Console(file=stream, force_terminal=True, width=80, height=30, color_system=None))
    assert "1 of 1 trial ended. The sweep has ended." in stream.getvalue()
    assert "goes on" not in stream.getvalue()


def test_the_best_that_is_shown_is_that_of_what_is_sought(reading_of: ReadingOf) -> None:
    ended = [reading_of(f"done-{n}", Outcome.COMPLETED, ended=n, rate=1e9 * n + 1, loss=5.0 + n) for n in range(9)]
    waiting = [reading_of(f"waits-{n}") for n in range(9)]
    assert [state.name for state in worth_showing([*ended, *waiting], 1, "loss")] == ["done-0"]
    assert [state.name for state in worth_showing([*ended, *waiting], 1)] == ["done-8"]


def test_of_a_thousand_trials_the_best_the_failed_and_the_running_are_shown(reading_of: ReadingOf) -> None:
    waiting = [reading_of(f"waits-{n}") for n in range(100)]
    ended = [reading_of(f"done-{n}", Outcome.COMPLETED, ended=n, rate=1e9 * n + 1) for n in range(50)]
    slow_but_last = reading_of("slow", Outcome.COMPLETED, ended=99, rate=1.0)
    failed = [reading_of(f"failed-{n}", Outcome.FAILED, ended=n) for n in range(50)]
    states = [*waiting, *ended, slow_but_last, *failed]
    shown = [state.name for state in worth_showing(states, 8)]
    assert len(shown) == 8
    assert "done-49" in shown  # the best
    assert {"failed-49", "failed-48"} <= set(shown)
    assert "slow" in shown  # ended last
    assert shown == [state.name for state in states if state.name in shown]
