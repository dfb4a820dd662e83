"""One job over several types of devices: rows for JSON and CSV, and a table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from conf.units import GIBIBYTE, TERA
from results.search.rows import MILLION, Row
from results.units import seconds, significant, tflops
from sweeps.planner import Training
from sweeps.planner.mixed import MixedBlock, MixedChoice, MixedStrategy
from sweeps.planner.objectives import SECONDS_PER_HOUR, dollars_per_second, tokens_per_step, total_hours, watts
from sweeps.planner.space import Space
from sweeps.planner.strategy import layers_in_short
from train_core.costs import StepTime, model_flops


def mixed_row(one: MixedStrategy, spaces: Sequence[Space], training: Training) -> Row:
    """One assignment: its knobs, then what is predicted of it."""
    tokens, rate = tokens_per_step(spaces[0]), _dollars_per_second(spaces)
    hours = total_hours(training, one.step_seconds)
    terms: Row = {f"predicted_{name}": getattr(one.step_terms, name) for name in StepTime.model_fields}
    return {
        "model": spaces[0].setting.model.name,
        "pipeline": " > ".join(_shown(block) for block in one.blocks),
        "world_size": one.num_devices,
        "tensor_parallel_size": one.tensor_parallel_size,
        "pipeline_parallel_size": one.pipeline_parallel_size,
        "data_parallel_size": one.data_parallel_size,
        "sequence_parallel": one.sequence_parallel,
        "zero_stage": one.zero_stage,
        "recompute": one.recompute,
        "micro_batch_size": one.micro_batch_size,
        "global_batch_size": one.global_batch_size,
        "predicted_step_seconds": one.step_seconds,
        **terms,
        "predicted_tokens_per_second": tokens / one.step_seconds,
        "predicted_model_tflops_per_device": _flops_per_device(one, spaces) / TERA,
        "predicted_worst_stage": one.worst_stage,
        "predicted_worst_stage_gib": one.worst_stage_bytes / GIBIBYTE,
        "predicted_dollars_per_million_tokens": None if rate is None else rate * one.step_seconds / tokens * MILLION,
        "predicted_joules_per_token": sum(watts(space) for space in spaces) * one.step_seconds / tokens,
        "predicted_hours": hours,
        "predicted_dollars": None if hours is None or rate is None else hours * SECONDS_PER_HOUR * rate,
    }


def _flops_per_device(one: MixedStrategy, spaces: Sequence[Space]) -> float:
    return model_flops(spaces[0].setting.model, one.global_batch_size) / one.step_seconds / one.num_devices


def _dollars_per_second(spaces: Sequence[Space]) -> float | None:
    """Of all devices; None where one type has no price."""
    rates = [dollars_per_second(space) for space in spaces]
    known = [rate for rate in rates if rate is not None]
    return sum(known) if len(known) == len(rates) else None


def _shown(block: MixedBlock) -> str:
    """`selene 4 stages, 6x4 layers`."""
    count, layers = len(block.layers_per_stage), layers_in_short(block.layers_per_stage)
    return f"{block.cluster} {count} {'stage' if count == 1 else 'stages'}, {layers} layers"


def mixed_document(choice: MixedChoice, spaces: Sequence[Space], training: Training) -> dict[str, object]:
    """For JSON. `seconds` is the whole search; `priced` are those that a bound did not rule out."""
    return {
        "strategies": choice.num_strategies,
        "priced": choice.num_priced,
        "seconds": choice.search_seconds,
        "best": [
            {
                **mixed_row(one, spaces, training),
                "blocks": [
                    {
                        "cluster": block.cluster,
                        "device": block.device,
                        "num_devices": block.num_devices,
                        "layers_per_stage": list(block.layers_per_stage),
                    }
                    for block in one.blocks
                ],
            }
            for one in choice.best
        ],
    }


def mixed_table(best: Sequence[MixedStrategy], spaces: Sequence[Space], training: Training) -> Table:
    """The best assignments, fastest first. TFLOPS are model FLOPs per device, of all types together."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")
    table.title = "One job over all of them. Predicted, not measured: ranked by time of a step"
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("layout", overflow="fold")
    table.add_column("pipeline", overflow="fold")
    for name in ("step s", "TFLOPS", "$/Mtoken"):
        table.add_column(name, justify="right", no_wrap=True)
    for position, one in enumerate(best, start=1):
        per_million = mixed_row(one, spaces, training)["predicted_dollars_per_million_tokens"]
        table.add_row(
            str(position),
            _layout(one),
            "\n".join(_shown(block) for block in one.blocks),
            seconds(one.step_seconds),
            tflops(_flops_per_device(one, spaces)),
            significant(per_million if isinstance(per_million, float) else None),
        )
    return table


def _layout(one: MixedStrategy) -> str:
    """In short, as other tables name layouts."""
    parts = [f"tp{one.tensor_parallel_size}", f"pp{one.pipeline_parallel_size}", f"dp{one.data_parallel_size}"]
    parts += [f"mb{one.micro_batch_size}"] + (["sp"] if one.sequence_parallel else [])
    parts += [f"zero{one.zero_stage}"] if one.zero_stage else []
    return "-".join(parts + ([one.recompute] if one.recompute != "none" else []))
