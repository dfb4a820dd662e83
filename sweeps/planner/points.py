"""The points that a sweep with `search=planner` measures: the best plans that the trainer runs, and probes.

A probe is the best plan with one knob changed. Where its measured distance from the best plan is not the predicted one,
the assumption that it names is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, product

from conf.errors import InfeasiblePlan
from conf.experiment import Parts
from conf.schema import BatchPlan, ParallelPlan, SearchPlan, Value
from sweeps.planner.explain import neighbours
from sweeps.planner.search import search_space
from sweeps.planner.space import MOST_ZERO_STAGE, Space
from sweeps.planner.strategy import Strategy, strategies_of
from train_core.costs import Implementation, estimate
from train_core.costs.setting import SCHEDULES
from train_core.supported import require_supported

PROBES: Mapping[str, str] = {
    "tensor_parallel_size": "the cost of tensor-parallel collectives, and of narrower matrix products",
    "micro_batch_size": "the efficiency of matrix products by their size, against the bubble",
    "recompute": "the cost of recomputation",
    "pipeline_parallel_size": "the bubble and the cost of transfers",
    "sequence_parallel": "the cost of memory-bound kernels, and of gathers against reductions",
    "zero_stage": "the cost of reducing gradients and of the update",
}
"""What each knob's probe tests, in the order in which they are taken."""
KIND_KEYS = {"parallel.schedule", "parallel.zero_stage"}  # refused for one plan of a kind, refused for all
SEARCHED_FOR_EACH = (4, 100)  # plans per wanted one: few suffice where the trainer runs the kind at all


@dataclass(frozen=True, slots=True)
class PlannedPoint:
    """A plan to measure, and why."""

    strategy: Strategy
    because: str

    def values(self) -> dict[str, Value]:
        """As a sweep's point: dotted keys and plain values; layers are spread evenly."""
        assert self.strategy.layers_per_stage is None
        groups = {"parallel": ParallelPlan.model_fields, "batch": BatchPlan.model_fields}
        return {f"{group}.{name}": getattr(self.strategy, name) for group, names in groups.items() for name in names}


def planned_points(space: Space, parts: Parts, plan: SearchPlan) -> list[PlannedPoint]:
    """The `top_k` best plans that the trainer runs, then up to `num_probes` probes of the best.

    Raises:
        InfeasiblePlan: no plan that the trainer runs fits.
    """
    best = list(_best(space, parts, plan.top_k))
    if not best:
        raise InfeasiblePlan(
            "search.kind",
            plan.kind,
            f"finds no plan of {parts.model.name} on {space.world_size} devices that fits and that this trainer runs",
            "Use more devices or a smaller model, or pin fewer knobs.",
        )
    points = [
        PlannedPoint(strategy, f"predicted {_place(rank)} of all plans that this trainer runs")
        for rank, strategy in enumerate(best)
    ]
    return points + list(_probes(space, best, parts))[: plan.num_probes]


def _place(rank: int) -> str:
    return "the fastest" if rank == 0 else f"number {rank + 1}"


def _best(space: Space, parts: Parts, top_k: int) -> Iterator[Strategy]:
    """The fastest strategies that the trainer runs, fastest first.

    What it runs is asked schedule by schedule and ZeRO stage by ZeRO stage, since the fastest of all plans may all be
    of a kind that it does not run.
    """
    found: list[tuple[float, Strategy]] = []
    stages = space.left("zero_stage", list(range(MOST_ZERO_STAGE + 1)))
    for schedule, zero_stage in product(space.left("schedule", SCHEDULES), stages):
        pinned = {**space.pinned, "schedule": schedule, "zero_stage": zero_stage, "layers_per_stage": None}
        found += _supported(replace(space, pinned=pinned), parts, top_k)
    ordered = sorted(found, key=lambda one: one[0])[:top_k]
    return (strategy for _, strategy in ordered)


def _supported(space: Space, parts: Parts, top_k: int) -> list[tuple[float, Strategy]]:
    """The fastest of one kind. More are searched for than are needed, since the trainer's layers must divide."""
    kept: list[tuple[float, Strategy]] = []
    for factor in SEARCHED_FOR_EACH:
        found = search_space(space, factor * top_k)
        if found.best is None:
            return []
        across = space.tensor_parallel_across_nodes
        strategies = strategies_of(found.best, parts.model.num_layers, tensor_parallel_across_nodes=across)
        refused = [_refused_key(strategy, parts) for strategy in strategies]
        ranked = zip(found.step_seconds.tolist(), strategies, refused, strict=True)
        kept = [(seconds, strategy) for seconds, strategy, key in ranked if key is None]
        if len(kept) >= top_k or len(strategies) < factor * top_k or KIND_KEYS & set(refused):
            break
    return kept[:top_k]


def _refused_key(strategy: Strategy, parts: Parts) -> str | None:
    """The key for which it cannot exist or the trainer does not run it; None where it runs."""
    try:
        require_supported(strategy.experiment(parts))
    except InfeasiblePlan as error:
        return error.key
    return None


def _probes(space: Space, best: list[Strategy], parts: Parts) -> Iterator[PlannedPoint]:
    """One for each assumption: the best plan with one knob changed, else the best of those with its other value."""
    taken = set(best)
    kind = {"schedule": best[0].schedule, "zero_stage": best[0].zero_stage}
    for knob, assumption in PROBES.items():
        changed = [strategy for name, strategy in neighbours(best[0], parts) if name == knob]
        values = [getattr(strategy, knob) for strategy in changed]
        pinned = [
            replace(space, pinned={**space.pinned, **kind, knob: value}) for value in values if knob not in space.pinned
        ]
        runnable = (one for one in changed if _fits(one, parts, space.setting.implementation))
        others = (one for narrowed in pinned for one in _best(narrowed, parts, 1))
        probe = next((one for one in chain(runnable, others) if one not in taken), None)
        if probe is not None:
            taken.add(probe)
            value, winner = getattr(probe, knob), getattr(best[0], knob)
            yield PlannedPoint(probe, f"{knob} {_plain(value)} instead of {_plain(winner)}: tests {assumption}")


def _fits(strategy: Strategy, parts: Parts, implementation: Implementation) -> bool:
    runs = _refused_key(strategy, parts) is None
    return runs and estimate(strategy.experiment(parts), implementation).fits


def _plain(value: object) -> str:
    return str(value).lower()
