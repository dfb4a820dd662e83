"""The points that a sweep with `search=planner` measures: the best plans that the trainer runs, and probes.

A probe is the best plan with one knob changed. Where its measured distance from the best plan is not the predicted one,
the assumption that it names is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, product

from conf.errors import InfeasiblePlan
from conf.overrides import value_text
from conf.plan.experiment import ExperimentParts
from conf.plan.trainer_limits import limits_of_program
from conf.types.schema import Value
from conf.types.sweep_spec import SearchPlan
from conf.types.trainer_spec import TrainerSpec
from conf.units import count_of
from costs import Implementation, estimate
from sweeps.memory_odds import NONE_LIKELY
from sweeps.planner.choosing.choice import Candidate, gain_in_words, price_plans
from sweeps.planner.choosing.explain import neighbours
from sweeps.planner.plans.space import MOST_ZERO_STAGE, Space, searched_schedules
from sweeps.planner.plans.strategy import Strategy
from sweeps.planner.plans.whole_space import search_space

PROBES: Mapping[str, str] = {
    "tensor_parallel_size": "the cost of tensor-parallel collectives, and of narrower matrix products",
    "micro_batch_size": "the efficiency of matrix products by their size, against the bubble",
    "recompute": "the cost of recomputation",
    "pipeline_parallel_size": "the bubble and the cost of transfers",
    "sequence_parallel": "the cost of memory-bound kernels, and of gathers against reductions",
    "zero_stage": "the cost of reducing gradients and of the update",
}
"""What each knob's probe tests, in the order in which they are taken."""
KIND_KEYS = {"training.compile_layers", "watch.compare_replicas_every"}
"""Settings that go with a kind of plan or not: if one plan is refused because of them, all of its kind are."""
PLAN_GROUPS = {"parallel", "batch", "trainer"}
"""The groups whose values a plan chooses, and that of a program that cannot carry out what is chosen together."""
SEARCHED_FOR_EACH = (4, 100)  # plans searched for each one wanted; the first suffices where the kind exists at all


@dataclass(frozen=True, slots=True)
class PlannedPoint:
    """A plan to measure, and why."""

    strategy: Strategy
    because: str

    def values(self) -> dict[str, Value]:
        """The plan as a point of a sweep, in which a list of layers is a text, as an override writes it."""
        values = self.strategy.settings().items()
        return {key: value_text(list(value)) if isinstance(value, tuple) else value for key, value in values}


def planned_points(space: Space, parts: ExperimentParts, plan: SearchPlan) -> list[PlannedPoint]:
    """The `top_k` best plans that the trainer runs, then up to `num_probes` probes of the best.

    The parallel plan of the parts has the pinned knobs and is plain elsewhere. Where no plan is likely to fit, those
    that fit on paper are taken.

    Raises:
        InfeasiblePlan: no plan fits, or what else is configured goes with none of those that fit.
    """
    ordered, unlikely = _best_likely(space, parts, plan)
    best = [found.strategy for found in ordered[: plan.top_k]]
    first, layers = ordered[0], parts.model.num_layers
    fastest = min(ordered, key=lambda found: found.step_seconds)
    gain = gain_in_words(fastest, first)
    notes = [f"; {fastest.strategy.label(layers)} is {gain}"] * (gain != "")
    better = [each for each in unlikely if each.counted_seconds < first.counted_seconds]
    gains = [(out, gain) for out in better[:1] if (gain := gain_in_words(out, first))]
    notes += [f"; left out: {out.strategy.label(layers)}, {gain}" for out, gain in gains]
    notes += [f"; {NONE_LIKELY}, and it is {first.odds_in_words}"] * (not first.is_likely)
    places = ["the best", *(f"number {rank}" for rank in range(2, len(best) + 1))]
    points = [
        PlannedPoint(strategy, f"predicted {place} of all plans that this trainer runs{note}")
        for strategy, place, note in zip(best, places, ["".join(notes), *[""] * (len(best) - 1)], strict=True)
    ]
    return points + list(islice(_probes(space, best, parts), plan.num_probes))


