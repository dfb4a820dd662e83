"""The time to put a large sweep into MLflow, to find that little or nothing is new, and to write its report.

python -m benchmarks.large_sweep [NUMBER OF TRIALS]

That nothing is new is found by a process of its own, whose start counts, and so does its reading of the sweep's record.
Beside the seconds stand those that a core worked, which are the fewer of both where other work shares the machine.

The trials are made up: folders as jobs leave them that were measured, each with six steps, written without training.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.replay.run import as_measured
from benchmarks.target import Target, at_most, print_targets
from conf.compose.load import compose
from conf.overrides import Overrides
from conf.plan.experiment import Experiment
from conf.units import MEBIBYTE
from costs import Estimate, estimate
from results.mlflow.sweep_import import import_sweep
from results.report.report import write_report
from sweeps.sweep import Sweep
from sweeps.trial import TICK_NS, SweepFolder, SweepRecord, Trial
from train_core.process.git_sha import ROOT
from train_core.trial.measurement import Environment, StepMetrics

NUM_TRIALS, NUM_STEPS = 1_000, 6
NANOSECONDS = 1_000_000_000
CREATED, PEAK_BYTES = 1_790_000_000.0, 2.0**29
FIRST_SECONDS_EACH, AGAIN_SECONDS, CHANGED_SECONDS, REPORT_SECONDS = 0.1, 3.0, 10.0, 30.0
IMPORT = """
import sys
from pathlib import Path
from results.mlflow.sweep_import import import_sweep
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
folder = Path(sys.argv[1])
sweep = Sweep.stored_in(SweepFolder(folder))
done = import_sweep(sweep, sweep.record.tracking, folder.parent)
assert done.unchanged == 1 + len(sweep.record.trials), done
"""
ASKED = ["sweep=smoke", "model=tiny", "cluster=local", f"training.num_steps={NUM_STEPS}"]
ENVIRONMENT = Environment(
    hostname="made-up",
    device="made-up",
    backend="gloo",
    torch_version="0",
    python_version="0",
    git_sha="made-up",
    num_cores=2,
)


def main(num_trials: int = NUM_TRIALS) -> list[Target]:
    with tempfile.TemporaryDirectory() as path:
        output_dir = Path(path)
        sweep = finished_sweep(SweepFolder(output_dir / "made-up"), num_trials)
        tracking = sweep.record.tracking
        time.sleep(TICK_NS / NANOSECONDS)  # else the folders are too new to be remembered
        first = _spent_on(lambda: import_sweep(sweep, tracking, output_dir))
        alone = [sys.executable, "-c", IMPORT, str(sweep.folder.path)]
        again = _spent_on(lambda: subprocess.run(alone, check=True, cwd=ROOT))
        last = sweep.record.trials[-1]
        sweep.folder_of(last).clear_results()  # as nothing but this benchmark changes what was measured
        _finish(sweep, last, 2.0)
        changed = _spent_on(lambda: import_sweep(sweep, tracking, output_dir))
        report = _spent_on(lambda: write_report(sweep, sweep.read()))
        mebibytes = sweep.folder.report("html").stat().st_size / MEBIBYTE
    what = f"{num_trials:,} trials into SQLite"
    return [
        first.target_for(f"{what}, the first import", FIRST_SECONDS_EACH * num_trials),
        again.target_for(f"{what}, again with nothing new", AGAIN_SECONDS),
        changed.target_for(f"{what}, again with one trial changed", CHANGED_SECONDS),
        report.target_for(f"the report on {num_trials:,} trials, {mebibytes:.1f} MiB", REPORT_SECONDS),
    ]


class Spent(NamedTuple):
    """The time that something took: by the clock, and by what a core worked for it."""

    seconds: float
    core_seconds: float

    def target_for(self, what: str, limit: float) -> Target:
        return at_most(f"{what} ({self.core_seconds:.1f} s of a core)", limit, self.seconds, " s")


def _spent_on(work: Callable[[], object]) -> Spent:
    clock, core = time.perf_counter(), sum(os.times()[:4])
    work()
    return Spent(time.perf_counter() - clock, sum(os.times()[:4]) - core)


def finished_sweep(folder: SweepFolder, num_trials: int) -> Sweep:
    """A sweep on disk, all of whose trials were measured; their seeds tell them apart."""
    settings = compose(Overrides.parse(ASKED)).settings
    assert settings.sweep is not None
    experiment = settings.experiment()
    trials = tuple(_trials(experiment, estimate(experiment), num_trials))
    record = SweepRecord(
        name="made-up",
        mode="cluster",
        spec=settings.sweep,
        tracking=settings.tracking,
        git_sha="made-up",
        created=CREATED,
        plan=(),
        trials=trials,
    )
    folder.write_record(record)
    sweep = Sweep(folder, record)
    for number, trial in enumerate(trials):
        _finish(sweep, trial, 0.01 + number / num_trials)
    return sweep


def _trials(experiment: Experiment, predicted: Estimate, num_trials: int) -> Iterator[Trial]:
    for seed in range(num_trials):
        training = experiment.training.model_copy(update={"seed": seed})
        yield Trial(
            trial_id=f"seed-{seed}",
            point={"training.seed": seed},
            experiment=experiment.model_copy(update={"training": training}),
            estimate=predicted,
            selected=True,
            is_baseline=seed == 0,
        )


def _finish(sweep: Sweep, trial: Trial, seconds: float) -> None:
    """Leave what a trial leaves whose step took so many seconds."""
    files = sweep.prepare(trial)
    rate = trial.predicted.model_flops / seconds
    for number in range(1, NUM_STEPS + 1):
        files.append_metrics(_step(number, seconds, rate))
    ended = {"environment": ENVIRONMENT, "started": CREATED, "ended": CREATED + 60}
    files.write_measurement(as_measured(trial.planned, seconds, PEAK_BYTES).model_copy(update=ended))
    files.logs.mkdir(exist_ok=True)
    files.rank_log(0).write_text("a made-up line of a log\n")


def _step(number: int, seconds: float, rate: float) -> StepMetrics:
    return StepMetrics(
        step=number,
        num_steps=NUM_STEPS,
        loss=5.0,
        gradient_norm=1.0,
        learning_rate=1e-3,
        step_seconds=seconds,
        tokens_per_second=1 / seconds,
        model_flops_per_second_per_device=rate,
        warmup=False,
        time=CREATED + number,
    )


if __name__ == "__main__":
    print_targets(main(int(sys.argv[1]) if len(sys.argv) > 1 else NUM_TRIALS))
