"""The small Slurm job that goes on with a sweep, and how any process takes a sweep up where the last one left it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from conf.compose.load import Composition, compose
from conf.compose.settings import ControllerSpec, Settings
from conf.errors import ConfigError, UsageError
from conf.folders import keep_folders
from conf.overrides import Overrides
from conf.types.sbatch_options import sbatch_table
from conf.types.sites import SlurmSpec
from conf.units import SECONDS_PER_MINUTE
from launcher.control.composed_rules import rules_for
from launcher.control.conductor import Conductor
from launcher.control.orders import overrides_at_begin
from launcher.control.rules import Budget, SweepStep
from launcher.control.workplace import Workplace
from launcher.folder_lock import holder, lock_folder
from launcher.job_payload import CONTROL_IN_SLURM, RUN_ON_THIS_MACHINE, FolderWork
from launcher.local.machine import this_machine
from launcher.local.workplace import ThisMachine
from launcher.provenance import ALL_PACKAGES, PACKAGES, snapshot_code
from launcher.refused import unchanged_if_refused
from launcher.slurm.executor import SlurmExecutor
from launcher.slurm.job_records import charged_times
from launcher.slurm.job_status import carrying_job
from launcher.slurm.pbs import PbsExecutor, require_scheduler
from launcher.slurm.sbatch import SAVE_SECONDS
from launcher.slurm.workplace import SeenFromOutside, SlurmQueue
from sweeps.folder.journal import Begun, History
from sweeps.folder.submission import JobShape, read_submission
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder

WHOLE_NODES = sbatch_table().devices | sbatch_table().rivals["mem"] | {"exclusive", "cpus-per-gpu"}
"""Options of the site's jobs that the controller, which needs one core, does not ask for."""

ONE_TASK = JobShape(num_nodes=1, tasks_per_node=1, uses_gpus=False)


def take_up(folder: SweepFolder, further: Overrides | None = None) -> tuple[Composition, Conductor]:
    """Return the configuration that a sweep's command had, with further overrides, and what goes on with it from disk.

    The caller holds the folder's lock.

    Raises:
        UsageError: the sweep was not begun, or its record is damaged.
        ConfigError: the configuration is wrong.
    """
    begun = History.kept_in(folder).begun
    if begun is None:
        raise UsageError(f"No sweep has been started in {folder.path}", "Give `trisweep sweep` first.")
    composition = _compose_again(folder, begun, further)
    sweep = Sweep(folder, folder.read_record())
    rules = rules_for(composition, sweep.record, on_slurm=begun.on_slurm)
    return composition, Conductor(sweep, _workplace_of(sweep, composition.settings, rules.budget), rules)


def _compose_again(folder: SweepFolder, begun: Begun, further: Overrides | None = None) -> Composition:
    """The configuration of the command, wherever this process runs, with further overrides."""
    keep_folders(begun.config_dirs, "config_dirs")
    return compose(overrides_at_begin(folder, begun) + (further or Overrides()))


def _workplace_of(sweep: Sweep, settings: Settings, budget: Budget) -> Workplace:
    if budget.slurm is not None:  # trials that are to be steps of an allocation are never queued
        return SeenFromOutside(settings.slurm) if settings.launcher.kind == "allocation" else SlurmQueue(settings.slurm)
    code = sweep.folder.code.absolute()
    snapshot = partial(snapshot_code, code, PACKAGES)
    return ThisMachine(this_machine(), snapshot, budget.limit_seconds, RUN_ON_THIS_MACHINE, charged_times)


def submit_controller(sweep: Sweep, slurm: SlurmSpec, controller: ControllerSpec) -> str:
    """Submit the job that goes on with the sweep, and return its id. Whoever calls holds the folder's lock.

    Raises:
        UsageError: there is no sbatch here, or Slurm refuses the request.
        ConfigError: the controller's time limit is too short.
    """
    require_scheduler(slurm)
    require_controller_time(controller)
    folder = sweep.folder.controller
    folder.path.mkdir(parents=True, exist_ok=True)
    executor = _executor(sweep, slurm, controller, snapshot_code(sweep.folder.code.absolute(), ALL_PACKAGES))
    last = read_submission(folder)
    return executor.submit(CONTROL_IN_SLURM, [FolderWork(folder, last.attempt + 1 if last else 1)], ONE_TASK)


