"""`Settings`: everything that a command is told, an experiment's parts among it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from pydantic import field_validator

from conf.compose.orders import require_order
from conf.credentials import HIDDEN, without_credentials
from conf.errors import ConfigError, InfeasiblePlan
from conf.folders import at_home
from conf.plan.experiment import Experiment, ExperimentParts
from conf.types.durations import Minutes
from conf.types.schema import Count, Frozen, NonNegative, Positive
from conf.types.sites import OF_CLOUD, SlurmSpec, TrackingSpec
from conf.types.stage_spec import StagePlace
from conf.types.sweep_spec import SearchPlan, SweepSpec, is_of_time
from conf.types.trainer_spec import TIMES

OF_SERVER = re.compile(rf"https?://[^\s/?#]+\S*$|{OF_CLOUD.pattern}")
OF_DATABASE = re.compile(r"(postgresql|mysql|mssql|sqlite)(\+\w+)?://")
"""The databases into which MLflow writes. Source: mlflow, DATABASE_ENGINES."""


class BudgetSpec(Frozen):
    """The limits of a sweep's spending, trials in flight included; null sets no limit.

    Attributes:
        device_hours: of all trials together, whatever becomes of them.
        dollars: at the price of the cluster's file.
        energy_kwh: at the declared power of its devices.
        deadline_hours: hours since the sweep was begun, by the clock on the wall.
    """

    device_hours: Positive | None
    dollars: Positive | None
    energy_kwh: Positive | None
    deadline_hours: Positive | None


UNLIMITED_BUDGET = BudgetSpec(device_hours=None, dollars=None, energy_kwh=None, deadline_hours=None)


class ControllerSpec(Frozen):
    """The process that goes on with a sweep whose next points depend on what was measured.

    Attributes:
        kind: `foreground`: the command itself; `slurm`: a small job that requeues itself.
        poll_seconds: between two looks at how the trials stand.
        fail_fast: the sweep stops once so many trials have failed; null never stops it.
        time_limit_minutes: of the controller's own job.
    """

    kind: Literal["foreground", "slurm"]
    poll_seconds: Positive
    fail_fast: Count | None
    time_limit_minutes: Minutes


class LauncherSpec(Frozen):
    """The kind of job in which trials run.

    Attributes:
        kind: `jobs`: each trial is a job or an element of a job array; `allocation`: a step inside one allocation.
        num_nodes: of the allocation; null takes as many as the largest trial needs.
        time_limit_minutes: of the allocation. Each trial has `slurm.time_limit_minutes`.
    """

    kind: Literal["jobs", "allocation"]
    num_nodes: Count | None
    time_limit_minutes: Minutes


class NotifySpec(Frozen):
    """The recipient of a message when a sweep ends, fails often, or finds a new best.

    Attributes:
        command: of a shell, that gets a line of JSON for each message on its standard input; null tells nobody. Records
            keep it, so that it may read an address from a file, and not hold one.
        after_failures: tell once so many trials have failed, and again whenever twice as many have.
        min_gain: a new best is told of if it is better than the last one told of by this share.
    """

    command: str | None
    after_failures: Count
    min_gain: NonNegative

    @field_validator("command")
    @classmethod
    def _holds_no_address(cls, value: str | None) -> str | None:
        if value is not None and "://" in value:
            remedy = "Write the address into a file that only you can read; docs/how-to/notifications.md has examples."
            raise ConfigError("notify.command", HIDDEN, "holds an address, which records would keep", remedy)
        return value


MOST_BYTES_OF_PATH = 500
"""SQLite opens no file at a longer path than 512 bytes. Source: MAX_PATHNAME in its os.h."""
MOST_BYTES_OF_NAME = 255
"""Of a file or folder, on the usual file systems."""


class Settings(ExperimentParts):
    """The whole configuration, as composed by Hydra. The parts of an experiment are not yet held against each other.

    Attributes:
        output_dir: folder below which sweeps and trainings are written.
    """

    slurm: SlurmSpec
    tracking: TrackingSpec
    output_dir: str
    sweep: SweepSpec | None
    search: SearchPlan
    budget: BudgetSpec
    controller: ControllerSpec
    launcher: LauncherSpec
    notify: NotifySpec

    # Not rules of the store itself: records of earlier sweeps may hold such names and addresses.
    @field_validator("tracking")
    @classmethod
    def _store_can_be_used(cls, value: TrackingSpec) -> TrackingSpec:
        if not value.experiment.strip():
            raise ConfigError("tracking.experiment", value.experiment, "is empty", "Give tracking.experiment=NAME.")
        if value.kind == "sqlite" and value.uri:
            problem = "is an address, and tracking=sqlite keeps a file in the output folder"
            remedy = "Give tracking=database or tracking=server with it, or leave it out."
            raise ConfigError("tracking.uri", without_credentials(value.uri), problem, remedy)
        address = OF_SERVER if value.kind == "server" else OF_DATABASE
        if value.uri and not address.match(value.uri):
            remedy = f"Give one such as {'https://host' if value.kind == 'server' else 'postgresql://host/name'}."
            problem = f"is not an address of a tracking {value.kind}"
            raise ConfigError("tracking.uri", without_credentials(value.uri), problem, remedy)
        return value

    @field_validator("output_dir")
    @classmethod
    def _somewhere(cls, value: str) -> str:
        if not value.strip():
            raise ConfigError("output_dir", value, "is empty", "Give output_dir=PATH; a dot is the current folder.")
        path = str(at_home(value, "output_dir")) if value.startswith("~") else value
        # What is longest below it are a trial's files, and MLflow's store where SQLite keeps it.
        if (length := len(os.fsencode(Path(path).absolute()))) > MOST_BYTES_OF_PATH:
            problem = f"is a path of {length:,} bytes, and SQLite takes {MOST_BYTES_OF_PATH} for MLflow's store in it"
            raise ConfigError("output_dir", value, problem, "Choose a shorter one with output_dir=PATH.")
        if any(len(os.fsencode(part)) > MOST_BYTES_OF_NAME for part in Path(path).parts):
            problem = f"holds a name of more than {MOST_BYTES_OF_NAME} bytes, which no file system takes"
            raise ConfigError("output_dir", value, problem, "Choose another with output_dir=PATH.")
        return path

    def experiment(self, stage: StagePlace | None = None) -> Experiment:
        """The experiment that these settings describe; raises InfeasiblePlan where the parts cannot exist together.

        Args:
            stage: its place among stages that follow each other; None of a sweep's own point.
        """
        require_order(self)
        # Not a rule of the experiment itself: records of earlier sweeps may hold such trials, none of which could run.
        every, data = self.training.evaluate_every, self.data
        has_some = data.source == "synthetic" or data.held_out_fraction or data.held_out
        if self.trainer.is_own and every is not None and not has_some:
            problem = "would evaluate no sequence, as data.held_out_fraction = 0"
            remedy = "Raise that, name sets in data.held_out, or use null."
            raise InfeasiblePlan("training.evaluate_every", every, problem, remedy)
        if data.held_out and every is None:
            problem = "names sets that nothing evaluates, as training.evaluate_every = null"
            raise InfeasiblePlan("data.held_out", sorted(data.held_out), problem, "Give training.evaluate_every=STEPS.")
        if self.trainer.trains and not self.trainer.is_own and any(map(is_of_time, self.search.objective)):
            self.trainer.log.require("how long a step takes", TIMES)
        return Experiment(**{key: getattr(self, key) for key in ExperimentParts.model_fields}, stage=stage)
