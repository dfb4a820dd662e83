"""One trial of a sweep again, beside it: with the code, the configuration and the settings that it had."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import psutil

from conf.credentials import remember
from conf.errors import UsageError
from conf.types.sites import SlurmSpec
from launcher.job_payload import RUN_IN_SLURM, RUN_ON_THIS_MACHINE, FolderWork
from launcher.local.machine import end_trees, start_job, this_machine
from launcher.provenance import OF_TRIAL
from launcher.refused import FilesBefore, put_back_if_refused
from launcher.slurm.executor import SlurmExecutor, require_sbatch
from launcher.slurm.query import WATCHING
from launcher.slurm.reconcile import reconcile
from sweeps.folder.submission import JobShape, shape_of
from sweeps.reading import Reading, TrialReading
from sweeps.sweep import Sweep
from train_core.process.git_sha import RECORDED
from train_core.trial.atomic import stored_values
from train_core.trial.folder import TrialFolder

RERUNS = "rerun"
"""The folder of all reruns, beside those of the sweeps."""

POLL_SECONDS = 1.0
UNWANTED = ("SLURM_", "CUDA_VISIBLE", "HIP_VISIBLE", "ROCR_VISIBLE", "PATH", "PYTHON", "VIRTUAL_ENV", "LOADEDMODULES")
"""Beginnings of variables that belonged to the earlier job or machine, and would be wrong for another."""


@dataclass(frozen=True)
class Rerun:
    """A trial that is to run again, before it does.

    Attributes:
        code: the snapshot that the trial ran.
        folder: where it runs again; nothing is there yet.
        variables: of its environment, as far as they were kept.
        slurm: settings of the job; None where it runs on this machine.
    """

    trial: TrialReading
    code: Path
    folder: TrialFolder
    variables: dict[str, str]
    slurm: SlurmSpec | None

    @property
    def shape(self) -> JobShape:
        return shape_of(self.trial.planned)

    def run(self, tell: Callable[[Reading], None]) -> Reading:
        """Run it, and return how it stands at its end. Ctrl-C ends a job of this machine; one of Slurm's goes on.

        Raises:
            UsageError: Slurm refuses it.
            KeyboardInterrupt: Ctrl-C; a job of this machine has been ended, one of Slurm's goes on.
        """
        with put_back_if_refused(FilesBefore([], [self.folder.path])):
            self._prepare()
            # Here and not for the child alone: sbatch too hands over the environment in which it is called.
            os.environ.update(self.variables)
            if self.slurm is not None:
                self._submit(self.slurm)
        return self._run_here(tell) if self.slurm is None else self._follow(tell)

    def _prepare(self) -> None:
        # A fresh folder: mkdir fails where somebody else has taken the name meanwhile.
        self.folder.path.mkdir(parents=True)
        stage = self.trial.planned.stage
        # A stage finds the folders of those before it beside its own.
        for earlier in stage.folders_beside(self.trial.folder.path) if stage else ():
            (self.folder.path.parent / earlier.name).symlink_to(earlier)
        remember(stored_values(self.trial.folder.private))
        self.folder.write_trial(json.loads(self.trial.folder.trial.read_bytes()))

    def _run_here(self, tell: Callable[[Reading], None]) -> Reading:
        has_gpus = this_machine().num_devices > 0
        devices = tuple(range(self.trial.planned.parallel.world_size)) if has_gpus else ()
        work = FolderWork(self.folder, attempt=1)
        process = start_job(RUN_ON_THIS_MACHINE, work, self.shape, self.code, devices, time_limit_seconds=None)
        try:
            while process.poll() is None:
                tell(self._reading())
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            end_trees([psutil.Process(process.pid)])
            raise
        return self._reading()

    def _submit(self, slurm: SlurmSpec) -> None:
        require_sbatch(slurm)
        executor = SlurmExecutor(slurm, "trisweep-rerun", self.code, self.folder.submitit.absolute())
        executor.submit(RUN_IN_SLURM, [FolderWork(self.folder, attempt=1)], self.shape)

    def _follow(self, tell: Callable[[Reading], None]) -> Reading:
        while True:
            (reading,) = reconcile([self._reading()], WATCHING)
            tell(reading)
            if reading.outcome is not None and reading.outcome.is_final:
                return reading
            time.sleep(POLL_SECONDS)

    def _reading(self) -> Reading:
        return Reading(folder=self.folder, experiment=self.trial.experiment)


def plan_rerun(sweep: Sweep, trial: TrialReading, slurm: SlurmSpec | None) -> Rerun:
    """Return what is needed to run the trial again; a job of Slurm's needs its sweep's settings.

    Raises:
        UsageError: the trial never ran, or its code is gone.
    """
    if trial.experiment is None or not trial.folder.trial.exists():
        raise UsageError(f"{trial.name} has never been started", "Name one that has: `trisweep status` lists them.")
    if trial.is_in_slurm and slurm is None:
        raise UsageError(f"{trial.name} was a job of Slurm's", "Run this on its login node.")
    kept = stored_values(trial.folder.path / OF_TRIAL)
    numbered = (sweep.folder.path.parent / RERUNS / f"{trial.name}-{number}" for number in count(1))
    folder = next(each for each in numbered if not os.path.lexists(each)).absolute()
    return Rerun(
        trial=trial,
        code=_code_of(sweep, trial, kept),
        # That of a stage lies deeper, because the folders before it are beside it.
        folder=TrialFolder(folder / trial.name if trial.experiment.stage else folder),
        variables={k: v for k, v in kept.get("environment", {}).items() if not k.startswith(UNWANTED)},
        slurm=slurm if trial.is_in_slurm else None,
    )


def _code_of(sweep: Sweep, trial: TrialReading, kept: dict[str, dict[str, str]]) -> Path:
    """The snapshot that the trial ran: as its provenance says, else the only one, or the one of its commit."""
    # The sweep folder may have been moved since, hence the name alone.
    if (said := sweep.folder.code / Path(str(kept.get("code", ""))).name) != sweep.folder.code and said.exists():
        return said.absolute()
    snapshots = sorted(path for path in sweep.folder.code.glob("*") if _commit_of(path))
    environment = trial.measurement.environment if trial.measurement else None
    same = [each for each in snapshots if environment and _commit_of(each) == environment.git_sha]
    for folders in (same, snapshots):
        if len(folders) == 1:
            return folders[0].absolute()
    problem = f"Which of {len(snapshots)} snapshots in {sweep.folder.code} {trial.name} ran is not known"
    raise UsageError(problem, "Run the sweep again from its commit.")


def _commit_of(snapshot: Path) -> str:
    with contextlib.suppress(OSError, BadZipFile, LookupError), ZipFile(snapshot) as archive:
        return archive.read(f"train_core/{RECORDED}").decode().split()[0]
    return ""
