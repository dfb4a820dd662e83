"""`trisweep reindex`: MLflow's store made anew from the folders of sweeps and trainings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments import OverrideTexts, complete_sweep, composition_of
from cli.output.console import bar, complaints, print_unwrapped, shown_path
from conf.credentials import hide_credentials
from conf.errors import EXIT_FAILED, TrisweepError, UsageError
from conf.units import count_of

if TYPE_CHECKING:
    from conf.compose.load import Composition
    from conf.types.sites import TrackingSpec
    from launcher.long_run import LongRun
    from sweeps.sweep import Sweep

BESIDE_A_STORE = {"tracking.also", "tracking.live_seconds"}
"""Values of the group that choose no store."""

OneSweep = Annotated[
    str | None,
    typer.Argument(help="A sweep, such as 175b; left out: all in the folder.", autocompletion=complete_sweep),
]


def reindex(name: OneSweep = None, overrides: OverrideTexts = None) -> None:
    """Write the runs of a sweep, or of all sweeps and trainings, into MLflow anew from what is on disk.

    Without a sweep, an SQLite store is moved aside and made anew; nothing of it is deleted.

    Exit code 1: the store of a sweep that was left out did not answer.
    """
    from launcher.where import existing_folder
    from sweeps.sweep import Sweep
    from sweeps.trial import SweepFolder

    texts = list(overrides or ())
    if name is not None and "=" in name:  # an override in the place of a sweep
        texts.insert(0, name)
        name = None
    composition = composition_of(name, texts)
    tracking, root = composition.settings.tracking, Path(composition.settings.output_dir).absolute()
    chosen = chosen_store(composition)
    if name is not None:
        _write_anew(Sweep.stored_in(existing_folder(composition)), tracking, chosen, root)
        return
    if not SweepFolder.started_in(root, "*"):
        raise UsageError(f"There is no sweep in {root}", "Name the folder of sweeps with output_dir=PATH.")
    if not write_all_anew(tracking, chosen, root):
        raise typer.Exit(EXIT_FAILED)


def chosen_store(composition: Composition) -> TrackingSpec | None:
    """The store that the command itself names, in place of the one in a sweep's record; None where it names none."""
    keys = {override.key for override in composition.overrides.of({"tracking"})}
    return composition.settings.tracking if keys - BESIDE_A_STORE else None


def write_all_anew(tracking: TrackingSpec, chosen: TrackingSpec | None, root: Path) -> bool:
    """Write the runs of all sweeps and trainings of the folder; an SQLite store that is there is kept beside.

    Returns:
        True if all that could be read was written; what was not is named on stderr.

    Args:
        tracking, chosen: see `_write_anew`.

    Raises:
        UsageError: no sweep can be read, and the store stays where it is.
    """
    from launcher.long_run import damaged_error, damaged_trainings, trainings_of
    from results.mlflow.sweep_import import move_store_aside
    from sweeps.sweep import Sweep
    from sweeps.trial import SweepFolder

    folders = sorted(SweepFolder.started_in(root, "*"), key=lambda folder: folder.path)
    sweeps: list[Sweep] = []
    for folder in folders:
        try:
            sweeps.append(Sweep.stored_in(folder))
        except (TrisweepError, OSError) as error:  # the others must be written
            _say_left_out(folder.path, error)
    if not sweeps:  # nothing could take the place of the store
        raise UsageError(f"No sweep in {root} can be read", "Give the command again once one can.")
    if tracking.kind == "sqlite":
        for path in move_store_aside(root):
            print_unwrapped(f"The store that was there is kept as {shown_path(path)}")
    written, left_out = set[Path](), list[Path]()
    for sweep in sweeps:
        try:
            written |= _write_anew(sweep, tracking, chosen, root)
        except TrisweepError as error:  # its own store may be one that does not answer
            _say_left_out(sweep.folder.path, error)
            left_out.append(sweep.folder.path)
    # A training whose sweep no longer knows the trial that it was begun from is there all the same.
    for sweep in (each for each in sweeps if each.folder.path not in left_out):
        others = [run for run in trainings_of(root, sweep.record.name) if run.folder.path not in written]
        written |= _write_trainings(others, sweep, chosen or sweep.record.tracking.signed_in_as(tracking), root)
    for training in damaged_trainings(root):
        _say_left_out(training.path, damaged_error(training))
    return not left_out


def _say_left_out(folder: Path, error: Exception) -> None:
    complaints.print(hide_credentials(f"{folder.name} is left out: {error}"), markup=False)


def _write_anew(sweep: Sweep, configured: TrackingSpec, chosen: TrackingSpec | None, root: Path) -> set[Path]:
    """The runs of the sweep, and of the trainings that were begun from it, whose folders are returned.

    Args:
        configured: where MLflow is by the configuration: the record keeps no password, the configuration may.
        chosen: the same where the command names a store, which then takes the place of the record's.
    """
    from launcher.long_run import trainings_of
    from launcher.slurm.reconcile import reconcile
    from results.mlflow.sweep_import import import_sweep

    tracking = chosen or sweep.record.tracking.signed_in_as(configured)
    with bar(f"Writing runs of {sweep.folder.path.name}") as tell:
        done = import_sweep(sweep, tracking, root, lambda sweep: reconcile(sweep.read()), anew=True, tell=tell)
    print_unwrapped(f"{sweep.folder.path.name}: {count_of(done.created, 'run')} written")
    # Only those whose plan is of a trial of this very sweep: sweeps of one name may stand in several folders.
    trial_ids = {trial.trial_id for trial in sweep.record.trials}
    trainings = [run for run in trainings_of(root, sweep.record.name) if run.source in trial_ids]
    return _write_trainings(trainings, sweep, tracking, root)


def _write_trainings(runs: Sequence[LongRun], sweep: Sweep, tracking: TrackingSpec, root: Path) -> set[Path]:
    from results.mlflow.sweep_import import import_training

    for run in runs:
        import_training(run.read(), sweep.record, run.source, tracking, root, anew=True)
        print_unwrapped(f"training {run.folder.path.name}: 1 run written")
    return {run.folder.path for run in runs}
