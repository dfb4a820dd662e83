"""A made-up machine: the cost model with other constants, and effects that the model does not know.

Every effect follows from the seed and from what it acts on alone, so that the same plan always meets the same truth.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from functools import reduce
from math import exp, log1p

import numpy as np

from conf.types.cluster_spec import ClusterSpec, LinkSpec
from costs import Implementation
from costs.price import price
from costs.setting import Booleans, Floats, Integers, Plans, Setting
from costs.terms import StepColumns

NUM_WAVES = 12  # of the smooth effect


@dataclass(frozen=True, slots=True)
class Truth:
    """The true seconds and bytes of many plans on the machine, in columns, (n,), before any noise.

    Attributes:
        terms: seconds by term.
        step_seconds: their sum.
        peak_memory_bytes: on the worst stage, with what the framework reserves.
    """

    terms: StepColumns
    step_seconds: Floats
    peak_memory_bytes: Floats


@dataclass(frozen=True, slots=True)
class InventedMachine:
    """A machine that differs from its cluster file. Spreads are standard deviations of logarithms.

    Attributes:
        constants: spread of every constant: rates of kernels, bandwidth and latency of each link.
        smooth: spread of an effect of tensor size, pipeline size and micro-batch that varies smoothly with them.
        kinds: spread of what schedules, recomputation, ZeRO stages and sequence parallelism each do to a term.
        kernels: spread of how well kernels suit one tensor size and micro-batch.
        memory: spread of the bytes.
        noise: spread between two measurements of the same plan.
    """

    seed: int
    constants: float = 0.25
    smooth: float = 0.05
    kinds: float = 0.05
    kernels: float = 0.02
    memory: float = 0.05
    noise: float = 0.02

    def truth(self, setting: Setting, plans: Plans) -> Truth:
        """Return the true cost of these plans, which differs from what the cluster's file predicts."""
        prices = price(self._alter(setting), plans)
        seconds = prices.step.by_term()
        seconds["compute_seconds"] = seconds["compute_seconds"] * np.exp(self._on_compute(plans))
        seconds["tensor_seconds"] = seconds["tensor_seconds"] * np.exp(self._on_tensor(setting.cluster, plans))
        seconds["bubble_seconds"] = seconds["bubble_seconds"] * np.exp(self._by_value("bubble", plans.schedule))
        seconds["data_seconds"] = seconds["data_seconds"] * np.exp(self._by_value("data", plans.zero_stage))
        terms = StepColumns(**seconds)
        reserved = setting.cluster.reserved_memory_bytes
        held = prices.peak_memory_bytes - reserved
        peak: Floats = reserved + held.astype(np.float64) * np.exp(self._on_memory(plans))
        return Truth(terms, terms.total_seconds, peak)

    def noise_of(self, name: str) -> float:
        """The factor by which the measurement of this name is off."""
        return exp(self._draw(f"noise {name}", self.noise))

    def _alter(self, setting: Setting) -> Setting:
        """The setting with the machine's own constants and overlaps, which may be better than the file says."""
        cluster, trainer = self._alter_cluster(setting.cluster), self._alter_trainer(setting.implementation)
        return replace(setting, cluster=cluster, implementation=trainer)

    def _alter_cluster(self, cluster: ClusterSpec) -> ClusterSpec:
        efficiency = cluster.efficiency
        rates = ("matmul", "attention", "memory", "kernel_seconds")
        # Nothing is checked again: a rate above the maker's peak is as good a truth here as any.
        altered = efficiency.model_copy(
            update={name: getattr(efficiency, name) * self._factor(name, self.constants) for name in rates}
        )
        links = tuple(self._alter_link(link) for link in cluster.links)
        return cluster.model_copy(update={"efficiency": altered, "links": links})

    def _alter_link(self, link: LinkSpec) -> LinkSpec:
        return link.model_copy(
            update={
                name: getattr(link, name) * self._factor(f"{link.name} {name}", self.constants)
                for name in ("bandwidth_bytes_per_second", "latency_seconds")
            }
        )

    def _alter_trainer(self, trainer: Implementation) -> Implementation:
        # Real trainers hide a part of what the model counts in full.
        overlaps = {name: self._share(name) / 2 for name in ("transfers_overlap", "data_overlap")}
        return trainer.model_copy(update={name: max(share, getattr(trainer, name)) for name, share in overlaps.items()})

    def _on_compute(self, plans: Plans) -> Floats:
        shape = plans.tensor_parallel_size * 100_003 + plans.micro_batch_size
        effects: list[Floats] = [
            self._smoothly(plans),
            self._by_value("recompute", plans.recompute),
            self._by_value("schedule", plans.schedule),
            self._by_value("sequence parallel", plans.sequence_parallel),
            self._by_value("kernels", shape, self.kernels),
        ]
        return reduce(np.add, effects)

    def _on_tensor(self, cluster: ClusterSpec, plans: Plans) -> Floats:
        """Collectives over several nodes meet other traffic, which no constant of a link knows."""
        crosses = plans.tensor_parallel_size > cluster.devices_per_node
        across = abs(self._draw("tensor across nodes", 2 * self.constants))
        return self._by_value("tensor", plans.sequence_parallel) + np.where(crosses, across, 0.0)

    def _on_memory(self, plans: Plans) -> Floats:
        whole = self._draw("memory", 0.8 * self.memory)
        return whole + self._by_value("memory", plans.recompute * 8 + plans.zero_stage, 0.6 * self.memory)

    def _smoothly(self, plans: Plans) -> Floats:
        """A sum of slow waves over the logarithms of tensor size, pipeline size and micro-batch."""
        knobs = (plans.tensor_parallel_size, plans.pipeline_parallel_size, plans.micro_batch_size)
        position = np.stack(np.broadcast_arrays(*(np.log2(knob) for knob in knobs)))
        rng = self._rng("smooth")
        slopes, phases = rng.normal(0.0, 0.5, (NUM_WAVES, 3)), rng.uniform(0.0, 2 * np.pi, NUM_WAVES)
        waves = np.cos(np.tensordot(slopes, position, 1) + phases.reshape(-1, *[1] * (position.ndim - 1)))
        return self.smooth * np.sqrt(2.0 / NUM_WAVES) * waves.sum(axis=0)

    def _by_value(self, name: str, column: Integers | Booleans, spread: float | None = None) -> Floats:
        """The effect of each value of a column."""
        values, index = np.unique(column, return_inverse=True)
        drawn = [self._draw(f"{name} {int(value)}", self.kinds if spread is None else spread) for value in values]
        return np.array(drawn)[index].reshape(np.shape(column))

    def _factor(self, name: str, spread: float) -> float:
        return exp(self._draw(name, spread))

    def _draw(self, name: str, spread: float) -> float:
        return float(self._rng(name).normal(0.0, spread))

    def _share(self, name: str) -> float:
        return float(self._rng(name).uniform())

    def _rng(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])