def best_runnable_plan(space: Space, parts: ExperimentParts, plan: SearchPlan) -> Strategy:
    """Return the best plan of the space that the trainer runs.

    Raises:
        InfeasiblePlan: as for `planned_points`.
    """
    return _best_likely(space, parts, plan.model_copy(update={"top_k": 1}))[0][0].strategy


def _best_likely(
    space: Space, parts: ExperimentParts, plan: SearchPlan
) -> tuple[Sequence[Candidate], Sequence[Candidate]]:
    """As `_best`: those that are likely to fit, and those left out; where none is likely, all that fit on paper.

    Raises:
        InfeasiblePlan: as for `planned_points`.
    """
    ordered = _best(space, parts, plan.top_k)
    kept = [each for each in ordered if each.is_likely or not space.asks_likely]
    if kept:
        return kept, [each for each in ordered if each not in kept]
    if space.asks_likely:
        return _best_likely(space.on_paper(), parts, plan)
    raise _empty_error(space, parts, plan)


def _empty_error(space: Space, parts: ExperimentParts, plan: SearchPlan) -> InfeasiblePlan:
    """The error that says why the plainest kind of plan that fits is refused, or that nothing fits."""
    shown = f"of {parts.model.name} on {count_of(space.world_size, 'device')} that fits"
    remedy = "Use more devices or a smaller model, or pin fewer knobs."
    for found in chain.from_iterable(_found(kind, 1) for kind in kinds_of(space)):
        reason = refusal_of(found.strategy, parts)
        if reason is not None:
            if reason.key not in KIND_KEYS and reason.key.partition(".")[0] not in PLAN_GROUPS:
                return reason  # of what all plans have in common, so that no other plan could help
            problem = f"{reason.problem}, and there is no other plan {shown}"
            return InfeasiblePlan(reason.key, reason.value, problem, f"{reason.remedy} {remedy}")
    return InfeasiblePlan("search.kind", plan.kind, f"finds no plan {shown} and that this trainer runs", remedy)


def _best(space: Space, parts: ExperimentParts, top_k: int) -> list[Candidate]:
    """The `top_k` best plans that the trainer runs, best first, and further good ones: of each kind the fastest."""
    kinds = (kind for kind in kinds_of(space, is_even=False) if not _refuses_kind(parts.trainer, kind))
    of_all_kinds = [found for kind in kinds for found in _runnable(kind, parts, top_k)]
    ordered = sorted(of_all_kinds, key=lambda found: found.counted_seconds)
    # Each ZeRO stage was searched on its own, so that the plans of a single replica, which has nothing to share out
    # whatever the stage, came once for each of them.
    if "zero_stage" not in space.pinned:
        plain = ((each, each.strategy.with_values(zero_stage=0)) for each in ordered)
        ordered = [
            each
            if each.strategy.parallel.num_replicas > 1 or refusal_of(alone, parts)
            else replace(each, strategy=alone)
            for each, alone in plain
        ]
    return list({found.strategy: found for found in ordered}.values())


def _refuses_kind(trainer: TrainerSpec, kind: Space) -> bool:
    """True if the program has no such schedule or ZeRO stage at all, so that no plan of the kind need be searched."""
    taken_over = limits_of_program(trainer.limits_of) if trainer.limits_of else ()
    in_all_plans = (limit for limit in taken_over if limit.beside is None)
    limits = ((limit, limit.of.removeprefix("parallel.")) for limit in (*in_all_plans, *trainer.refuses))
    return any(limit.meets(kind.pinned[name]) for limit, name in limits if name in ("schedule", "zero_stage"))


