"""`python -m train_core`: one training as a plain Hydra application.

Alone it supervises its own ranks on this machine; started by torchrun or srun it is one rank. Overrides, `--cfg job`
and `-m` are Hydra's: `python -m train_core parallel.world_size=2 parallel.tensor_parallel_size=2`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

# `python -m` puts the current folder first, in which somebody's own package may be called `conf`, as ours is.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conf.compose.load import run_with_hydra, settings_of
from conf.compose.tree import Tree
from conf.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, TrisweepError, UsageError
from conf.private_files import keep_private
from conf.units import GIBIBYTE, TERA, count_of
from train_core.checkpoints.checkpoint_folder import last_whole, step_of
from train_core.data.tokens import prepare, token_folder
from train_core.job.training_folder import StoredTraining, extension_lines, training_in
from train_core.job.trial import run_trial_as_rank, run_trial_here
from train_core.process.lock import hold_lock
from train_core.process.long_lived import importing_torch
from train_core.process.stop import Stopped
from train_core.trial.measurement import Measurement, Outcome, Performance, StepMetrics
from train_core.watch.hang import counted_text, ranks_text

TRIAL_WAIT_SECONDS, POLL_SECONDS = 120.0, 0.1
"""The seconds that ranks wait for rank 0's `trial.json`, which file servers may show late, and between looks."""


def main() -> None:
    """Train the experiment that the command line configures."""
    keep_private()
    try:
        run_with_hydra(_train)
    except TrisweepError as error:  # of what cannot be composed
        _complain(error)


def _complain(error: TrisweepError) -> NoReturn:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(EXIT_USAGE)


