"""One plan as a value: what a search finds, a person names, and a sweep measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conf.experiment import Experiment, Parts
from conf.schema import BatchPlan, ParallelPlan, Recompute, Schedule
from train_core.costs.setting import RECOMPUTES, SCHEDULES, Plans


@dataclass(frozen=True, slots=True)
class Strategy:
    """Every choice that a search makes, under the names of the configuration.

    Attributes:
        layers_per_stage: None where the layers are spread evenly.
    """

    world_size: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    virtual_pipeline_size: int
    schedule: Schedule
    layers_per_stage: tuple[int, ...] | None
    sequence_parallel: bool
    zero_stage: int
    recompute: Recompute
    recompute_every: int
    micro_batch_size: int
    global_batch_size: int
    tensor_parallel_across_nodes: bool

    def experiment(self, like: Parts) -> Experiment:
        """This strategy with the model, cluster, precision, data and training of `like`."""
        parallel = {name: getattr(self, name) for name in ParallelPlan.model_fields}
        batch = {name: getattr(self, name) for name in BatchPlan.model_fields}
        rest = {name: getattr(like, name) for name in Experiment.model_fields if name not in ("parallel", "batch")}
        return Experiment(parallel=ParallelPlan(**parallel), batch=BatchPlan(**batch), **rest)

    def overrides(self) -> list[str]:
        """Hydra overrides that choose this strategy."""
        parallel = [f"parallel.{name}={_shown(getattr(self, name))}" for name in ParallelPlan.model_fields]
        return parallel + [f"batch.{name}={_shown(getattr(self, name))}" for name in BatchPlan.model_fields]


def _shown(value: object) -> str:
    """As Hydra reads it."""
    if value is None:
        return "null"
    if isinstance(value, tuple):
        return "[" + ",".join(str(one) for one in value) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def spread_layers(num_layers: int, num_stages: int, first: int, last: int) -> tuple[int, ...]:
    """Layers of every stage as `Plans` spreads them between a given first and last stage."""
    if num_stages == 1:
        return (first,)
    if num_stages == 2:
        return (first, last)
    base, more = divmod(num_layers - first - last, num_stages - 2)
    return (first, *((base + 1,) * more), *((base,) * (num_stages - 2 - more)), last)


def even_ends(num_layers: int, num_stages: int) -> tuple[int, int]:
    """Layers of the first and the last stage where all stages hold as nearly the same as can be."""
    base, more = divmod(num_layers, num_stages)
    return base + (more > 0), base


def strategies_of(plans: Plans, num_layers: int, *, tensor_parallel_across_nodes: bool) -> list[Strategy]:
    """The rows of `plans`, as values."""
    columns = {name: getattr(plans, name).tolist() for name in Plans.__slots__}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return [_strategy(row, num_layers, tensor_parallel_across_nodes) for row in rows]


def _strategy(row: dict[str, int], num_layers: int, across_nodes: bool) -> Strategy:
    t, p, d = row["tensor_parallel_size"], row["pipeline_parallel_size"], row["data_parallel_size"]
    ends = (row["first_stage_layers"], row["last_stage_layers"])
    return Strategy(
        world_size=t * p * d,
        tensor_parallel_size=t,
        pipeline_parallel_size=p,
        data_parallel_size=d,
        virtual_pipeline_size=row["virtual_pipeline_size"],
        schedule=SCHEDULES[row["schedule"]],
        layers_per_stage=None if ends == even_ends(num_layers, p) else spread_layers(num_layers, p, *ends),
        sequence_parallel=bool(row["sequence_parallel"]),
        zero_stage=row["zero_stage"],
        recompute=RECOMPUTES[row["recompute"]],
        recompute_every=1,
        micro_batch_size=row["micro_batch_size"],
        global_batch_size=row["micro_batch_size"] * row["num_micro_batches"] * d,
        tensor_parallel_across_nodes=across_nodes,
    )


def layers_in_short(layers_per_stage: Sequence[int] | None) -> str:
    """`5,6x10,5` for a table; empty where the layers are spread evenly."""
    if layers_per_stage is None:
        return ""
    runs: list[list[int]] = []
    for layers in layers_per_stage:
        if runs and runs[-1][0] == layers:
            runs[-1][1] += 1
        else:
            runs.append([layers, 1])
    return ",".join(f"{layers}x{count}" if count > 1 else str(layers) for layers, count in runs)
