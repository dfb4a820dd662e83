"""Plans as the surrogate sees them: what the cost model says of each, and how that follows from its constants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from conf.errors import ConfigError
from conf.types.cluster_spec import ClusterSpec
from conf.types.sweep_spec import Objective, is_of_time
from costs.counts.flops import model_flops
from costs.price import price, price_step
from costs.setting import Floats, InColumns, Plans, Setting, plain_columns
from costs.terms import STEP_TERMS, StepColumns
from costs.work import work_of

Alteration = Callable[[ClusterSpec, float], ClusterSpec]
NUDGE = 1.02  # factor by which a constant is moved to see what follows from it
MOST_LINKS = 3  # tiers of links whose constants are told apart, from the widest inwards


@dataclass(frozen=True, slots=True)
class Priced(InColumns):
    """Plans with what is predicted of them.

    Attributes:
        terms: predicted seconds of a step by term, in the order of STEP_TERMS, (n, 7).
        slopes: change of the logarithm of each term with that of each of CONSTANTS, (n, 7, constants).
        peak_bytes: predicted on the worst stage, (n,).
        memory_bytes: of the device, (n,).
        flops: of the model, that one step needs on all devices together, (n,).
    """

    plans: Plans
    terms: Floats
    slopes: Floats
    peak_bytes: Floats
    memory_bytes: Floats
    flops: Floats

    def __len__(self) -> int:
        return len(self.plans)

    @property
    def step_seconds(self) -> Floats:
        return self.terms.sum(axis=1)


def join_plans(parts: list[Priced]) -> Priced:
    return Priced.join(parts or [_no_plans()])


def _no_plans() -> Priced:
    none, num_terms = np.zeros(0), len(STEP_TERMS)
    counts = {name: np.zeros(0, dtype=np.int64) for name in Plans.__slots__}
    return Priced(
        Plans(**{**counts, **plain_columns((0,))}),
        terms=np.zeros((0, num_terms)),
        slopes=np.zeros((0, num_terms, len(CONSTANTS))),
        peak_bytes=none,
        memory_bytes=none,
        flops=none,
    )


def price_with_slopes(setting: Setting, plans: Plans, global_batch_size: int) -> Priced:
    """Price these plans, and once more with each constant of the cluster moved a little."""
    prices, cluster = price(setting, plans), setting.cluster
    terms = _terms(prices.step, len(plans))
    slopes = np.zeros((*terms.shape, len(CONSTANTS)))
    for number, alter in enumerate(CONSTANTS.values()):
        altered = replace(setting, cluster=alter(cluster, NUDGE))
        work = work_of(altered, plans)
        slopes[:, :, number] = _slope(terms, _terms(price_step(altered, plans, work), len(plans)))
    ones = np.ones(len(plans))
    return Priced(
        plans=plans,
        terms=terms,
        slopes=slopes,
        peak_bytes=prices.peak_memory_bytes * ones,
        memory_bytes=cluster.device.memory_bytes * ones,
        flops=model_flops(setting.model, global_batch_size) * ones,
    )


def _terms(columns: StepColumns, number: int) -> Floats:
    by_term = columns.by_term()
    return np.stack([np.broadcast_to(by_term[name], (number,)) for name in STEP_TERMS], axis=1).astype(np.float64)


def _slope(terms: Floats, altered: Floats) -> Floats:
    """Return the derivative of log terms by the log of a nudged constant; 0 where a term is zero."""
    positive = (terms > 0) & (altered > 0)
    # A ratio of 1 stands for a missing term, so that its logarithm and the slope are 0.
    ratio = np.divide(altered, terms, out=np.ones_like(terms), where=positive)
    # The constant was moved by the factor NUDGE, so that the quotient of logarithms is the elasticity.
    return np.log(ratio) / np.log(NUDGE)


def _rate(name: str) -> Alteration:
    """The constant is a cost: rates are divided by the factor, seconds are multiplied with it."""

    def alter(cluster: ClusterSpec, factor: float) -> ClusterSpec:
        value = getattr(cluster.efficiency, name)
        altered = value * factor if name == "kernel_seconds" else value / factor
        return cluster.model_copy(update={"efficiency": cluster.efficiency.model_copy(update={name: altered})})

    return alter


def _link(place: int, name: str) -> Alteration:
    """The link so many tiers inside the widest; where there is none, nothing changes."""

    def alter(cluster: ClusterSpec, factor: float) -> ClusterSpec:
        number = len(cluster.links) - 1 - place
        if number < 0:
            return cluster
        link = cluster.links[number]
        value = getattr(link, name) * factor if name == "latency_seconds" else getattr(link, name) / factor
        links = list(cluster.links)
        links[number] = link.model_copy(update={name: value})
        return cluster.model_copy(update={"links": tuple(links)})

    return alter


def _constants() -> Iterator[tuple[str, Alteration]]:
    for name in ("matmul", "attention", "memory", "kernel_seconds"):
        yield name, _rate(name)
    for place in range(MOST_LINKS):
        for name in ("bandwidth_bytes_per_second", "latency_seconds"):
            yield f"link {place} {name}", _link(place, name)


CONSTANTS: Mapping[str, Alteration] = dict(_constants())
"""Constants of a cluster file, each as the change that makes what depends on it dearer by a factor."""


PER_TOKEN: tuple[Objective, ...] = ("throughput", "dollars", "energy")
"""On one cluster these rank plans alike: each token costs as much as the devices that it keeps busy."""


def seconds_to_cost(objective: Objective, priced: Priced) -> Floats:
    """Return what to add to the logarithm of a step's seconds to have the logarithm of the cost, (n,)."""
    if objective not in PER_TOKEN:
        return np.zeros(len(priced))
    # Devices times seconds over FLOPs: the device-seconds of each FLOP, as a sum of logarithms.
    return np.log(priced.plans.world_size) - np.log(priced.flops)


def require_layouts_decide(objectives: tuple[Objective, ...]) -> Objective:
    """The one objective of a search of layouts.

    Raises ConfigError where it is several, or one that does not follow from the layout.
    """
    if len(objectives) > 1:
        problem, remedy = "names several objectives, and this search seeks one", "Name one, or use search=pareto."
        raise ConfigError("search.objective", list(objectives), problem, remedy)
    if not is_of_time(objectives[0]):
        problem, remedy = "does not follow from a layout, which is what search=bayes chooses", "Use search=random."
        raise ConfigError("search.objective", objectives[0], problem, remedy)
    return objectives[0]