def _train(tree: Tree) -> None:
    try:
        measurement, how_to_go_on = _run(tree)
    except TrisweepError as error:
        _complain(error)
    except Stopped as stopped:
        print(f"Saved after step {stopped.step}. The same command goes on from there.", file=sys.stderr)
        raise
    except KeyboardInterrupt:
        print("Interrupted: nothing was measured.", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    if measurement is None:
        return
    print(_summary(measurement), flush=True)
    if measurement.outcome is not Outcome.COMPLETED:
        print(how_to_go_on(), flush=True)
        sys.exit(EXIT_FAILED)


def _run(tree: Tree) -> tuple[Measurement | None, Callable[[], str]]:
    """The measurement, None on the ranks that do not report; and what tells, after a failure, how to go on."""
    settings = settings_of(tree)
    experiment = settings.experiment()
    if not experiment.trainer.is_own:
        remedy = "Measure it with `trisweep sweep NAME`, or leave out trainer=NAME."
        raise UsageError(f"trainer {experiment.trainer.name} is another program, which this one cannot be", remedy)
    training = training_in(Path(settings.output_dir) / "train", experiment)
    trial = training.folder
    with importing_torch():
        from train_core.process.world import seat_from_launcher

    seat = seat_from_launcher(os.environ)
    if seat is None or seat.size == 1:  # of several ranks the first one prepares the tokens, once they have met
        prepare(experiment, token_folder(trial, experiment))  # before there is a trial that could fail
    is_writer = seat is None or seat.rank == 0
    _write_trial(training, is_writer=is_writer)
    if is_writer:
        _say_where(training)
    how_to_go_on = partial(_how_to_go_on, training)
    if seat is None or (seat.size == 1 and experiment.parallel.world_size > 1):
        return run_trial_here(trial.path, on_step=_print_step), how_to_go_on
    return run_trial_as_rank(trial.path, on_step=_print_step), how_to_go_on


def _say_where(training: StoredTraining) -> None:
    """The folder, and whether an earlier run of the command is gone on with."""
    num_steps = training.experiment.training.num_steps
    print(f"Folder: {training.folder.path}", flush=True)
    if training.done and training.done < num_steps:
        print(f"Resumed from step {training.done} of {num_steps}, its last whole checkpoint.", flush=True)
    for line in extension_lines(training.schedules, training.experiment.training):
        print(line, flush=True)


def _how_to_go_on(training: StoredTraining) -> str:
    if (last := last_whole(training.folder.checkpoints, warns=False)) is not None:
        return f"The same command goes on after step {step_of(last)}, from {last}."
    plan = training.experiment.checkpoint
    start = f"after {plan.load}" if plan.resume else "with step 1"
    if plan.every_steps is not None:
        return f"The same command starts again {start}, as no checkpoint had been written."
    return f"The same command starts again {start}; checkpoint=regular saves a training as it goes."


def _write_trial(training: StoredTraining, *, is_writer: bool) -> None:
    """One rank writes `trial.json`; the others wait until it names their experiment.

    Raises:
        UsageError: a process trains in the folder, of which the file tells, or it cannot be written.
    """
    trial, content = training.folder, training.content()
    if is_writer:
        try:
            with hold_lock(trial.running_lock):
                trial.write_trial(content)
        except OSError as error:
            problem = f"output_dir: {error.filename or trial.path} cannot be written ({error.strerror})"
            raise UsageError(problem, "Make room there, or choose another output_dir=FOLDER.") from None
    deadline = time.monotonic() + TRIAL_WAIT_SECONDS
    while not trial.holds_experiment(content["experiment"]):
        if time.monotonic() > deadline:
            raise UsageError(f"{trial.trial} was not written by rank 0", "Share output_dir among the nodes.")
        time.sleep(POLL_SECONDS)


def _print_step(metrics: StepMetrics) -> None:
    held_out = f", {metrics.held_out_in_words}" if metrics.held_out_loss is not None else ""
    print(
        f"step {metrics.step:>4}/{metrics.num_steps}  loss {metrics.loss:.4f}{held_out}"
        f"  norm {metrics.gradient_norm:.3f}"
        f"  {metrics.step_seconds * 1e3:.1f} ms  {metrics.tokens_per_second:,.0f} tokens/s"
        f"{'  (warm-up)' if metrics.warmup else ''}"
        f"{f'  {ranks_text(metrics.stragglers)} slow' if metrics.stragglers else ''}",
        flush=True,
    )


def _summary(measurement: Measurement) -> str:
    performance = measurement.performance
    if performance is None:
        return f"{measurement.outcome}: {measurement.cause}"
    seen = measurement.mixture_in_words
    return (
        f"{measurement.outcome}: {performance.step_seconds * 1e3:.1f} ms a step"
        f" ({performance.step_seconds_min * 1e3:.1f} to {performance.step_seconds_max * 1e3:.1f},"
        f" {count_of(performance.num_timed_steps, 'step')}), {performance.tokens_per_second:,.0f} tokens/s,"
        f" {performance.model_flops_per_second_per_device / TERA:.3g} TFLOPS a device"
        f" ({count_of(performance.num_devices, 'device')}),"
        f" MFU {performance.model_flops_utilization:.1%}"
        f" of the {performance.peak_source} peak,"
        f" {max(performance.peak_memory_bytes) / GIBIBYTE:.2f} GiB at most"
        f"{_breakdown_line(performance)}{_unrecorded_line(performance)}{seen and f', {seen}'}"
    )


def _unrecorded_line(performance: Performance) -> str:
    steps = performance.unrecorded_steps
    return f"\nno metrics here of {counted_text('step', steps)}, which an earlier run did" if steps else ""


def _breakdown_line(performance: Performance) -> str:
    """The parts of the slowest rank's step, and who straggles; empty where neither is known."""
    lines = ""
    if (breakdown := performance.breakdown) is not None:
        terms = breakdown.slowest.model_dump().items()
        known = ((name, "not known" if value is None else f"{value * 1e3:.1f}") for name, value in terms)
        parts = (f"{name.removesuffix('_seconds').replace('_', ' ')} {value}" for name, value in known)
        lines = f"\nrank {breakdown.slowest_rank} has the most work; its step in ms: {', '.join(parts)}"
    if performance.stragglers:
        lines += f"\nstraggling: {ranks_text(performance.stragglers)}"
    return lines


if __name__ == "__main__":
    main()
