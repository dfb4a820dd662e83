"""What a job asks of the cluster: its shape, how trials share an array, and what the request costs at most."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from conf.experiment import Experiment
from conf.sites import SlurmSpec
from sweeps.folder.submission import JobShape, shape_of
from sweeps.trial import Trial

MINUTES_PER_HOUR = 60


def by_shape(trials: Iterable[Trial]) -> dict[JobShape, list[Trial]]:
    """Trials grouped by shape, the smallest jobs first. Within a group they keep their order."""
    groups: dict[JobShape, list[Trial]] = {}
    for trial in trials:
        assert trial.experiment is not None
        groups.setdefault(shape_of(trial.experiment), []).append(trial)
    return dict(sorted(groups.items(), key=lambda group: (group[0].num_nodes, group[0].devices_per_node)))


def split(trials: Sequence[Trial], max_array_size: int) -> list[list[Trial]]:
    """Consecutive parts of at most `max_array_size` trials: Slurm's MaxArraySize is one more than the highest index."""
    remaining = iter(trials)
    # The first empty part ends the iteration.
    return list(iter(lambda: list(islice(remaining, max_array_size)), []))


def devices_charged(experiment: Experiment, slurm: SlurmSpec) -> int:
    """Devices that a job keeps from others: whole nodes where it takes nodes whole, else those of its tasks."""
    charged = 0
    for block in experiment.blocks:
        settings = slurm.on(block.cluster.name) if experiment.mixed else slurm
        # A site where no GPUs are asked for hands out nodes as a whole, and charges them so.
        whole_nodes = settings.gpu_request == "none" or bool(settings.extra_sbatch.get("exclusive"))
        # Of each node all devices of its tasks are taken, also where one task starts the ranks of all of them.
        charged += block.num_nodes * (block.cluster.devices_per_node if whole_nodes else block.tasks_per_node)
    return charged


def device_hours(experiment: Experiment, slurm: SlurmSpec) -> float:
    """Device-hours of one trial if it runs into its time limit: an upper bound."""
    return devices_charged(experiment, slurm) * slurm.time_limit_minutes / MINUTES_PER_HOUR
