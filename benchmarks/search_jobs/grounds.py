"""Grounds on which searches compete: every legal plan of a model on devices, and what each really takes.

The truth is a made-up machine (sweeps/replay): the cost model with other constants, unmodelled effects and noise.
Searches know the cost model at most, never the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from conf.compose.load import Composition, compose
from conf.overrides import Overrides
from conf.plan.experiment import Experiment
from sweeps.planner.plans.space import Space
from sweeps.planner.request import request
from sweeps.replay.machine import InventedMachine
from sweeps.search.layouts.candidates import PlansOfSpaces
from train_core.costs.counts.flops import model_flops
from train_core.costs.price import price
from train_core.costs.setting import Booleans, Floats, Plans

BF16 = "precision=bf16"
ANY_MEMORY = 1000.0  # times the memory of a device: every legal plan
NEAR = 0.98  # share of the best rate that counts as found


@dataclass(frozen=True)
class Site:
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
        return request(self.composition, devices=self.devices).spaces

    @cached_property
    def legal(self) -> PlansOfSpaces:
        """Every legal plan that the trainer runs, whether it fits or not; layers are spread evenly."""
        settings = request(self.composition, devices=self.devices).settings
        return PlansOfSpaces(self.spaces, settings, margin=ANY_MEMORY, hopeless=np.inf)

    @cached_property
    def candidates(self) -> PlansOfSpaces:
        """What `search=bayes` chooses among."""
        return PlansOfSpaces(self.spaces, self.legal.parts)

    @cached_property
    def to_cost(self) -> Floats:
        """What to add to the logarithm of a step's seconds to have that of its cost, of each legal plan, (n,)."""
        return np.concatenate([_to_cost(space, plans) for space, plans in self.legal.by_kind])

    @cached_property
    def predicted_bytes_over(self) -> Floats:
        """By how much each legal plan exceeds its device by the cost model, (n,)."""
        by_kind = self.legal.by_kind
        peaks = [price(space.setting, plans).peak_memory_bytes - _capacity(space) for space, plans in by_kind]
        return np.concatenate(peaks).astype(np.float64)


@dataclass(frozen=True)
class Ground:
    """A site with the machine that is really there.

    Attributes:
        log_costs: logarithm of device-seconds for each FLOP of the model, of every legal plan, without noise, (n,).
        fits: which plans really fit, (n,).
        over_bytes: by how much the others do not, (n,).
    """

    site: Site
    machine: InventedMachine
    log_costs: Floats
    fits: Booleans
    over_bytes: Floats

    @classmethod
    def of(cls, site: Site, machine: InventedMachine) -> Ground:
        by_kind = site.legal.by_kind
        truths = [machine.truth(space.setting, plans) for space, plans in by_kind]
        seconds = np.concatenate([truth.step_seconds for truth in truths])
        peaks = [truth.peak_memory_bytes - _capacity(space) for truth, (space, _) in zip(truths, by_kind, strict=True)]
        over = np.concatenate(peaks)
        return cls(site, machine, np.log(seconds) + site.to_cost, over <= 0, over)

    @property
    def num_feasible(self) -> int:
        return int(np.count_nonzero(self.fits))

    @cached_property
    def best(self) -> float:
        return float(self.log_costs[self.fits].min())

    def share_of_best(self, row: int) -> float:
        """The plan's true rate as a share of that of the best of all plans that fit."""
        return float(np.exp(self.best - self.log_costs[row])) if self.fits[row] else 0.0

    def measured(self, row: int) -> float | None:
        """Logarithm of the measured cost of a plan; None where it runs out of memory."""
        if not self.fits[row]:
            return None
        return float(self.log_costs[row] + np.log(self.machine.noise_of(f"{self.site.name} {row}")))

    def row_of(self, experiment: Experiment) -> int:
        row = self.site.legal.row_of(experiment)
        assert row is not None, f"{experiment.label} is no legal plan of {self.site.name}"
        return row


def _to_cost(space: Space, plans: Plans) -> Floats:
    flops = model_flops(space.setting.model, space.global_batch_size)
    shift: Floats = np.log(plans.world_size) - np.log(flops)
    return shift


def _capacity(space: Space) -> int:
    return space.setting.cluster.device.memory_bytes


SITES = (
    Site("Llama 3.1 8B, 8 H100", ("model=llama-3.1-8b", "cluster=dgx-h100", BF16, "batch.global_batch_size=128"), "8"),
    Site("GPT 175B, 1,024 GCDs", ("sweep=175b", BF16), "1024"),
    Site(
        "Llama 3.1 8B, 64 H100", ("model=llama-3.1-8b", "cluster=dgx-h100", BF16, "batch.global_batch_size=256"), "64"
    ),
    Site("GPT-3 175B, 1,024 A100", ("model=gpt-175b", "cluster=selene", BF16, "batch.global_batch_size=1536"), "1024"),
    Site("GPT 22B, 96 GCDs", ("model=gpt-22b", "cluster=frontier", BF16, "batch.global_batch_size=480"), "96"),
    Site(
        "GPT 22B, 64 to 160 GCDs",
        ("model=gpt-22b", "cluster=frontier", BF16, "batch.global_batch_size=960"),
        "64,80,120,160",
    ),
)
