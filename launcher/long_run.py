"""Turns a sweep into the long run of its best plan: which plan, what experiment, which folder."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from conf.compose.complaints import validate
from conf.compose.load import compose
from conf.compose.tree import part_at, with_values
from conf.credentials import overrides_for_records, remember
from conf.errors import ConfigError, UsageError
from conf.overrides import Overrides
from conf.plan.experiment import Experiment
from conf.types.sites import SlurmSpec
from conf.types.sweep_spec import is_of_time
from conf.units import count_of
from launcher.job_payload import RUN_IN_SLURM, FolderWork
from launcher.provenance import snapshot_code
from launcher.slurm.executor import SlurmExecutor, require_sbatch
from launcher.slurm.job_status import LiveJob, live_job
from launcher.slurm.sbatch import require_time_to_save
from sweeps.folder.submission import shape_of
from sweeps.points.objectives import cost, predicted_value
from sweeps.ranking.disturbed import of_other_models
from sweeps.ranking.points import best_reading
from sweeps.reading import Reading
from sweeps.sweep import Sweep, points_of
from sweeps.trial import SweepFolder, Trial
from train_core.checkpoints.checkpoint_folder import last_whole, step_of
from train_core.job.training_folder import NUM_STEPS
from train_core.process.lock import hold_lock
from train_core.trial.atomic import stored_values
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import Outcome

PLACE_GROUPS = frozenset({"cluster", "device", "slurm", "tracking", "search", "output_dir"})
"""Overrides in these groups say where the sweep is and how its job is requested. They do not change the training."""

OF_ITS_PLACE = (Outcome.CANCELLED, Outcome.PREEMPTED, Outcome.NODE_FAILED)
"""Ends of a trial that tell nothing about its plan."""


def best_of(sweep: Sweep) -> Best:
    """The best trial by what the sweep seeks: as measured, else as predicted among those not tried.

    Trials that an earlier command asked for, of a model that the last one's configuration has not, are none of them.

    Raises:
        UsageError: no point of the sweep can run, or it seeks a loss and measured none.
    """
    record = sweep.record
    others = of_other_models(all_readings := sweep.read())
    readings = [each for each in all_readings if each.name not in others]
    # Whatever was measured beats every prediction, which may promise more than the machine keeps.
    measured = best_reading(record, readings)
    if measured is not None and measured.performance is not None:
        return Best(measured.trial, True, measured.performance.model_flops_per_second_per_device)
    trials = [
        each.trial for each in points_of(readings) if not each.measurement or each.measurement.outcome in OF_ITS_PLACE
    ]
    able = [trial for trial in trials if trial.infeasible_reason is None and trial.experiment and trial.estimate]
    objective = record.objective[0]
    if not able or not is_of_time(objective):
        lacking = f"Sweep {record.name} has measured no {objective}"
        problem = f"No point of {sweep.folder.path} can run" if not able else lacking
        raise UsageError(problem, f"See why with `trisweep status {record.name}`.")
    values = {trial.trial_id: predicted_value(objective, trial.planned, trial.predicted) for trial in able}
    costs = {name: math.inf if value is None else cost(objective, value) for name, value in values.items()}
    best = min(able, key=lambda trial: costs[trial.trial_id])
    return Best(best, False, best.predicted.model_flops_per_second_per_device)


def long_run(sweep: SweepFolder, overrides: Overrides, name: str | None) -> LongRun:
    """The training that goes on in its folder, or a new one of the sweep's best plan; nothing is written.

    Raises:
        UsageError: the sweep was not started, or the folder's training was started otherwise.
        ConfigError: the number of steps was not given, or the experiment cannot be.
    """
    if not sweep.record.exists():
        raise UsageError(f"There is no sweep in {sweep.path}", "Start it first with `trisweep sweep`.")
    _require_of_training(overrides)
    # Where the training runs may change from one command to the next, but not what is trained.
    request = overrides.without(PLACE_GROUPS)
    folder = TrialFolder(sweep.path.parent / TRAININGS / (name or sweep.path.name))
    if folder.trial.exists():
        return _continue_training(folder, request)
    best = best_of(Sweep.stored_in(sweep))
    remember(stored_values(sweep.trial(best.trial.trial_id).private))
    return LongRun(folder, _experiment(best.trial.planned, request), best.trial.trial_id, best)


def write_long_run(run: LongRun, sweep: str, overrides: Overrides) -> None:
    """Make the folder of a new run, or its training the longer one that is asked for. Whoever calls keeps others out.

    Raises:
        UsageError: a training that is to become longer runs here.
    """
    request = {"experiment": run.experiment.model_dump(mode="json"), "overrides": _texts(overrides)}
    if run.best is not None:
        origin = {"sweep": sweep, "point": run.best.trial.point, "from_trial": run.source}
        run.folder.write_trial({"trial_id": run.folder.path.name, **origin, **request})
    elif run.extends:
        with hold_lock(run.folder.running_lock):
            stored = json.loads(run.folder.trial.read_bytes())
            run.folder.write_trial(stored | request | {"schedules": [list(each) for each in run.schedules]})


def _texts(overrides: Overrides) -> list[str]:
    """Return the overrides that say what is trained; sorted, as another order makes no other training."""
    return sorted(overrides_for_records(overrides.without(PLACE_GROUPS).texts))


def _continue_training(folder: TrialFolder, request: Overrides) -> LongRun:
    other, stored = "or begin another training with --name NAME", read_stored(folder)
    if is_damaged(folder):
        raise damaged_error(folder)
    if stored is None:
        raise UsageError(f"{folder.trial} does not belong to a training from a sweep", f"Remove it, {other}.")
    before = Overrides.parse(stored.overrides)
    if _texts(before) == _texts(request):
        return stored
    others = [[text for text in _texts(each) if not text.startswith(f"{NUM_STEPS}=")] for each in (before, request)]
    if others[0] == others[1] and request.stated_value(NUM_STEPS) is not None:
        return _extend_training(stored, request, other)
    problem = f"{folder.path} holds a training with {' '.join(stored.overrides) or 'no overrides'}"
    now = " ".join(_texts(request)) or "none"
    raise UsageError(f"{problem}, and now {now} was requested", f"Give the same, {other}.")


def _extend_training(run: LongRun, request: Overrides, other: str) -> LongRun:
    """The training with more steps; as it is, where no more are asked for."""
    before, wanted = run.experiment.training.num_steps, part_at(compose(request).tree, NUM_STEPS)
    tree = run.experiment.model_dump(mode="json")
    longer = validate(Experiment, with_values(tree, {NUM_STEPS: wanted}))
    if longer.training.num_steps < before:
        problem = f"{run.folder.path} holds this training with {count_of(before, 'step')}"
        raise UsageError(problem, f"Give {NUM_STEPS}={before} or more, {other}.")
    if longer.training.num_steps == before:
        return run
    last = last_whole(run.folder.checkpoints, warns=False)
    schedules = (*run.schedules, *([(before, step_of(last))] if last else []))
    return replace(run, experiment=longer, schedules=schedules, extends=True)


def _experiment(planned: Experiment, request: Overrides) -> Experiment:
    """The planned experiment with regular checkpoints, and with what the user asked for."""
    if request.stated_value(NUM_STEPS) is None:
        problem = "is what the sweep measured, and does not say how long to train"
        raise ConfigError(NUM_STEPS, planned.training.num_steps, problem, f"Give {NUM_STEPS}=N.")
    # Only the values that the user named are taken over: the rest of this composition is of the default experiment.
    composed = compose(Overrides.choosing("checkpoint", "regular") + request).tree
    tree = planned.model_dump(mode="json") | {"checkpoint": composed["checkpoint"]}
    return validate(
        Experiment, with_values(tree, {override.key: part_at(composed, override.key) for override in request})
    )


def _require_of_training(overrides: Overrides) -> None:
    """Raises ConfigError for an override that neither chooses the place nor changes the training.

    It would be ignored, and the user would not know.
    """
    for override in overrides:
        changes_cluster = override.group in ("cluster", "device") and override.key != "cluster"
        if changes_cluster or override.group not in PLACE_GROUPS | Experiment.model_fields.keys():
            problem = "has no effect on a training, which takes its cluster from the sweep"
            raise ConfigError(override.key, override.value, problem, "Leave it out, or give it to `trisweep sweep`.")


TRAININGS = "train"
"""The folder of all trainings, beside those of the sweeps."""


@dataclass(frozen=True)
class Best:
    """The plan to train.

    Attributes:
        is_measured: by the sweep; else only predicted.
        flops_per_second_per_device: model FLOP/s, measured or predicted.
    """

    trial: Trial
    is_measured: bool
    flops_per_second_per_device: float


@dataclass(frozen=True)
class LongRun:
    """A training folder that holds its experiment.

    Attributes:
        best: None where the folder was there already, and its plan stays.
        schedules: for every time that it was extended, the number of steps that its schedule had before, and the step
            that it had come to.
    """

    folder: TrialFolder
    experiment: Experiment
    source: str
    best: Best | None = None
    sweep: str = ""
    overrides: tuple[str, ...] = ()
    schedules: tuple[tuple[int, int], ...] = ()
    extends: bool = False

    def read(self) -> Reading:
        return Reading(folder=self.folder, experiment=self.experiment)


def read_stored(folder: TrialFolder) -> LongRun | None:
    """Read what a training's folder says of it; None if the folder holds no training begun from a sweep."""
    try:
        stored = json.loads(folder.trial.read_bytes())
        schedules = tuple((int(steps), int(done)) for steps, done in stored.get("schedules", ()))
        return LongRun(
            folder,
            folder.read_experiment(),
            str(stored["from_trial"]),
            sweep=str(stored["sweep"]),
            overrides=tuple(stored["overrides"]),
            schedules=schedules,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # pydantic's complaint is a ValueError
        return None


def is_damaged(folder: TrialFolder) -> bool:
    """True if there is a `trial.json` that holds no experiment, so that nobody knows what the training was."""
    try:
        folder.read_experiment()
    except OSError:  # there is none, or another user lets nobody look at it
        return False
    except (ValueError, KeyError, TypeError):
        return True
    return False


def damaged_error(folder: TrialFolder) -> UsageError:
    """The error that says which training's file is damaged, and what a person can do."""
    remedy = "Put back a copy of it, or begin another training with --name NAME."
    return UsageError(f"{folder.trial} is damaged: it holds no experiment that can be read", remedy)


def damaged_trainings(output_dir: Path) -> list[TrialFolder]:
    """The trainings of which nobody can say from which sweep they were begun, by name."""
    folders = (TrialFolder(path) for path in sorted((output_dir / TRAININGS).glob("*")))
    return [folder for folder in folders if is_damaged(folder)]


def trainings_of(output_dir: Path, sweep: str) -> list[LongRun]:
    """Every training that was begun from the sweep, wherever it was measured, by name."""
    stored = (read_stored(TrialFolder(path)) for path in sorted((output_dir / TRAININGS).glob("*")))
    return [run for run in stored if run is not None and run.sweep == sweep]


def training_of(output_dir: Path, sweep: str, name: str) -> LongRun:
    """The training of that name; raises UsageError where there is none, or its `trial.json` is damaged."""
    trainings = {run.folder.path.name: run for run in trainings_of(output_dir, sweep)}
    if name not in trainings:
        if is_damaged(folder := TrialFolder(output_dir / TRAININGS / name)):
            raise damaged_error(folder)
        others = f"Known are {', '.join(trainings)}." if trainings else "There is none."
        raise UsageError(f"No training {name} was begun from sweep {sweep} in {output_dir / TRAININGS}", others)
    return trainings[name]


def in_the_way(job: LiveJob, folder: TrialFolder) -> UsageError:
    """Return the error that says why another trainer cannot work in the job's folder now."""
    problem = f"Job {job.job_id} ({job.state.name}) trains in {folder.path}"
    return UsageError(problem, f"Wait for it, or end it with `scancel {job.job_id}`.")


@contextmanager
def keep_others_out(folder: TrialFolder) -> Iterator[LiveJob | None]:
    """Keep others from starting a trainer in this folder, until there is a job to be seen or training here has ended.

    Yields:
        The job that trains in the folder already.

    Raises:
        UsageError: another process starts one, or trains on this machine; or Slurm does not answer.
    """
    with hold_lock(folder.starting_lock):
        yield live_job(folder)


def require_job(slurm: SlurmSpec) -> None:
    """Refuse settings by which no training can be submitted.

    Raises:
        UsageError: there is no sbatch here, or jobs go to PBS.
        ConfigError: the time limit is too short.
    """
    require_time_to_save(slurm)
    require_sbatch(slurm)


def submit_long_run(run: LongRun, slurm: SlurmSpec) -> str:
    """Submit and return the job's id; what a failed attempt left is forgotten, its checkpoints are not.

    Whoever calls keeps others out.

    Raises:
        UsageError, ConfigError: as `require_job`; or Slurm refuses the request.
    """
    require_job(slurm)
    folder = run.folder
    # Read before the measurement is removed, which tells whether the last attempt lost its node. It is removed because
    # Slurm is asked only about jobs that have left none.
    attempt = run.read().next_attempt
    folder.measurement.unlink(missing_ok=True)
    executor = _executor(folder, slurm, snapshot_code(folder.code.absolute()))
    return executor.submit(RUN_IN_SLURM, [FolderWork(folder, attempt)], shape_of(run.experiment))


def long_run_text(run: LongRun, slurm: SlurmSpec) -> str:
    """The text that sbatch would get. Needs no Slurm.

    Raises:
        ConfigError: the time limit is too short, or a setting cannot be written.
    """
    require_time_to_save(slurm)
    return _executor(run.folder, slurm, run.folder.code.absolute() / "SNAPSHOT").text(shape_of(run.experiment), 1)


def _executor(folder: TrialFolder, slurm: SlurmSpec, code: Path) -> SlurmExecutor:
    return SlurmExecutor(slurm, f"trisweep-{folder.path.name}", code, folder.submitit.absolute(), requeues=True)