@dataclass(frozen=True, slots=True)
class SurprisingMachine(InventedMachine):
    """A machine with one effect more, of a kind for which `search=bayes` has no prior; the seed says which."""

    def truth(self, setting: Setting, plans: Plans) -> Truth:
        usual = InventedMachine.truth(self, setting, plans)  # no `super()`: slots make this another class than it was
        factor = np.exp(SURPRISES[self.seed % len(SURPRISES)](self, plans))
        terms = StepColumns(**{name: seconds * factor for name, seconds in usual.terms.by_term().items()})
        return replace(usual, terms=terms, step_seconds=terms.total_seconds)

    def lottery(self, plans: Plans) -> Floats:
        """Every split of layers and heads is faster or slower than others by 7 % or so, whatever it is like."""
        sizes = (plans.tensor_parallel_size, plans.pipeline_parallel_size, plans.micro_batch_size)
        shape = reduce(lambda number, size: number * 10_007 + size, sizes)
        return self._by_value("lottery", shape, 0.07)

    def collapse(self, plans: Plans) -> Floats:
        """From 4 or 8 replicas on, all steps are up to 25 % slower."""
        first = 4 if self._share("replicas") < 0.5 else 8
        return np.where(plans.data_parallel_size >= first, log1p(self._share("collapse") / 4), 0.0)

    def cliff(self, plans: Plans) -> Floats:
        """From a micro-batch of 2 or 4 on, all steps are 10 to 30 % slower."""
        first = 2 if self._share("micro-batch") < 0.5 else 4
        return np.where(plans.micro_batch_size >= first, log1p(0.1 + self._share("cliff") / 5), 0.0)


SURPRISES = (SurprisingMachine.lottery, SurprisingMachine.collapse, SurprisingMachine.cliff)
