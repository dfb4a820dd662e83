"""A `Setup` is what the cost model prices: a plan for a model on a cluster, in one precision.

Here are the rules that its parts must keep between each other; rules within a part live in its type. Each check raises
`InfeasiblePlan`, which names the dotted key, its value and what would fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Self

from pydantic import model_validator

from conf.errors import InfeasiblePlan
from conf.nearest import largest_share, next_multiple, padded_vocabulary
from conf.plan.chunks import least_layers
from conf.plan.expert_axis import check_expert_axis
from conf.plan.setup_parts import EXAMPLE, MIXED, SetupParts, StageBlock, written_blocks
from conf.types.cluster_spec import DeviceSpec, narrow_dtype
from conf.types.schema import ParallelPlan, PrecisionPlan
from conf.units import count_of

PIECES = 2
"""Of each context rank: one from the front and one from the end, so that the causal mask leaves all as much work."""
ZERO_GROUP = "parallel.zero_group_size"


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


def _check_devices(setup: SetupParts) -> None:
    if setup.mixed is not None:
        _check_blocks(setup)
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
            f"is more than the {count_of(cluster.num_devices, 'device')} of cluster {cluster.name}"
            f" ({count_of(cluster.num_nodes, 'node')} x {cluster.devices_per_node})",
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


def _check_blocks(setup: SetupParts) -> None:
    """Raises InfeasiblePlan where the blocks cannot hold the pipeline of this plan."""
    assert setup.mixed is not None
    blocks_text, example = written_blocks(setup.mixed), f"Write mixed={EXAMPLE}, or mixed=null for one cluster."
    if len(setup.mixed) < 2:
        raise InfeasiblePlan(MIXED, blocks_text, "names one type of devices", example)
    if setup.cluster not in [block.cluster for block in setup.mixed]:
        remedy = f"Choose cluster={setup.mixed[0].cluster.name}, whose Slurm settings and folders the job then has."
        raise InfeasiblePlan(MIXED, blocks_text, f"does not name the chosen cluster, {setup.cluster.name}", remedy)
    _check_numbers_of_blocks(setup, setup.mixed, blocks_text)
    require_one_maker(MIXED, blocks_text, [block.cluster.device for block in setup.mixed])
    if setup.parallel.schedule == "interleaved":
        problem = f"does not run over several types of devices ({blocks_text}): the last stage would send to the first"
        raise InfeasiblePlan("parallel.schedule", "interleaved", problem, "Use schedule=1f1b.")


def require_one_maker(key: str, value: str, devices: Iterable[DeviceSpec]) -> None:
    """Raises InfeasiblePlan for devices of one job that no library of collectives joins, as NCCL and RCCL do not."""
    kinds = {(device.kind, device.maker): device.name for device in devices}
    if len(kinds) > 1:
        problem = f"joins {' and '.join(kinds.values())}, whose libraries for collectives do not work together"
        raise InfeasiblePlan(key, value, problem, "Choose clusters with GPUs of one maker.")


def _check_numbers_of_blocks(setup: SetupParts, blocks: Sequence[StageBlock], blocks_text: str) -> None:
    """Every block fills whole stages and, beyond one node, whole nodes; together they are all ranks of the job."""
    total, world_size = sum(block.num_devices for block in blocks), setup.parallel.world_size
    if total != world_size:
        problem = f"names {count_of(total, 'device')}, and parallel.world_size = {world_size}"
        raise InfeasiblePlan(MIXED, blocks_text, problem, "Make both the same.")
    replica = setup.parallel.tensor_parallel_size * setup.parallel.context_parallel_size
    size = replica * setup.parallel.pipeline_parallel_size
    stage = world_size // size * replica
    if world_size % size or any(block.num_devices % stage for block in blocks):
        sizes = f"tensor_parallel_size {setup.parallel.tensor_parallel_size} in {setup.parallel.pipeline_parallel_size}"
        problem = f"cannot be cut into equal stages of {world_size / size:g} replicas with {sizes} stages"
        raise InfeasiblePlan(MIXED, blocks_text, problem, "Choose sizes with which every block holds whole stages.")
    for block in blocks:
        cluster, asked = block.cluster, block.num_devices
        if not cluster.can_give(asked):
            nodes = f"{count_of(cluster.num_nodes, 'node')} of {cluster.devices_per_node}"
            problem = f"asks {cluster.name} for {count_of(asked, 'device')}, and it has {nodes}"
            remedy = f"Use up to {cluster.num_devices}; beyond one node, whole nodes."
            raise InfeasiblePlan(MIXED, blocks_text, problem, remedy)


def _check_tensor_axis(setup: SetupParts) -> None:
    parallel, key = setup.parallel, "parallel.tensor_parallel_size"
    size, per_node = parallel.tensor_parallel_size, min(block.cluster.devices_per_node for block in setup.blocks)
    if size > per_node and not _may_leave_nodes(setup):
        remedy = "Stay inside a node, or set parallel.tensor_parallel_across_nodes=true."
        raise InfeasiblePlan(key, size, f"is more than the {count_of(per_node, 'device')} of a node", remedy)
    for shared, value in _shared_by_tensor_ranks(setup).items():
        # Several ranks may hold one group of keys and values together; trainers that split none say so.
        if value % size and not (shared == "model.num_query_groups" and size % value == 0):
            remedy = _remedy_for_tensor_ranks(setup, shared, value)
            raise InfeasiblePlan(key, size, f"does not divide {shared} = {value}", remedy)
    if parallel.sequence_parallel and size == 1:
        remedy = "Set parallel.sequence_parallel=false, or raise parallel.tensor_parallel_size."
        raise InfeasiblePlan("parallel.sequence_parallel", True, "needs tensor_parallel_size above 1", remedy)


def _may_leave_nodes(setup: SetupParts) -> bool:
    """True if tensor groups may span nodes: by the plan's own word, or where one close link joins all devices."""
    joined = all(block.num_devices <= block.cluster.joined_devices for block in setup.blocks)
    return setup.parallel.tensor_parallel_across_nodes or (joined and len(setup.blocks) == 1)


