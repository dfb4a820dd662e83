"""A `Setup` is what the cost model prices: a plan for a model on a cluster, in one precision.

Invariants between its parts live here; those inside a part live in its type.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Self

from pydantic import Field, model_validator

from conf.chunks import chunk_ranges, least_layers
from conf.cluster_spec import ClusterSpec, DeviceSpec, narrow_dtype
from conf.context_axis import check_context_axis
from conf.errors import InfeasiblePlan
from conf.expert_axis import check_expert_axis
from conf.knobs import KnobValue, data_parallel_size_of, label_of, value_of
from conf.mixed import StageBlock, check_blocks, written_blocks
from conf.model_spec import ModelSpec
from conf.remedies import largest_share, next_multiple, padded_vocabulary
from conf.schema import BatchPlan, Frozen, ParallelPlan, PrecisionPlan
from conf.zero_groups import check_zero_groups


class SetupParts(Frozen):
    """What a setup is made of. The parts are not yet held against each other.

    Attributes:
        mixed: the blocks of stages of a job over several types of devices, first to last; None where all devices are
            those of `cluster`. With blocks, `cluster` is that of one of them.
    """

    model: ModelSpec
    cluster: ClusterSpec
    parallel: ParallelPlan
    batch: BatchPlan
    precision: PrecisionPlan
    mixed: Annotated[tuple[StageBlock, ...], Field(strict=False)] | None = None


class Setup(SetupParts):
    """A plan that can exist, with the model, the cluster and the precision that it is for.

    Raises:
        InfeasiblePlan: the parts cannot exist together; names the dotted key, its value and what would fit.
    """

    @property
    def dropout(self) -> float:
        """The probability with which training drops values. A setup has no training, so nothing is dropped."""
        return 0.0

    @property
    def is_fully_sharded(self) -> bool:
        """Whether weights are sharded: under ZeRO-3, if there are several replicas to share them out."""
        return self.parallel.zero_stage == 3 and self.data_parallel_size > 1

    @property
    def data_parallel_size(self) -> int:
        return data_parallel_size_of(self.parallel)

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of one data-parallel replica in one step."""
        return self.batch.global_batch_size // (self.batch.micro_batch_size * self.data_parallel_size)

    @cached_property
    def layers_per_stage(self) -> tuple[int, ...]:
        """Layers of each pipeline stage: as planned, else as even as possible, the first stages taking one more."""
        if self.parallel.layers_per_stage is not None:
            return self.parallel.layers_per_stage
        size = self.parallel.pipeline_parallel_size
        layers, more = divmod(self.model.num_layers, size)
        return (layers + 1,) * more + (layers,) * (size - more)

    @cached_property
    def chunk_ranges(self) -> tuple[tuple[range, ...], ...]:
        """Indices of the layers of each stage's model chunks, of which there are several only with interleaving."""
        return chunk_ranges(self.layers_per_stage, self.parallel.virtual_pipeline_size)

    @property
    def blocks(self) -> tuple[StageBlock, ...]:
        """The consecutive stages on each type of devices: one block of all stages, unless the job is mixed."""
        return self.mixed or (StageBlock(cluster=self.cluster, num_devices=self.parallel.world_size),)

    @property
    def stages_per_block(self) -> tuple[int, ...]:
        """How many pipeline stages each block has."""
        of_stage = self.parallel.world_size // self.parallel.pipeline_parallel_size
        return tuple(block.num_devices // of_stage for block in self.blocks)

    @property
    def place(self) -> str:
        """The cluster's name, or of a mixed job the names and numbers of devices of all."""
        return self.cluster.name if self.mixed is None else written_blocks(self.mixed)

    @property
    def num_nodes(self) -> int:
        return sum(block.num_nodes for block in self.blocks)

    @property
    def tasks_per_node(self) -> int:
        """Tasks on each node; in a mixed job on those that have most."""
        return max(block.tasks_per_node for block in self.blocks)

    @property
    def peak_flops_per_second(self) -> float:
        """Declared dense peak of one device in this precision; in a mixed job the mean over all devices."""
        dtype = self.precision.dtype
        return self._mean([block.cluster.device.peak_flops_per_second[dtype] for block in self.blocks])

    @property
    def price_per_hour(self) -> float | None:
        """Dollars for an hour of one device, in a mixed job the mean over all; None where one has no known price."""
        prices = [block.cluster.device.price_per_hour for block in self.blocks]
        known = [price for price in prices if price is not None]
        return self._mean(known) if len(known) == len(prices) else None

    @property
    def watts(self) -> float:
        """Design power of one device, in a mixed job the mean over all."""
        return self._mean([block.cluster.device.watts for block in self.blocks])

    def _mean(self, of_blocks: Sequence[float]) -> float:
        """The mean over all devices of what each block's devices have."""
        if len(of_blocks) == 1:  # the division could change its last digit
            return of_blocks[0]
        total = sum(block.num_devices * value for block, value in zip(self.blocks, of_blocks, strict=True))
        return total / self.parallel.world_size

    @property
    def label(self) -> str:
        """A short name of the plan for people; no program parses it."""
        return label_of(self.parallel, self.batch, self.layers_per_stage)

    def value_of(self, knob: str) -> KnobValue:
        """The value of a knob, by its name in `conf.knobs`."""
        return value_of(knob, self.parallel, self.batch)

    @model_validator(mode="after")
    def _exists(self) -> Self:
        for check in CHECKS:
            check(self)
        return self


def _require_multiple(
    key: str, value: int, multiple: int, problem: str, most: float = math.inf, otherwise: str = ""
) -> None:
    """Refuse a value that is no multiple; the remedy names one nearby that is, and that is not above `most`."""
    above = next_multiple(value, multiple)
    if above == value:
        return
    fitting = above if above <= most else above - multiple
    remedies = [f"use {key}={fitting} or another multiple of {multiple}"] if fitting else []
    remedies += [otherwise] if otherwise else []
    text = ", or ".join(remedies) or f"use a multiple of {multiple}"
    raise InfeasiblePlan(key, value, problem, f"{text[0].upper()}{text[1:]}.")


def _check_devices(setup: Setup) -> None:
    if setup.mixed is not None:
        check_blocks(setup)
        return
    parallel, cluster = setup.parallel, setup.cluster
    sizes = {
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
    }
    if parallel.context_parallel_size > 1:
        sizes["context_parallel_size"] = parallel.context_parallel_size
    model_parallel_size = math.prod(sizes.values())
    if parallel.world_size > cluster.num_devices:
        raise InfeasiblePlan(
            "parallel.world_size",
            parallel.world_size,
            f"is more than the {cluster.num_devices} devices of cluster {cluster.name}"
            f" ({cluster.num_nodes} nodes x {cluster.devices_per_node})",
            "Use fewer ranks, or raise cluster.num_nodes or cluster.devices_per_node.",
        )
    # Every node gets the same number of ranks, which is how Slurm is asked for tasks.
    multiple, most = model_parallel_size, cluster.devices_per_node
    if parallel.world_size > cluster.devices_per_node:
        multiple, most = math.lcm(cluster.devices_per_node, model_parallel_size), cluster.num_devices
    problem, otherwise = f"does not fill whole nodes of {cluster.devices_per_node} devices", ""
    if parallel.world_size % model_parallel_size:
        problem = (
            f"is not a multiple of {' x '.join(sizes)} = {' x '.join(map(str, sizes.values()))} = {model_parallel_size}"
        )
        otherwise = "use smaller tensor- or pipeline-parallel sizes"
    _require_multiple("parallel.world_size", parallel.world_size, multiple, problem, most, otherwise)


def _check_tensor_axis(setup: Setup) -> None:
    parallel, key = setup.parallel, "parallel.tensor_parallel_size"
    size, per_node = parallel.tensor_parallel_size, min(block.cluster.devices_per_node for block in setup.blocks)
    if size > per_node and not parallel.tensor_parallel_across_nodes:
        raise InfeasiblePlan(
            key,
            size,
            f"is more than the {per_node} devices of a node",
            "Stay inside a node, or set parallel.tensor_parallel_across_nodes=true.",
        )
    for shared, value in _shared_by_tensor_ranks(setup).items():
        if value % size:
            remedy = _remedy_for_tensor_ranks(setup, shared, value)
            raise InfeasiblePlan(key, size, f"does not divide {shared} = {value}", remedy)
    if parallel.sequence_parallel and size == 1:
        raise InfeasiblePlan(
            "parallel.sequence_parallel",
            True,
            "needs tensor_parallel_size above 1",
            "Set parallel.sequence_parallel=false, or raise parallel.tensor_parallel_size.",
        )


def _shared_by_tensor_ranks(setup: Setup) -> dict[str, int]:
    """What every tensor rank takes an equal part of, in the order in which it is checked."""
    model, shared = setup.model, {}
    # Tensor ranks are neighbours, so groups stay inside nodes only if their size divides a node's devices.
    if not setup.parallel.tensor_parallel_across_nodes and (spread := [b for b in setup.blocks if b.num_nodes > 1]):
        shared["cluster.devices_per_node"] = math.gcd(*(block.cluster.devices_per_node for block in spread))
    shared["model.num_attention_heads"] = model.num_attention_heads
    shared["model.num_query_groups"] = model.num_query_groups
    shared["model.ffn_hidden_size"] = model.ffn_hidden_size
    shared["model.vocab_size"] = model.vocab_size
    if setup.parallel.sequence_parallel:
        shared["model.seq_length"] = model.seq_length
    return shared


def _remedy_for_tensor_ranks(setup: Setup, key: str, value: int) -> str:
    """Another value of the model that the size divides, where that can be, and a size that divides all."""
    size, heads = setup.parallel.tensor_parallel_size, setup.model.num_attention_heads
    ranks = setup.parallel.world_size // setup.parallel.pipeline_parallel_size
    fitting = largest_share([*_shared_by_tensor_ranks(setup).values(), ranks], below=size)
    smaller = f"parallel.tensor_parallel_size={fitting}"
    if fitting == 1 and setup.parallel.sequence_parallel:
        smaller += " with parallel.sequence_parallel=false"
    match key:
        case "model.vocab_size":
            return f"Pad model.vocab_size to {padded_vocabulary(value, size)}, or use {smaller}."
        case "model.num_query_groups":
            # The size divides the heads, which were checked before, so that there is such a number.
            groups = next(n for n in range(next_multiple(value, size), heads + 1, size) if heads % n == 0)
            return f"Use model.num_query_groups={groups}, or use {smaller}."
        case "model.ffn_hidden_size" | "model.seq_length":
            return f"Use {key}={next_multiple(value, size)}, or use {smaller}."
    return f"Use {smaller}."


def _check_pipeline_axis(setup: Setup) -> None:
    parallel, num_layers = setup.parallel, setup.model.num_layers
    if parallel.pipeline_parallel_size > num_layers:
        raise InfeasiblePlan(
            "parallel.pipeline_parallel_size",
            parallel.pipeline_parallel_size,
            f"leaves stages without a layer: model.num_layers = {num_layers}",
            "Use fewer stages.",
        )
    if parallel.layers_per_stage is not None:
        _check_layers_per_stage(parallel.layers_per_stage, parallel.pipeline_parallel_size, num_layers)
    if parallel.zero_stage == 3 and parallel.pipeline_parallel_size > 1:
        raise InfeasiblePlan(
            "parallel.zero_stage",
            3,
            "would gather the weights anew for every micro-batch of a pipeline",
            "Use zero_stage=2 or less, or parallel.pipeline_parallel_size=1.",
        )


def _check_layers_per_stage(layers: tuple[int, ...], num_stages: int, num_layers: int) -> None:
    key = "parallel.layers_per_stage"
    if len(layers) != num_stages:
        problem = f"names {len(layers)} stages, and parallel.pipeline_parallel_size = {num_stages}"
        raise InfeasiblePlan(key, list(layers), problem, "Give one number for every stage, or null to spread evenly.")
    if sum(layers) != num_layers:
        problem = f"adds up to {sum(layers)} layers, and model.num_layers = {num_layers}"
        raise InfeasiblePlan(key, list(layers), problem, f"Choose numbers that add up to {num_layers}, or null.")


def _check_schedule(setup: Setup) -> None:
    parallel, key = setup.parallel, "parallel.schedule"
    # With one stage all schedules are the same order of passes; 1F1B is the name under which that plan exists.
    if parallel.schedule != "1f1b" and parallel.pipeline_parallel_size == 1:
        remedy = "Use schedule=1f1b, or raise parallel.pipeline_parallel_size."
        raise InfeasiblePlan(key, parallel.schedule, "needs pipeline_parallel_size above 1", remedy)
    if parallel.schedule == "interleaved":
        _check_chunks(setup)


def _check_chunks(setup: Setup) -> None:
    """Refuse chunks without a layer, but for the first of the first stage and the last of the last stage."""
    chunks, layers = setup.parallel.virtual_pipeline_size, setup.layers_per_stage
    for stage, count in enumerate(layers):
        if count < least_layers(stage, len(layers), chunks):
            problem = f"leaves chunks without a layer: stage {stage} has {count} of {setup.model.num_layers} layers"
            raise InfeasiblePlan("parallel.virtual_pipeline_size", chunks, problem, _remedy_for_chunks(setup))


def _remedy_for_chunks(setup: Setup) -> str:
    """An even spread if that helps, else one with lighter ends, else fewer chunks."""
    p, chunks = setup.parallel.pipeline_parallel_size, setup.parallel.virtual_pipeline_size
    least, most = [least_layers(stage, p, chunks) for stage in range(p)], setup.model.num_layers // p
    if most >= max(least):
        return "Use parallel.layers_per_stage=null."
    if (left := setup.model.num_layers - sum(least)) >= 0:
        return f"Use parallel.layers_per_stage=[{','.join(map(str, [least[0] + left, *least[1:]]))}]."
    if most < 2:
        return "Use schedule=1f1b, or fewer stages."
    return f"Use parallel.virtual_pipeline_size={most}, and parallel.layers_per_stage=null."


def _check_batch(setup: Setup) -> None:
    batch, replicas = setup.batch, setup.data_parallel_size
    sequences = batch.micro_batch_size * replicas
    problem = f"is not a multiple of micro_batch_size x data_parallel_size = {batch.micro_batch_size} x {replicas}"
    _require_multiple("batch.global_batch_size", batch.global_batch_size, sequences, f"{problem} = {sequences}")


def _check_precision(setup: Setup) -> None:
    dtype = setup.precision.dtype
    for device in (block.cluster.device for block in setup.blocks):
        if dtype not in device.peak_flops_per_second:
            raise InfeasiblePlan(
                "precision.dtype",
                dtype,
                f"has no peak under cluster.device.peak_flops_per_second of {device.name}",
                f"Choose one of {', '.join(device.dtypes)}, or give the device a peak.",
            )
        require_recipe(setup.precision, device)


def require_recipe(precision: PrecisionPlan, device: DeviceSpec) -> None:
    """Refuse narrow products that a device has no peak for.

    Raises:
        InfeasiblePlan: names the recipe, and one that the device has.
    """
    recipe, key = precision.matmul_recipe, "precision.matmul_recipe"
    if recipe is None:
        return
    if precision.dtype == "fp32":
        remedy = f"Use {key}=null, or precision.dtype=bf16."
        raise InfeasiblePlan(key, recipe, "multiplies weights of 16 bits, and precision.dtype = fp32", remedy)
    peaks, narrow = device.peak_flops_per_second, narrow_dtype(recipe)
    problem = f"has no peak for {narrow} under cluster.device.peak_flops_per_second of {device.name}"
    remedy = f"Use {key}={'fp8-tensorwise' if 'fp8' in peaks else 'null'}, or another device."
    if narrow not in peaks:
        raise InfeasiblePlan(key, recipe, problem, remedy)
    if recipe == "mxfp8" and "fp4" not in peaks:  # the chips that multiply in 4 bits are those that scale blocks
        raise InfeasiblePlan(key, recipe, f"needs products that scale blocks, which {device.name} has not", remedy)


# The order decides which complaint a plan with several mistakes gets: numbers that later checks divide by come first.
CHECKS = (
    _check_devices,
    _check_tensor_axis,
    check_context_axis,
    check_expert_axis,
    check_zero_groups,
    _check_pipeline_axis,
    _check_batch,
    _check_schedule,
    _check_precision,
)
