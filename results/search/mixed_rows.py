"""One job over several types of devices: rows for JSON and CSV, and a table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from conf.plan.knobs import KNOBS, layers_in_short
from conf.units import GIBIBYTE, MILLION, SECONDS_PER_HOUR, TERA, count_of
from results.search.rows import Row, knob_cells
from results.table import Table, breakable, text
from results.units import seconds, significant, tflops
from sweeps.planner import Training
from sweeps.planner.choosing.objectives import dollars_per_second, tokens_per_step, total_hours, watts
from sweeps.planner.mixed import MixedBlock, MixedChoice, MixedStrategy
from sweeps.planner.plans.space import Space
from train_core.costs import model_flops


def mixed_row(plan: MixedStrategy, spaces: Sequence[Space], training: Training) -> Row:
    """One assignment: its knobs, then what is predicted of it."""
    tokens, rate = tokens_per_step(spaces[0]), _dollars_per_second(spaces)
    hours = total_hours(training, plan.step_seconds)
    terms: Row = {f"predicted_{name}": value for name, value in plan.step_terms.by_term().items()}
    return {
        "model": spaces[0].setting.model.name,
        "pipeline": " > ".join(_block_text(block) for block in plan.blocks),
        **knob_cells(plan.strategy, [knob for knob in KNOBS if knob.shown == "in every row"]),
        "predicted_step_seconds": plan.step_seconds,
        **terms,
        "predicted_tokens_per_second": tokens / plan.step_seconds,
        "predicted_model_tflops_per_device": _flops_per_device(plan, spaces) / TERA,
        "predicted_worst_stage": plan.worst_stage,
        "predicted_worst_stage_gib": plan.worst_stage_bytes / GIBIBYTE,
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


def _block_text(block: MixedBlock) -> str:
    """Return the words for a block, such as `selene 4 stages, 6x4 layers`."""
    count, layers = len(block.layers_per_stage), layers_in_short(block.layers_per_stage)
    return f"{block.cluster} {count_of(count, 'stage')}, {layers} layers"


def mixed_document(
    choice: MixedChoice, spaces: Sequence[Space], training: Training, padding: Sequence[str]
) -> dict[str, object]:
    """The answer for JSON. `seconds` is the time of the whole search; `priced` plans are those no bound ruled out.

    Args:
        padding: overrides that pad the vocabulary, which every plan needs.
    """
    return {
        "strategies": choice.num_strategies,
        "priced": choice.num_priced,
        "seconds": choice.search_seconds,
        "best": [
            {
                **mixed_row(plan, spaces, training),
                "blocks": [
                    {
                        "cluster": block.cluster,
                        "device": block.device,
                        "num_devices": block.num_devices,
                        "layers_per_stage": list(block.layers_per_stage),
                    }
                    for block in plan.blocks
                ],
                "overrides": [*padding, *plan.overrides()],
            }
            for plan in choice.best
        ],
    }


def mixed_table(best: Sequence[MixedStrategy], spaces: Sequence[Space], training: Training) -> Table:
    """The best assignments, fastest first. TFLOPS are model FLOPs per device, of all types together."""
    columns = ("#", "layout", "pipeline", "step s", "TFLOPS", "$/Mtoken")
    rows = []
    for position, plan in enumerate(best, start=1):
        per_million = mixed_row(plan, spaces, training)["predicted_dollars_per_million_tokens"]
        row = (
            text(position),
            breakable(_layout(plan, spaces[0].setting.model.num_layers)),
            text("\n".join(_block_text(block) for block in plan.blocks)),
            text(seconds(plan.step_seconds)),
            text(tflops(_flops_per_device(plan, spaces))),
            text(significant(per_million if isinstance(per_million, float) else None)),
        )
        rows.append(row)
    title = "One job over all of them. Predicted, not measured: ranked by time of a step"
    return Table(columns, tuple(rows), frozenset(columns) - {"layout", "pipeline"}, title=title)


def _layout(plan: MixedStrategy, num_layers: int) -> str:
    """The layout in short, as other tables name it.

    It leaves out the batch, which all plans share, and the layers, which have a column of their own.
    """
    return plan.strategy.label(num_layers, leave_out=["global_batch_size", "layers_per_stage"])