def controller_text(sweep: Sweep, slurm: SlurmSpec, controller: ControllerSpec) -> str:
    """Return what sbatch would get for the job that goes on with the sweep. Writes nothing and needs no Slurm.

    Raises:
        ConfigError: the controller's time limit is too short.
    """
    require_controller_time(controller)
    return _executor(sweep, slurm, controller, sweep.folder.code.absolute() / "SNAPSHOT").text(ONE_TASK, 1)


def require_controller_time(controller: ControllerSpec) -> None:
    """Refuse a time limit at which the job would be warned as soon as it starts."""
    least = 2 * SAVE_SECONDS / SECONDS_PER_MINUTE
    if controller.time_limit_minutes < least:
        problem = (
            f"is too short: {SAVE_SECONDS} s before its end Slurm warns the controller, which is then queued again"
        )
        key = "controller.time_limit_minutes"
        raise ConfigError(key, controller.time_limit_minutes, problem, f"Give at least {least:g} minutes.")


def _executor(sweep: Sweep, slurm: SlurmSpec, controller: ControllerSpec, code: Path) -> SlurmExecutor | PbsExecutor:
    own, name = _settings_of_one_task(slurm, controller), f"trisweep-{sweep.record.name}-controller"
    if slurm.scheduler == "pbs":
        return PbsExecutor(own, name, code, sweep.folder.submitit.absolute(), uses_mpiexec=False)
    return SlurmExecutor(own, name, code, sweep.folder.submitit.absolute(), requeues=True)


def resume_controller(sweep: Sweep) -> str | None:
    """Submit the job again that left a sweep when it was paused, and return its id; that of one that is still there.

    None where no such job ever carried the sweep out, or where the sweep was cancelled.

    Raises:
        UsageError: Slurm does not answer, or refuses; or another process works on the folder.
    """
    history = History.kept_in(sweep.folder)
    if history.begun is None or history.is_cancelled or read_submission(sweep.folder.controller) is None:
        return None
    if (live := carrying_job(sweep.folder)) is not None:
        return live
    settings = _compose_again(sweep.folder, history.begun).settings
    with lock_folder(sweep.folder), unchanged_if_refused(sweep.folder):
        if (live := carrying_job(sweep.folder)) is not None:  # another command was faster
            return live
        return submit_controller(sweep, settings.slurm, settings.controller)


def start_now(sweep: Sweep, further: Overrides) -> SweepStep | None:
    """Take one step of a sweep that nobody carries out now, if its trials are Slurm jobs; else None.

    It has the configuration of the sweep's command, with further overrides.
    """
    begun = History.kept_in(sweep.folder).begun
    if begun is None or not begun.on_slurm or holder(sweep.folder) is not None:
        return None
    if carrying_job(sweep.folder) is not None:
        return None
    with lock_folder(sweep.folder), unchanged_if_refused(sweep.folder):
        _, conductor = take_up(sweep.folder, further)
        step, place = conductor.advance(), conductor.workplace
        refusal = place.refusal if isinstance(place, SlurmQueue) else None
        return step if refusal is None else replace(step, held=str(refusal))


def _settings_of_one_task(slurm: SlurmSpec, controller: ControllerSpec) -> SlurmSpec:
    extra = {name: value for name, value in slurm.extra_sbatch.items() if name not in WHOLE_NODES}
    # What the site asks for its trials, such as a GPU for each task, this job of one core does not have.
    changes = {
        "time_limit_minutes": controller.time_limit_minutes,
        "cpus_per_task": 1,
        "extra_sbatch": extra,
        "srun_args": (),
    }
    return slurm.outside_container().model_copy(update=changes)
