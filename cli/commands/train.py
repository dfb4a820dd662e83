"""`trisweep train`: one experiment here, or with `--from-best` the long run of a sweep's best plan."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments import complete_sweep, composition_of, overrides_of
from cli.output.console import print_complaint, print_unwrapped
from cli.output.next_command import same_command, ui_command
from conf.compose.model_from import expand_model_from
from conf.errors import EXIT_FAILED, ConfigError, TrisweepError, UsageError
from conf.overrides import Overrides
from conf.units import GIBIBYTE, TERA

if TYPE_CHECKING:
    from costs import Estimate
    from launcher.long_run import LongRun
    from launcher.where import SweepPlace
    from train_core.trial.measurement import Measurement, StepMetrics

LINE_SECONDS = 2.0

FromBest = Annotated[
    str | None,
    typer.Option(
        help="Train the best plan of this sweep, with checkpoints; give training.num_steps=N.",
        autocompletion=complete_sweep,
    ),
]
RunName = Annotated[str | None, typer.Option("--name", help="Folder of the training below OUTPUT/train.")]
Here = Annotated[bool, typer.Option("--here", help="Train on this machine even where Slurm is.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan, the job and its script; start nothing.")]
Arguments = Annotated[list[str] | None, typer.Argument(help="Hydra overrides and options of python -m train_core.")]


def train(
    overrides: Arguments = None,
    from_best: FromBest = None,
    name: RunName = None,
    here: Here = False,
    dry_run: DryRun = False,
) -> None:
    """Train one experiment here, as `python -m train_core` does, or the best plan of a sweep.

    With --from-best SWEEP, as a Slurm job with cluster=NAME, else here. The same command goes on where a training
    stopped, and shows how far it is.
    """
    texts = overrides or []
    if from_best is not None:
        _train_best(overrides_of(from_best, texts), name, here=here, dry_run=dry_run)
        return
    if name is not None or here:
        problem = "--name and --here apply only to a training from a sweep"
        raise UsageError(problem, "Give --from-best SWEEP, or leave them out.")
    # With options of Hydra's own, such as --cfg, nothing is trained, and only Hydra can say what they mean.
    if not any(argument.startswith("-") for argument in texts):
        from costs import estimate

        settings = composition_of(None, texts).settings
        experiment = settings.experiment()
        require_memory(estimate(experiment))
        if dry_run:
            from cli.output.training_preview import preview_alone

            preview_alone(experiment, settings.output_dir)
            return
    elif dry_run:
        raise UsageError("--dry-run and an option of Hydra's both show and start nothing", "Leave out one of them.")
    from train_core.__main__ import main

    # Hydra reads the arguments of the process itself.
    sys.argv = ["train_core", *expand_model_from(texts).texts]
    main()


def require_memory(predicted: Estimate) -> None:
    if not predicted.fits:
        raise UsageError(
            f"A rank of stage {predicted.worst_stage} is predicted to need {predicted.peak_memory_bytes / GIBIBYTE:.1f}"
            f" GiB, and cluster.device.memory_bytes is {predicted.memory_capacity_bytes / GIBIBYTE:.1f} GiB",
            "Use more ranks, a smaller model or batch, or correct cluster.device.memory_bytes.",
        )


def _train_best(overrides: Overrides, name: str | None, *, here: bool, dry_run: bool) -> None:
    from conf.compose.complaints import require_option
    from conf.compose.load import require_name
    from costs import estimate
    from launcher.long_run import long_run, require_job, write_long_run
    from launcher.where import choose_place
    from results.mlflow.trackers import require_trackers
    from train_core.data.tokens import prepare, token_folder
    from train_core.job.training_folder import extension_lines

    require_option("sweep", str(overrides.stated_value("sweep")), "--from-best")
    # The name becomes a folder, which must not lie outside of the output folder.
    require_name("--name", name)
    place = choose_place(overrides, here=here, dry_run=dry_run)
    require_trackers(place.settings.tracking)
    sweep, own = str(overrides.stated_value("sweep")), overrides.without({"sweep"})
    if not place.folder.record.exists():
        again = same_command("sweep", sweep, own.of({"cluster", "output_dir"}))
        raise UsageError(f"No sweep {sweep} has been started in {place.folder.path}", f"Start it with `{again}`.")
    run = long_run(place.folder, own, name)
    if not run.experiment.trainer.is_own:
        problem = f"{run.source} was measured with trainer {run.experiment.trainer.name}, whose checkpoints are its own"
        raise UsageError(problem, "Start the long training with that program.")
    if run.experiment.checkpoint.every_steps is None:
        problem = "would lose a long run at its first interruption"
        raise ConfigError("checkpoint.every_steps", None, problem, "Give a number.")
    require_memory(estimate(run.experiment))
    if dry_run:
        _preview(run, place)
        return
    prepare(run.experiment, token_folder(run.folder, run.experiment))
    if place.on_slurm and run.best is not None:  # else the job may be there already
        require_job(place.settings.slurm)
    elif run.best is not None:
        _require_machine(run)
    # A folder that was there already keeps the plan that its training was begun with.
    write = partial(write_long_run, run, sweep, own)
    print_unwrapped(_introduction(run))
    for line in extension_lines(run.schedules, run.experiment.training):
        print_unwrapped(line)
    # MLflow is brought up to date even after Ctrl-C or a failure, as the steps until then are worth a look.
    is_taken = True
    try:
        if place.on_slurm:
            _train_on_slurm(run, place, write)
        else:
            on_this_machine(run, write)
    finally:
        if run.folder.metrics.exists():
            is_taken = _import_into_mlflow(run, place)
    if not is_taken:
        raise typer.Exit(EXIT_FAILED)


def _preview(run: LongRun, place: SweepPlace) -> None:
    from cli.output.training_preview import preview_here, preview_of_job

    print_unwrapped(_introduction(run))
    if place.on_slurm:
        preview_of_job(run, place)
    else:
        _require_machine(run)
        preview_here(run.experiment, run.folder, run.best)


def _import_into_mlflow(run: LongRun, place: SweepPlace) -> bool:
    """Write the training's run; False where MLflow did not take it, which takes no end from a training that has one."""
    from results.mlflow.sweep_import import import_training

    record = place.folder.read_record()
    tracking = record.tracking.signed_in_as(place.settings.tracking)
    try:
        imported = import_training(run.read(), record, run.source, tracking, place.folder.path.parent)
    except TrisweepError as error:
        print_complaint(str(error))
        return False
    if not imported.unchanged:
        ui = ui_command(place.folder.path.parent, tracking)
        print_unwrapped(f"MLflow: training {run.folder.path.name} is up to date. Look at it with: {ui}")
    return True