def _shared_by_tensor_ranks(setup: SetupParts) -> dict[str, int]:
    """The sizes that tensor ranks share equally, in the order in which they are checked."""
    model, shared = setup.model, {}
    # Tensor ranks are neighbours, so groups stay inside nodes only if their size divides a node's devices.
    if not _may_leave_nodes(setup) and (spread := [b for b in setup.blocks if b.num_nodes > 1]):
        shared["cluster.devices_per_node"] = math.gcd(*(block.cluster.devices_per_node for block in spread))
    shared["model.num_attention_heads"] = model.num_attention_heads
    shared["model.num_query_groups"] = model.num_query_groups
    shared["model.ffn_hidden_size"] = model.ffn_hidden_size
    shared["model.vocab_size"] = model.vocab_size
    if setup.parallel.sequence_parallel:
        shared["model.seq_length"] = model.seq_length
    return shared


def _remedy_for_tensor_ranks(setup: SetupParts, key: str, value: int) -> str:
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


def _check_context_axis(setup: SetupParts) -> None:
    """Refuse a size that leaves no equal pieces: every rank takes two of each sequence."""
    parallel, model = setup.parallel, setup.model
    size, exchange = parallel.context_parallel_size, parallel.context_exchange
    if size == 1:
        if exchange != "ring":
            remedy = "Use parallel.context_exchange=ring, or raise parallel.context_parallel_size."
            raise InfeasiblePlan("parallel.context_exchange", exchange, "needs several context ranks", remedy)
        return
    shared = parallel.tensor_parallel_size if parallel.sequence_parallel else 1
    pieces = PIECES * size * shared
    if model.seq_length % pieces:
        ranks = parallel.world_size // (parallel.tensor_parallel_size * parallel.pipeline_parallel_size)
        fitting = largest_share([model.seq_length // shared // PIECES or 1, ranks], below=size)
        among = " x tensor_parallel_size" if shared > 1 else ""
        raise InfeasiblePlan(
            "parallel.context_parallel_size",
            size,
            f"does not cut model.seq_length = {model.seq_length} into {PIECES} x context_parallel_size{among} ="
            f" {pieces} equal pieces",
            f"Use model.seq_length={next_multiple(model.seq_length, pieces)}, or"
            f" parallel.context_parallel_size={fitting}.",
        )


def _check_zero_groups(setup: SetupParts) -> None:
    """Refuse groups that leave some replicas over, since all groups hold the same shards."""
    size, replicas = setup.parallel.zero_group_size, setup.num_replicas
    if size is None or replicas % size == 0:
        return
    names = "data_parallel_size" + (" x context_parallel_size" if setup.parallel.context_parallel_size > 1 else "")
    fitting = largest_share([replicas], below=size)
    problem = f"does not divide the {count_of(replicas, 'replica')} of a stage ({names})"
    remedy = f"Use {ZERO_GROUP}={fitting}, or null for one group of all of them."
    raise InfeasiblePlan(ZERO_GROUP, size, problem, remedy)


def _check_pipeline_axis(setup: SetupParts) -> None:
    parallel, num_layers = setup.parallel, setup.model.num_layers
    if parallel.pipeline_parallel_size > num_layers:
        problem = f"leaves stages without a layer: model.num_layers = {num_layers}"
        remedy = "Use fewer stages."
        raise InfeasiblePlan("parallel.pipeline_parallel_size", parallel.pipeline_parallel_size, problem, remedy)
    if parallel.layers_per_stage is not None:
        require_layers_of_stages(parallel.layers_per_stage, parallel.pipeline_parallel_size, num_layers)
    require_whole_weights(parallel)


def require_whole_weights(parallel: ParallelPlan) -> None:
    """Raises InfeasiblePlan for ZeRO-3 beside a pipeline, whose stages keep their weights whole."""
    if parallel.zero_stage == 3 and parallel.pipeline_parallel_size > 1:
        problem = "would gather the weights anew for every micro-batch of a pipeline"
        remedy = "Use zero_stage=2 or less, or parallel.pipeline_parallel_size=1."
        raise InfeasiblePlan("parallel.zero_stage", 3, problem, remedy)


def require_layers_of_stages(layers: tuple[int, ...], num_stages: int, num_layers: int) -> None:
    """Raises InfeasiblePlan unless the list has a number for every stage and adds up to all layers."""
    key = "parallel.layers_per_stage"
    if len(layers) != num_stages:
        problem = f"names {count_of(len(layers), 'stage')}, and parallel.pipeline_parallel_size = {num_stages}"
        raise InfeasiblePlan(key, layers, problem, "Give one number for every stage, or null to spread evenly.")
    if sum(layers) != num_layers:
        problem = f"adds up to {count_of(sum(layers), 'layer')}, and model.num_layers = {num_layers}"
        raise InfeasiblePlan(key, layers, problem, f"Choose numbers that add up to {num_layers}, or null.")


def _check_schedule(setup: SetupParts) -> None:
    parallel, key = setup.parallel, "parallel.schedule"
    # With one stage all schedules are the same order of passes; 1F1B is the name under which that plan exists.
    if parallel.schedule != "1f1b" and parallel.pipeline_parallel_size == 1:
        remedy = "Use schedule=1f1b, or raise parallel.pipeline_parallel_size."
        raise InfeasiblePlan(key, parallel.schedule, "needs pipeline_parallel_size above 1", remedy)
    if parallel.schedule == "interleaved":
        _check_chunks(setup)


def _check_chunks(setup: SetupParts) -> None:
    """Refuse chunks without a layer, but for the first of the first stage and the last of the last stage."""
    chunks, layers = setup.parallel.virtual_pipeline_size, setup.layers_per_stage
    for stage, count in enumerate(layers):
        if count < least_layers(stage, len(layers), chunks):
            layers_in_all = count_of(setup.model.num_layers, "layer")
            problem = f"leaves chunks without a layer: stage {stage} has {count} of {layers_in_all}"
            raise InfeasiblePlan("parallel.virtual_pipeline_size", chunks, problem, _remedy_for_chunks(setup))


def _remedy_for_chunks(setup: SetupParts) -> str:
    """An even spread if that helps, else one with lighter ends, else fewer chunks."""
    p, chunks = setup.parallel.pipeline_parallel_size, setup.parallel.virtual_pipeline_size
    least, most = [least_layers(stage, p, chunks) for stage in range(p)], setup.model.num_layers // p
    if most >= max(least):
        return "Use parallel.layers_per_stage=null."
    if (remaining := setup.model.num_layers - sum(least)) >= 0:
        return f"Use parallel.layers_per_stage=[{','.join(map(str, [least[0] + remaining, *least[1:]]))}]."
    if most < 2:
        return "Use schedule=1f1b, or fewer stages."
    return f"Use parallel.virtual_pipeline_size={most}, and parallel.layers_per_stage=null."


def _check_batch(setup: SetupParts) -> None:
    batch, replicas = setup.batch, setup.data_parallel_size
    sequences = batch.micro_batch_size * replicas
    problem = f"is not a multiple of micro_batch_size x data_parallel_size = {batch.micro_batch_size} x {replicas}"
    _require_multiple("batch.global_batch_size", batch.global_batch_size, sequences, f"{problem} = {sequences}")


def _check_precision(setup: SetupParts) -> None:
    for device in (block.cluster.device for block in setup.blocks):
        lacks = f"has no peak under cluster.device.peak_flops_per_second of {device.name}"
        require_precision(setup.precision, device, lacks, "give the device a peak")


def require_precision(precision: PrecisionPlan, device: DeviceSpec, lacks: str, otherwise: str) -> None:
    """Refuse a type, and narrow products, that a device has no peak for.

    Args:
        lacks: what is wrong with a type without a peak.
        otherwise: what can be done instead of taking another type.

    Raises:
        InfeasiblePlan: names the type or the recipe, and one that the device has.
    """
    if precision.dtype not in device.peak_flops_per_second:
        remedy = f"Choose one of {', '.join(device.dtypes)}, or {otherwise}."
        raise InfeasiblePlan("precision.dtype", precision.dtype, lacks, remedy)
    recipe, key = precision.matmul_recipe, "precision.matmul_recipe"
    if recipe is None:
        return
    if precision.dtype == "fp32":
        remedy = f"Use {key}=null, or precision.dtype=bf16."
        raise InfeasiblePlan(key, recipe, "needs weights of 16 bits, and precision.dtype = fp32", remedy)
    if precision.emulate:  # on any device
        return
    peaks, narrow = device.peak_flops_per_second, narrow_dtype(recipe)
    problem = f"has no peak for {narrow} under cluster.device.peak_flops_per_second of {device.name}"
    emulation = "" if "fp8" in peaks else " This package's own trainer takes precision.emulate=true, too."
    remedy = f"Use {key}={'fp8-tensorwise' if 'fp8' in peaks else 'null'}, or another device.{emulation}"
    if narrow not in peaks:
        raise InfeasiblePlan(key, recipe, problem, remedy)
    if recipe == "mxfp8" and "fp4" not in peaks:  # the chips that multiply in 4 bits are those that scale blocks
        raise InfeasiblePlan(key, recipe, f"needs matmuls that scale blocks, which {device.name} does not have", remedy)


# The order decides which complaint a plan with several mistakes gets: numbers that later checks divide by come first.
CHECKS = (
    _check_devices,
    _check_tensor_axis,
    _check_context_axis,
    check_expert_axis,
    _check_zero_groups,
    _check_pipeline_axis,
    _check_batch,
    _check_schedule,
    _check_precision,
)


class Setup(SetupParts):
    """A plan that can exist, with the model, the cluster and the precision that it is for.

    Raises:
        InfeasiblePlan: the parts cannot exist together; names the dotted key, its value and what would fit.
    """

    @model_validator(mode="after")
    def _exists(self) -> Self:
        for check in CHECKS:
            check(self)
        return self
