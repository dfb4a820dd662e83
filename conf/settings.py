"""`Settings`: everything that a command is told, an experiment's parts among it."""

from __future__ import annotations

from pydantic import field_validator

from conf.control import BudgetSpec, ControllerSpec, LauncherSpec, NotifySpec
from conf.errors import ConfigError
from conf.experiment import Experiment, ExperimentParts
from conf.sites import SlurmSpec, TrackingSpec
from conf.stage_spec import StagePlace
from conf.sweep_spec import SearchPlan, SweepSpec


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

    @field_validator("output_dir")
    @classmethod
    def _somewhere(cls, value: str) -> str:
        if not value.strip():
            raise ConfigError("output_dir", value, "is empty", "Give output_dir=PATH; a dot is the current folder.")
        return value

    def experiment(self, stage: StagePlace | None = None) -> Experiment:
        """The experiment that these settings describe.

        Args:
            stage: its place among stages that follow each other; None of a sweep's own point.

        Raises:
            InfeasiblePlan: the parts cannot exist together.
        """
        return Experiment(**{key: getattr(self, key) for key in ExperimentParts.model_fields}, stage=stage)