def _introduction(run: LongRun) -> str:
    if run.best is None:
        steps = run.folder.read_metrics()
        return f"Goes on: {run.source} in {run.folder.path}{f'; {_step_line(steps[-1])}' if steps else ''}"
    how = "measured" if run.best.is_measured else "predicted, as nothing has been measured"
    return (
        f"Best plan: {run.source} ({run.best.flops_per_second_per_device / TERA:.4g} TFLOPS per device, {how}),"
        f" in {run.folder.path}"
    )


def _step_line(metrics: StepMetrics) -> str:
    from cli.output.state_table import duration

    held_out = f", {metrics.held_out_in_words}" if metrics.held_out_loss is not None else ""
    remaining = duration((metrics.num_steps - metrics.step) * metrics.step_seconds)
    return (
        f"step {metrics.step} of {metrics.num_steps}, loss {metrics.loss:.4f}{held_out},"
        f" {metrics.tokens_per_second:,.0f} tokens/s, {remaining} left"
    )


class _Lines:
    """Prints a line now and then, and always for a held-out loss and for the last step."""

    def __init__(self) -> None:
        self._said = 0.0

    def __call__(self, metrics: StepMetrics) -> None:
        due = time.monotonic() - self._said >= LINE_SECONDS
        if due or metrics.held_out_loss is not None or metrics.step == metrics.num_steps:
            print_unwrapped(_step_line(metrics))
            self._said = time.monotonic()


def on_this_machine(run: LongRun, write: Callable[[], None]) -> None:
    """Train; `write` makes the folder what was asked for, once nothing keeps the training from it."""
    from launcher.long_run import in_the_way, keep_others_out

    measurement = run.read().measurement
    if measurement is None or measurement.performance is None:
        with keep_others_out(run.folder) as job:
            if job is not None:
                raise in_the_way(job, run.folder)
            _require_machine(run)
            write()
            measurement = _train_here(run)
    _conclude(measurement)


def _require_machine(run: LongRun) -> None:
    from costs import estimate
    from launcher.local.machine import this_machine, why_impossible

    if reason := why_impossible(run.experiment, estimate(run.experiment), this_machine()):
        raise UsageError(f"The best plan cannot run here: {reason}", "Choose a cluster with cluster=NAME.")


def _train_here(run: LongRun) -> Measurement:
    from launcher.local.machine import this_machine
    from train_core.job.trial import run_trial_here
    from train_core.process.stop import Stopped

    devices = tuple(range(run.experiment.parallel.world_size)) if this_machine().num_devices else ()
    try:
        return run_trial_here(run.folder.path, devices, on_step=_Lines())
    except Stopped as stopped:
        print_unwrapped(f"Saved after step {stopped.step}. The same command goes on from there.")
        raise


def _conclude(measurement: Measurement) -> None:
    performance = measurement.performance
    if performance is None:
        print_unwrapped(f"{measurement.outcome}: {measurement.cause}")
        raise typer.Exit(EXIT_FAILED)
    print_unwrapped(
        f"COMPLETED: loss {performance.final_loss:.4f}, {performance.step_seconds:.3g} s per step,"
        f" {performance.model_flops_per_second_per_device / TERA:.4g} TFLOPS per device"
        f"{', ' * bool(measurement.mixture_in_words)}{measurement.mixture_in_words}"
    )


def _train_on_slurm(run: LongRun, place: SweepPlace, write: Callable[[], None]) -> None:
    from cli.output.explained import print_shell_lines
    from launcher.long_run import in_the_way, keep_others_out, submit_long_run
    from launcher.refused import FilesBefore, put_back_if_refused
    from launcher.slurm.reconcile import reconcile

    # Slurm is asked first: a job that it killed could write no measurement of its own, and would seem to go on.
    (reading,) = reconcile([run.read()])
    measurement = reading.measurement
    if measurement is not None and measurement.performance is not None:
        _conclude(measurement)
        return
    if measurement is not None:
        print_unwrapped(f"Its last job ended: {measurement.outcome}: {measurement.cause}")
    with keep_others_out(run.folder) as job:
        if job is None:
            with put_back_if_refused(FilesBefore.of_job(run.folder)):
                write()
                job_id = submit_long_run(run, place.settings.slurm)
        elif run.extends:
            raise in_the_way(job, run.folder)
    if job is None:
        print_shell_lines(place.settings.slurm)
        print_unwrapped(f"Submitted job {job_id}, which saves and requeues itself before its time limit. Output:")
        print_unwrapped(f"{run.folder.logs}. The same command and `trisweep status` show how far it is;")
        print_unwrapped(f"`trisweep cancel` with --training {run.folder.path.name}, or `scancel {job_id}`, ends it.")
        return
    print_unwrapped(f"Job {job.job_id} is {job.state.name}.")
