"""`Settings`: everything that a command is told, an experiment's parts among it."""

from __future__ import annotations

from conf.control import BudgetSpec, ControllerSpec, LauncherSpec, NotifySpec
from conf.experiment import Experiment, Parts
from conf.sites import SlurmSpec, TrackingSpec
from conf.sweep_spec import SearchPlan, SweepSpec


class Settings(Parts):
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

    def experiment(self) -> Experiment:
        """The experiment that these settings describe.

        Raises:
            InfeasiblePlan: the parts cannot exist together.
        """
        return Experiment(**{key: getattr(self, key) for key in Experiment.model_fields})
