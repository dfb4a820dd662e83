"""The rules by which a sweep is carried out, its budget among them, and what one of its steps found and did.

Limits of money and energy become device-seconds, at the price and the power of the cluster's devices. A trial in flight
counts as if it ran into its time limit, in every run of its job. A limit ends no trial: no further one starts. A
deadline ends what runs, too, if somebody goes on with the sweep then.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from conf.compose.settings import BudgetSpec
from conf.errors import ConfigError
from conf.plan.experiment import Experiment
from conf.types.sites import SlurmSpec
from conf.units import SECONDS_PER_HOUR, SECONDS_PER_MINUTE
from sweeps.folder.journal import Entry, History
from sweeps.points.following import Stages
from sweeps.ranking.rounds import Rounds
from sweeps.reading import TrialReading
from sweeps.search.searcher import Listed, Proposal, Search
from sweeps.sweep import Sweep
from sweeps.trial import Trial

WATTS_PER_KILOWATT = 1000

PAUSED = "it is paused"


@dataclass(frozen=True)
class Budget:
    """The limits of what a sweep may spend, and what its trials are charged.

    Attributes:
        slurm: how the site hands out nodes; None where trials run on this machine.
        limit_seconds: after which a trial is ended; None where it has no limit, and counts as long as predicted.
    """

    limits: BudgetSpec
    slurm: SlurmSpec | None
    limit_seconds: float | None

    @property
    def is_limited(self) -> bool:
        """True if the device-seconds of trials are limited; a deadline alone limits none."""
        limits = self.limits
        return not (limits.device_hours is limits.dollars is limits.energy_kwh is None)

    def num_devices(self, trial: Trial) -> int:
        # A site may charge whole nodes; on this machine nobody else is kept from anything.
        return devices_charged(trial.planned, self.slurm) if self.slurm else trial.planned.parallel.world_size

    def most_seconds(self, trial: Trial) -> float:
        return predicted_seconds(trial) if self.limit_seconds is None else self.limit_seconds

    def most_device_seconds(self, trial: Trial) -> float:
        """Device-seconds of the trial if it runs into its time limit."""
        return self.num_devices(trial) * self.most_seconds(trial)

    def device_seconds(self, trial: Trial, seconds: float, num_runs: int = 1) -> float:
        """Device-seconds of a trial that ended, each run of whose job may take as long as the time limit allows.

        What it waited in the queue may be in `seconds`, and is not charged.
        """
        most = math.inf if self.limit_seconds is None else num_runs * self.limit_seconds
        # Two machines' clocks may differ, so that a duration can come out below zero.
        return self.num_devices(trial) * min(max(0.0, seconds), most)

    def why_not(self, trial: Trial, spent: float) -> str:
        """Return why the budget forbids the trial, `spent` device-seconds being used or in flight; empty if not."""
        limit = self.limit_on(trial)
        if limit is None or spent + self.most_device_seconds(trial) <= limit[0]:
            return ""
        most, words = limit
        remaining_hours = max(0.0, most - spent) / SECONDS_PER_HOUR
        could = self.most_device_seconds(trial) / SECONDS_PER_HOUR
        return f"{words} leaves {remaining_hours:.3g} device-hours, and the next trial could take {could:.3g}"

    def why_too_late(self, begun: float, now: float, seconds: float) -> str:
        """Return why it is too late to start anything that may take so many seconds; empty if it is not."""
        hours = self.limits.deadline_hours
        # Nobody knows when a trial ends, so that all the time which it may take has to lie before the deadline.
        if hours is None or now + seconds <= begun + hours * SECONDS_PER_HOUR:
            return ""
        remaining = max(0.0, begun + hours * SECONDS_PER_HOUR - now) / SECONDS_PER_MINUTE
        return f"budget.deadline_hours = {hours:g} leaves {remaining:.3g} minutes, and the next trial could take longer"

    def is_past_deadline(self, begun: float, now: float) -> bool:
        hours = self.limits.deadline_hours
        return hours is not None and now > begun + hours * SECONDS_PER_HOUR

    def limit_on(self, trial: Trial) -> tuple[float, str] | None:
        """The device-seconds that the tightest of the limits allows, and its words; None where there is none.

        Raises:
            ConfigError: money is limited, and the cluster's devices have no price.
        """
        experiment, limits, price = trial.planned, self.limits, trial.planned.price_per_hour
        if limits.dollars is not None and price is None:
            lacking = next(b.cluster for b in experiment.blocks if b.cluster.device.price_per_hour is None)
            problem = f"cannot be held: {lacking.name} names no price of its {lacking.device.name}"
            remedy = "Set cluster.device.price_per_hour=DOLLARS, or limit budget.device_hours."
            raise ConfigError("budget.dollars", limits.dollars, problem, remedy)
        bounds = [
            (value / taken * SECONDS_PER_HOUR, f"budget.{key} = {value:g}")
            for key, taken in taken_per_device_hour(experiment).items()
            if taken is not None and (value := getattr(limits, key)) is not None
        ]
        return min(bounds, default=None)


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


def taken_per_device_hour(experiment: Experiment) -> dict[str, float | None]:
    """What an hour of one device takes of each limit of a budget; no dollars where the cluster's file has no price."""
    kilowatts = experiment.watts / WATTS_PER_KILOWATT
    return {"device_hours": 1.0, "dollars": experiment.price_per_hour, "energy_kwh": kilowatts}


