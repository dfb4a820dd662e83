"""The plans that a search found, also of one job over several types of devices, as rows and documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from conf.plan.knobs import KNOBS, Knob, KnobValue, labelled_values, layers_in_short
from conf.units import JOULES_PER_KWH, MILLION, SECONDS_PER_HOUR, count_of
from costs import model_flops
from results.render.table import Table, breakable, text
from results.render.units import gib, seconds, significant, tflops
from sweeps.planner.choosing.choice import Candidate, Choice, Judged, judge, rivals_of
from sweeps.planner.choosing.objectives import (
    Training,
    dollars_per_second,
    tokens_per_step,
    total_dollars,
    total_hours,
    watts,
)
from sweeps.planner.mixed import MixedBlock, MixedChoice, MixedStrategy
from sweeps.planner.plans.space import Space
from sweeps.planner.plans.strategy import Strategy
from sweeps.planner.request import Request

IN_OTHER_PLACES = ("global_batch_size", "layers_per_stage")

BLOCK_FIELDS = ("cluster", "device", "num_devices", "layers_per_stage")
Cell: TypeAlias = str | int | float | bool | None
PlanRow: TypeAlias = dict[str, Cell]


def search_row(candidate: Candidate, training: Training) -> PlanRow:
    """One plan: its knobs under the names of the configuration, then what is predicted of it."""
    setting, strategy = candidate.space.setting, candidate.strategy
    place: PlanRow = {
        "model": setting.model.name,
        "cluster": setting.cluster.name,
        "device": setting.cluster.device.name,
    }
    knobs = knob_cells(strategy, [knob for knob in KNOBS if knob.shown != "nowhere"])
    return {**place, **knobs, **_predicted_cells(candidate), **training_costs(candidate, training)}


def knob_cells(strategy: Strategy, knobs: Sequence[Knob]) -> PlanRow:
    """These knobs of a plan by name. Listed layers are shown in short; where they are spread evenly there are none."""
    values = {knob.name: strategy.knob_value(knob.name) for knob in knobs}
    return {name: layers_in_short(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _predicted_cells(candidate: Candidate) -> PlanRow:
    """Return the predictions, under names with `predicted_`, so that nobody takes a number for a measurement."""
    space, seconds = candidate.space, candidate.step_seconds
    terms: PlanRow = {f"predicted_{name}": value for name, value in candidate.step_terms.by_term().items()}
    return {
        "predicted_step_seconds": seconds,
        **terms,
        "predicted_tokens_per_second": tokens_per_step(space) / seconds,
        "predicted_model_flops_per_second_per_device": candidate.model_flops_per_second_per_device,
        "predicted_model_flops_utilization": candidate.model_flops_utilization,
        "predicted_peak_memory_bytes": candidate.peak_memory_bytes,
        "predicted_worst_stage": candidate.worst_stage,
        "memory_capacity_bytes": space.setting.cluster.device.memory_bytes,
    }


def training_costs(candidate: Candidate, training: Training) -> dict[str, float | None]:
    """Money and energy for a token, and for the whole training where its length is known."""
    space, seconds = candidate.space, candidate.step_seconds
    rate, tokens = dollars_per_second(space), tokens_per_step(space)
    hours = total_hours(training, seconds)
    return {
        "predicted_dollars_per_million_tokens": None if rate is None else rate * seconds / tokens * MILLION,
        "predicted_joules_per_token": watts(space) * seconds / tokens,
        "predicted_grams_co2_per_million_tokens": space.setting.cluster.site.grams_co2(
            watts(space) * seconds / tokens * MILLION / JOULES_PER_KWH
        ),
        "predicted_device_hours_per_million_tokens": space.world_size * seconds / SECONDS_PER_HOUR / tokens * MILLION,
        "predicted_hours": hours,
        "predicted_device_hours": None if hours is None else hours * space.world_size,
        "predicted_dollars": total_dollars(training, space, seconds),
    }


def judged_row(judged: Judged, training: Training) -> PlanRow:
    """One plan with the interval in which four measurements of five are expected, and where it is untested."""
    return {
        **search_row(judged.candidate, training),
        "predicted_low_step_seconds": judged.interval.low_seconds,
        "predicted_high_step_seconds": judged.interval.high_seconds,
        "predicted_memory_share": judged.predicted.memory_share,
        "predicted_fit_probability": judged.candidate.fit_likelihood,
        "outside": "; ".join(judged.interval.outside),
        "runs_take": judged.interval.in_words,
    }


def families_document(
    choice: Choice, shown: Sequence[Judged], training: Training, request: Request
) -> dict[str, object]:
    """The best plan of each family for JSON, and how many of them cannot be told from the first."""
    rivals = rivals_of(choice, shown[0])
    deciding = [place for place in rivals if place < len(shown)] if len(rivals) > 1 else []
    rows = [_plan_document(each, training, request) for each in shown]
    return {
        "families": rows,
        "num_families": choice.num_families,
        "not_told_apart": len(rivals),
        "trials_that_decide": [rows[place]["layout"] for place in deciding],
    }


def _plan_document(judged: Judged, training: Training, request: Request) -> dict[str, object]:
    """One plan for JSON, with the overrides that compose it."""
    found = judged.candidate
    own = {"layout": layout(found), "departures": found.departures, "overrides": overrides(found, request)}
    return {**judged_row(judged, training), **own}


def layout(candidate: Candidate) -> str:
    """The layout in short, as other tables and trial folders name it, without the batch, which all plans share."""
    return candidate.strategy.label(candidate.space.setting.model.num_layers, leave_out=["global_batch_size"])


def layout_knobs(candidate: Candidate) -> list[tuple[Knob, KnobValue]]:
    strategy, num_layers = candidate.strategy, candidate.space.setting.model.num_layers
    values = labelled_values(strategy.parallel, strategy.batch, strategy.layers_per_stage(num_layers))
    return [(knob, value) for knob, value in values if knob.name != "global_batch_size"]


def overrides(candidate: Candidate, request: Request) -> list[str]:
    """The overrides that compose the plan: its knobs, and cluster and vocabulary if the request has others."""
    name = candidate.space.setting.cluster.name
    cluster = [] if name == request.settings.cluster.name else [f"cluster={name}"]
    return [*cluster, *request.padding_overrides, *candidate.strategy.overrides()]


def search_document(choice: Choice, training: Training, request: Request) -> dict[str, object]:
    """The whole answer for JSON; `seconds` is the time of the whole search."""
    others = [choice.fastest, *([choice.crowded] if choice.crowded else [])]
    best, (fastest, *crowded) = (judge(each, request.settings) for each in (choice.best, others))
    return {
        "strategies": choice.num_strategies,
        "feasible": choice.num_feasible,
        "fitting": choice.num_fitting,
        "left_out_families": choice.num_left_out,
        "seconds": choice.search_seconds,
        "precision": request.settings.precision.dtype,
        "padded": request.padding,
        "best": [_plan_document(each, training, request) for each in best],
        "fastest": _plan_document(fastest, training, request),
        "without_headroom": _plan_document(crowded[0], training, request) if crowded else None,
    }


def mixed_row(plan: MixedStrategy, spaces: Sequence[Space], training: Training) -> PlanRow:
    """One assignment: its knobs, then what is predicted of it."""
    tokens, rate = tokens_per_step(spaces[0]), _dollars_per_second(spaces)
    hours = total_hours(training, plan.step_seconds)
    terms: PlanRow = {f"predicted_{name}": value for name, value in plan.step_terms.by_term().items()}
    return {
        "model": spaces[0].setting.model.name,
        "pipeline": " > ".join(_mixed_block_text(block) for block in plan.blocks),
        **knob_cells(plan.strategy, [knob for knob in KNOBS if knob.shown == "in every row"]),
        "predicted_step_seconds": plan.step_seconds,
        **terms,
        "predicted_tokens_per_second": tokens / plan.step_seconds,
        "predicted_model_flops_per_second_per_device": _flops_per_device(plan, spaces),
        "predicted_worst_stage": plan.worst_stage,
        "predicted_worst_stage_bytes": plan.worst_stage_bytes,
        "predicted_fit_probability": plan.fit_likelihood,
        "predicted_dollars_per_million_tokens": None if rate is None else rate * plan.step_seconds / tokens * MILLION,
        "predicted_joules_per_token": sum(watts(space) for space in spaces) * plan.step_seconds / tokens,
        "predicted_hours": hours,
        "predicted_dollars": None if hours is None or rate is None else hours * SECONDS_PER_HOUR * rate,
    }


def _flops_per_device(plan: MixedStrategy, spaces: Sequence[Space]) -> float:
    flops = model_flops(spaces[0].setting.model, plan.strategy.batch.global_batch_size)
    return flops / plan.step_seconds / plan.num_devices


def _dollars_per_second(spaces: Sequence[Space]) -> float | None:
    """The price of all devices together; None if one type has none."""
    # A sum of the known prices alone would make the plan look cheap.
    rates = [dollars_per_second(space) for space in spaces]
    prices = [rate for rate in rates if rate is not None]
    return sum(prices) if len(prices) == len(rates) else None


def _mixed_block_text(block: MixedBlock) -> str:
    """Return the words for a block, such as `selene 4 stages, 6x4 layers`."""
    count, layers = len(block.layers_per_stage), layers_in_short(block.layers_per_stage)
    return f"{block.cluster} {count_of(count, 'stage')}, {layers} layers"


def mixed_document(
    choice: MixedChoice, spaces: Sequence[Space], training: Training, padding: Sequence[str]
) -> dict[str, object]:
    """The answer for JSON. `seconds` is the time of the whole search; `priced` plans are those no bound ruled out."""
    plans = [*choice.best, *([choice.crowded] if choice.crowded else [])]
    documents = [
        {
            **mixed_row(plan, spaces, training),
            "blocks": [{name: getattr(block, name) for name in BLOCK_FIELDS} for block in plan.blocks],
            "overrides": [*padding, *plan.overrides()],
        }
        for plan in plans
    ]
    best, crowded = documents[: len(choice.best)], documents[len(choice.best) :]
    return {
        "strategies": choice.num_strategies,
        "priced": choice.num_priced,
        "seconds": choice.search_seconds,
        "best": best,
        "without_headroom": crowded[0] if crowded else None,
    }


def mixed_table(best: Sequence[MixedStrategy], spaces: Sequence[Space], training: Training) -> Table:
    """The best assignments, fastest first. TFLOPS are model FLOPs per device, of all types together.

    GiB are of the stage that leaves the least of its device's memory.
    """
    columns = ("#", "layout", "pipeline", "step s", "TFLOPS", "GiB", "$/Mtoken")
    rows = []
    for position, plan in enumerate(best, start=1):
        per_million = mixed_row(plan, spaces, training)["predicted_dollars_per_million_tokens"]
        row = (
            text(position),
            breakable(plan.strategy.label(spaces[0].setting.model.num_layers, IN_OTHER_PLACES)),
            text("\n".join(_mixed_block_text(block) for block in plan.blocks)),
            text(seconds(plan.step_seconds)),
            text(tflops(_flops_per_device(plan, spaces))),
            text(gib(plan.worst_stage_bytes) + ("" if plan.is_likely else "!")),
            text(significant(per_million if isinstance(per_million, float) else None)),
        )
        rows.append(row)
    title = "One job over all of them. Predicted, not measured: ranked by time of a step"
    return Table(columns, tuple(rows), frozenset(columns) - {"layout", "pipeline"}, title=title)