def kinds_of(space: Space, *, is_even: bool = True) -> Iterator[Space]:
    """The space schedule by schedule and ZeRO stage by ZeRO stage, plainest first; of even spreads, or all.

    Each kind is searched on its own, since the fastest plans of all may be of a kind that the trainer refuses together
    with what else is configured, and would leave no room for others.
    """
    layers = {"layers_per_stage": None} if is_even else {}
    stages = space.allowed_values("zero_stage", list(range(MOST_ZERO_STAGE + 1)))
    for schedule, zero_stage in product(searched_schedules(space), stages):
        kind = {"schedule": schedule, "zero_stage": zero_stage}
        yield replace(space, pinned={**layers, **space.pinned, **kind})


def _runnable(space: Space, parts: ExperimentParts, top_k: int) -> list[Candidate]:
    """The best of one kind that can run, then the fastest. More are searched, since some may not go with the rest."""
    kept: list[Candidate] = []
    for factor in SEARCHED_FOR_EACH:
        found = _found(space, factor * top_k)
        refused = [refused_key(each.strategy, parts) for each in found]
        kept = [each for each, key in zip(found, refused, strict=True) if key is None]
        # Search more only if that can help: not if these were all plans, nor if the whole kind is refused.
        if len(kept) > top_k or len(found) <= factor * top_k or KIND_KEYS & set(refused):
            break
    return kept


def _found(space: Space, number: int) -> list[Candidate]:
    """The best plans that fit, the fastest, and the best of those that are not likely to.

    They may not go with what else is configured.
    """
    found = search_space(space, number)
    ranked = (found.best, found.fastest, found.crowded if space.asks_likely else None)
    return [each for plans in ranked if plans for each in price_plans(space, plans)]


def refused_key(strategy: Strategy, parts: ExperimentParts) -> str | None:
    """The configuration key because of which the strategy cannot exist; None if it can."""
    reason = refusal_of(strategy, parts)
    return None if reason is None else reason.key


def refusal_of(strategy: Strategy, parts: ExperimentParts) -> InfeasiblePlan | None:
    """Return why the strategy cannot exist, or not with what else is configured; None if it can."""
    try:
        strategy.experiment(parts)
    except InfeasiblePlan as reason:
        return reason
    return None


def _probes(space: Space, best: list[Strategy], parts: ExperimentParts) -> Iterator[PlannedPoint]:
    """One probe for each assumption: the best plan with one knob changed, else the best of those with its other value.

    A pinned knob has no probe. A pinned list of layers pins the number of stages with it.
    """
    taken = set(best)  # what is measured anyway needs no probe
    pinned = {*space.pinned, *(["pipeline_parallel_size"] if space.pinned.get("layers_per_stage") else [])}
    kind = {name: best[0].knob_value(name) for name in ("schedule", "zero_stage")}
    for knob, assumption in PROBES.items():
        if knob in pinned:
            continue
        changed = [
            strategy for name, strategy in neighbours(best[0], parts, space.setting.implementation) if name == knob
        ]
        values = [strategy.knob_value(knob) for strategy in changed]
        # One stage has neither the schedule of several nor, perhaps, their ZeRO stage.
        kept = {} if knob == "pipeline_parallel_size" else kind
        narrower = (replace(space, pinned={**space.pinned, **kept, knob: value}) for value in values)
        runnable = (neighbour for neighbour in changed if _fits(neighbour, parts, space.setting.implementation))
        others = (found.strategy for narrowed in narrower for found in _best(narrowed, parts, 1)[:1])
        probe = next((strategy for strategy in chain(runnable, others) if strategy not in taken), None)
        if probe is not None:
            taken.add(probe)
            value, winner = probe.knob_value(knob), best[0].knob_value(knob)
            changed_to = f"{knob} {value} instead of {winner}".lower()
            yield PlannedPoint(probe, f"{changed_to}: tests {assumption}")


def _fits(strategy: Strategy, parts: ExperimentParts, implementation: Implementation) -> bool:
    runs = refused_key(strategy, parts) is None
    return runs and estimate(strategy.experiment(parts), implementation).fits