def predicted_seconds(trial: Trial) -> float:
    """Return the predicted seconds of the trial's steps, without its start; 0 of a program that makes no steps."""
    if trial.estimate is None:
        return 0.0
    return trial.planned.training.num_steps * trial.estimate.step_seconds


@dataclass
class Admission:
    """Admits trials one after another, until the first that the budget does not bear.

    Attributes:
        slots: how many more may be queued or running; given is how many in all, from which those in flight are taken
            off. None sets no limit.
        refusal: why the budget admits no further trial, and which would have been next; empty while it admits.
    """

    budget: Budget
    history: History
    slots: int | None
    in_flight: Sequence[TrialReading]
    refusal: str = ""
    _spent: float = field(init=False)

    def __post_init__(self) -> None:
        if self.slots is not None:
            self.slots = max(0, self.slots - len(self.in_flight))
        # What is in flight counts with the most that it can cost, so that a budget is kept whatever happens.
        self._spent = self.history.device_seconds + sum(
            self.budget.most_device_seconds(each.trial) * each.num_runs for each in self.in_flight
        )

    def admits(self, trial: Trial) -> bool:
        """Return whether the trial may start; if so, count it as if it had."""
        if self.refusal or self.slots == 0:
            return False
        now = time.time()
        reason = self.budget.why_not(trial, self._spent) or self.budget.why_too_late(
            self.history.first_begun or now, now, self.budget.most_seconds(trial)
        )
        if reason:
            why = f" ({trial.chosen_because})" if trial.chosen_because else ""
            self.refusal = f"{reason}. Next would have been {trial.trial_id}{why}"
            return False
        self._spent += self.budget.most_device_seconds(trial)
        self.slots = None if self.slots is None else self.slots - 1
        return True


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules by which a sweep is carried out.

    Attributes:
        draft: makes the trial of a point that is proposed; None where none is.
        rounds: which points are measured again, once the search proposes none; None measures each once.
        max_concurrent_trials: that are queued or running at once; None sets no limit.
        max_trials: how many points a search may come to, the baseline among them; None sets no limit.
        fail_fast: the sweep stops once so many trials have failed since the command was given; None never stops it.
        tell: is told of every step, with the sweep as it stands after it.
    """

    budget: Budget
    search: Search = field(default_factory=Listed)
    draft: Callable[[Proposal], Trial] | None = None
    wants: Callable[[Trial], bool] = lambda trial: True
    rounds: Rounds | None = None
    stages: Stages = field(default_factory=Stages)
    max_concurrent_trials: int | None = None
    max_trials: int | None = None
    fail_fast: int | None = None
    max_resubmits: int = 0
    tell: Callable[[Sweep, SweepStep], None] = lambda sweep, step: None


@dataclass(frozen=True, kw_only=True)
class SweepStep:
    """The findings and actions of one step of a sweep.

    Attributes:
        num_in_flight: trials that are queued or running now.
        waiting: ids of the trials that are to run and were not started yet.
        held: why nothing further is started, also where the sweep has ended for it; empty where nothing holds it.
        finished: why the sweep has ended; empty where it has not.
    """

    readings: tuple[TrialReading, ...]
    started: tuple[str, ...] = ()
    news: tuple[Entry, ...] = ()
    num_in_flight: int = 0
    waiting: tuple[str, ...] = ()
    held: str = ""
    finished: str = ""

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)

    def leaves_nothing_to_do(self) -> bool:
        """True if whoever goes on with the sweep would only wait: it has ended, or a person has paused it."""
        return bool(self.finished) or (self.held == PAUSED and not self.num_in_flight)
