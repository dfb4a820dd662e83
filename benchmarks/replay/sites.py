"""Every legal plan of a model on devices as candidates, on a made-up machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import exp
from typing import Any

import numpy as np

from benchmarks.replay.machine import InventedMachine
from benchmarks.replay.players import ExcessBytes, Ground, SearchPlayer
from benchmarks.replay.run import ReplayedReading, as_measured, replayed_reading, unplanned_trial
from conf.compose.load import Composition, compose
from conf.overrides import Overrides
from conf.plan.experiment import Experiment
from costs.counts.flops import model_flops
from costs.price import price
from costs.setting import Floats, Plans
from sweeps.planner.plans.space import Space
from sweeps.planner.plans.strategy import Strategy
from sweeps.planner.request import search_request
from sweeps.points.axes import Point
from sweeps.search.layouts.bayes import Bayes
from sweeps.search.layouts.candidates import PlansOfSpaces

BF16 = "precision=bf16"
ANY_MEMORY = 1000.0  # times the memory of a device: every legal plan
UNLIMITED_TRIALS = 100_000


@dataclass(frozen=True)
class ModelSite:
    """A model on devices; the same for every machine.

    Attributes:
        devices: as `trisweep plan --devices` takes them; several numbers are an axis of the search.
    """

    name: str
    overrides: tuple[str, ...]
    devices: str

    @cached_property
    def composition(self) -> Composition:
        return compose(Overrides.parse([*self.overrides, "search=bayes"]))

    @cached_property
    def spaces(self) -> tuple[Space, ...]:
        return search_request(self.composition, devices=self.devices, headroom="0").spaces

    @cached_property
    def legal(self) -> PlansOfSpaces:
        """Every legal plan that the trainer runs, whether it fits or not; layers are spread evenly."""
        settings = search_request(self.composition, devices=self.devices).settings
        return PlansOfSpaces(self.spaces, settings, margin=ANY_MEMORY, hopeless=np.inf)

    @cached_property
    def candidates(self) -> PlansOfSpaces:
        """The plans among which `search=bayes` chooses."""
        return PlansOfSpaces(self.spaces, self.legal.parts)

    @cached_property
    def to_cost(self) -> Floats:
        """The summand from the logarithm of a step's seconds to that of its cost, of each legal plan, (n,)."""
        return np.concatenate([_to_cost(space, plans) for space, plans in self.legal.by_kind])

    @cached_property
    def predicted_bytes_over(self) -> Floats:
        """The bytes by which each legal plan exceeds its device by the cost model, (n,)."""
        by_kind = self.legal.by_kind
        peaks = [price(space.setting, plans).peak_memory_bytes - _capacity(space) for space, plans in by_kind]
        return np.concatenate(peaks).astype(np.float64)


@dataclass(frozen=True, eq=False)
class SiteGround(Ground):
    """The legal plans of a site on the machine that is really there.

    Attributes:
        log_costs: the logarithm of device-seconds for each FLOP of the model, of every plan, without noise, (n,).
        bytes_over: the bytes by which each plan really exceeds its device, negative where it fits, (n,).
    """

    site: ModelSite
    machine: InventedMachine
    log_costs: Floats
    bytes_over: Floats

    @classmethod
    def of(cls, site: ModelSite, machine: InventedMachine) -> SiteGround:
        by_kind = site.legal.by_kind
        truths = [machine.truth(space.setting, plans) for space, plans in by_kind]
        seconds = np.concatenate([truth.step_seconds for truth in truths])
        peaks = [truth.peak_memory_bytes - _capacity(space) for truth, (space, _) in zip(truths, by_kind, strict=True)]
        over = np.concatenate(peaks)
        fits, log_costs = over <= 0, np.log(seconds) + site.to_cost
        shares = np.where(fits, np.exp(log_costs[fits].min() - log_costs), 0.0)
        return cls(shares, fits, site.predicted_bytes_over <= 0, site, machine, log_costs, over)

    @property
    def num_feasible(self) -> int:
        return int(np.count_nonzero(self.fits))

    def log_cost(self, row: int) -> float | None:
        if not self.fits[row]:
            return None
        return float(self.log_costs[row] + np.log(self.machine.noise_of(f"{self.site.name} {row}")))

    def reading_of(self, row: int) -> ReplayedReading:
        experiment, cost = self.site.legal.experiment(row), self.log_cost(row)
        assert experiment is not None
        # Where it ran out of memory no step was timed, and the number is not looked at.
        seconds = exp((self.log_costs[row] if cost is None else cost) - self.site.to_cost[row])
        peak = experiment.cluster.device.memory_bytes + float(self.bytes_over[row])
        return replayed_reading(unplanned_trial(str(row), experiment), as_measured(experiment, seconds, peak))

    def row_of_point(self, point: Point) -> int:
        named: dict[str, Any] = {key.rsplit(".", 1)[-1]: value for key, value in point.items()}
        return self.row_of(Strategy.of(named).experiment(self.site.legal.parts))

    def row_of(self, experiment: Experiment) -> int:
        row = self.site.legal.row_of(experiment)
        assert row is not None, f"{experiment.label} is no legal plan of {self.site.name}"
        return row

    def bayes(self, min_gain: float) -> SearchPlayer:
        return SearchPlayer(Bayes(self.site.candidates, "throughput", min_gain, UNLIMITED_TRIALS), self)

    @property
    def excess(self) -> ExcessBytes:
        return ExcessBytes(self.site.predicted_bytes_over, self.bytes_over)


def _to_cost(space: Space, plans: Plans) -> Floats:
    flops = model_flops(space.setting.model, space.global_batch_size)
    return np.log(plans.world_size) - np.log(flops)


def _capacity(space: Space) -> int:
    return space.setting.cluster.device.memory_bytes


SITES = (
    ModelSite(
        "Llama 3.1 8B, 8 H100", ("model=llama-3.1-8b", "cluster=dgx-h100", BF16, "batch.global_batch_size=128"), "8"
    ),
    # As many steps as the others, since the disturbances of a trial are drawn by its fingerprint.
    ModelSite(
        "GPT 175B, 1,024 GCDs",
        ("sweep=175b", BF16, "training.num_steps=10", "training.num_warmup_steps=3"),
        "1024",
    ),
    ModelSite(
        "Llama 3.1 8B, 64 H100", ("model=llama-3.1-8b", "cluster=dgx-h100", BF16, "batch.global_batch_size=256"), "64"
    ),
    ModelSite(
        "GPT-3 175B, 1,024 A100", ("model=gpt-175b", "cluster=selene", BF16, "batch.global_batch_size=1536"), "1024"
    ),
    ModelSite("GPT 22B, 96 GCDs", ("model=gpt-22b", "cluster=frontier", BF16, "batch.global_batch_size=480"), "96"),
    ModelSite(
        "GPT 22B, 64 to 160 GCDs",
        ("model=gpt-22b", "cluster=frontier", BF16, "batch.global_batch_size=960"),
        "64,80,120,160",
    ),
)
