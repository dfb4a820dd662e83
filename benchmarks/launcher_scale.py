"""What the commands of a sweep of thousands of trials take, from its submission to its report.

    python -m benchmarks.launcher_scale [NUMBER OF TRIALS]

Slurm is made up (`made_up_slurm`), and so is what its jobs leave in their folders. Every command is a process of its
own. Beside the seconds stand those that cores worked and how often the disk was waited for, which do not depend on who
else uses the machine.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from benchmarks.large_sweep import CREATED, ENVIRONMENT
from benchmarks.made_up_slurm import MadeUpSlurm
from benchmarks.measured_command import Taken, measure
from benchmarks.replay.run import as_measured
from benchmarks.target import Target, at_most, empty_table, figure, print_table
from conf.units import MEBIBYTE
from sweeps.folder.submission import read_submission
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, Trial
from train_core.trial.atomic import write_atomically
from train_core.trial.folder import Attempt, TrialFolder
from train_core.trial.measurement import StepMetrics

NUM_TRIALS = 1_000
SUBMIT, QUEUED, RUNNING, JSON = "submit", "status, queued", "status, running", "status --json, running"
CANCEL, ENDS, CANCELLED = "cancel", "status that writes the ends", "status, cancelled"
COMPLETED, AGAIN, ADVANCE = "status, completed", "status, completed, again", "advance, nothing left"
REPORT, REPORT_AGAIN = "report, the first", "report, nothing new"
GOALS: dict[str, tuple[float, float | None]] = {
    SUBMIT: (30, 300),
    QUEUED: (2, 200),
    RUNNING: (2, 200),
    COMPLETED: (2, 200),
    AGAIN: (2, 200),
    CANCELLED: (2, 200),
    ENDS: (20, 300),
    CANCEL: (20, 300),
    REPORT: (90, 500),
    REPORT_AGAIN: (5, None),
}
"""Seconds and MiB, for 10,000 trials on a machine of two cores that does nothing else."""


def main(num_trials: int = NUM_TRIALS, *, reports: bool = True) -> list[Target]:
    with tempfile.TemporaryDirectory() as path:
        taken = commands_of(Path(path), num_trials, reports=reports)
    _print(taken)
    return [target for each in taken for target in _targets(each, num_trials)]


def commands_of(folder: Path, num_trials: int, *, reports: bool) -> list[Taken]:
    """Run the commands of two sweeps: one that is cancelled in the queue, and one that runs and completes."""
    cancelled, completed = Scaled(folder / "cancelled", num_trials), Scaled(folder / "completed", num_trials)
    taken = [cancelled.submit(), cancelled.status(QUEUED), cancelled.command(CANCEL, "cancel")]
    time.sleep(3.0)  # else what ended a moment ago is waited for
    taken += [cancelled.status(ENDS), cancelled.status(CANCELLED)]
    completed.submit()
    completed.start()
    taken += [completed.status(RUNNING), completed.status(JSON, "--json")]
    completed.finish()
    taken += [completed.status(COMPLETED), completed.status(AGAIN), completed.command(ADVANCE, "advance")]
    if reports:
        time.sleep(3.0)  # of what changed a moment ago a report remembers nothing
        taken += [completed.command(REPORT, "report"), completed.command(REPORT_AGAIN, "report")]
    return taken


class Scaled:
    """A sweep of so many trials, which differ in their seed, with a Slurm of its own."""

    def __init__(self, folder: Path, num_trials: int) -> None:
        self.slurm = MadeUpSlurm(folder / "slurm")
        self.output_dir = folder / "runs"
        axis = f"sweep.axes={{training.seed: {{low: 1, high: {num_trials - 1}}}}}"  # beside the baseline, seed 0
        self.points = ["sweep.points=[]", axis, f"sweep.max_trials={num_trials}"]

    def command(self, what: str, name: str, *more: str) -> Taken:
        print(f"{what} ...", file=sys.stderr, flush=True)
        words = [name, "smoke", "cluster=local", f"output_dir={self.output_dir}", *more]
        return measure(what, words, self.slurm.environment)

    def submit(self) -> Taken:
        return self.command(SUBMIT, "sweep", *self.points)

    def status(self, what: str, *options: str) -> Taken:
        return self.command(what, "status", *options)

    def start(self) -> None:
        self.slurm.put_jobs("RUNNING None", node="n1")
        for trial, files in self._trials():
            write_atomically(files.claim, f"{Attempt(1, 0)}\n", durable=False)
            files.append_metrics(_step(trial))

    def finish(self) -> None:
        self.slurm.put_jobs("COMPLETED None", node="n1")
        for trial, files in self._trials():
            seconds = 1.0 + trial.planned.training.seed / 1e4
            submission = read_submission(files)
            assert submission is not None
            times = {"started": submission.submitted, "ended": submission.submitted + 60}
            measured = as_measured(trial.planned, seconds, 2.0**29)
            files.write_verdict(measured.model_copy(update={"environment": ENVIRONMENT, **times}))

    def _trials(self) -> list[tuple[Trial, TrialFolder]]:
        sweep = Sweep.stored_in(SweepFolder(self.output_dir / "smoke-local"))
        return [(trial, sweep.folder_of(trial)) for trial in sweep.runnable]


def _step(trial: Trial) -> StepMetrics:
    return StepMetrics(
        step=1,
        num_steps=trial.planned.training.num_steps,
        loss=5.0,
        gradient_norm=1.0,
        learning_rate=1e-3,
        step_seconds=1.0,
        tokens_per_second=1.0,
        model_flops_per_second_per_device=1e9,
        warmup=False,
        time=CREATED,
    )


def _targets(taken: Taken, num_trials: int) -> list[Target]:
    what, (seconds, mebibytes) = f"{num_trials:,} trials, {taken.what}", GOALS.get(taken.what, (None, None))
    remark = f"{taken.core_seconds:.1f} s of a core"
    return [
        at_most(what, seconds, taken.seconds, " s", remark) if seconds else figure(what, taken.seconds, " s", remark),
        at_most(what, mebibytes, taken.mebibytes, " MiB") if mebibytes else figure(what, taken.mebibytes, " MiB"),
    ]


def _print(taken: list[Taken]) -> None:
    table = empty_table()
    for name in ("command", "s", "goal", "CPU s", "MiB", "goal", "fsyncs", "opened", "stats", "MiB printed"):
        table.add_column(name, justify="left" if name == "command" else "right")
    for each in taken:
        seconds, mebibytes = (f"{goal:g}" if goal else "" for goal in GOALS.get(each.what, (None, None)))
        times = (f"{each.seconds:.1f}", seconds, f"{each.core_seconds:.1f}", f"{each.mebibytes:.0f}", mebibytes)
        counts = (f"{each.fsyncs:,}", f"{each.opened:,}", f"{each.statted:,}", f"{each.printed / MEBIBYTE:.2f}")
        table.add_row(each.what, *times, *counts)
    print_table(table)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else NUM_TRIALS)
