"""Time of one step: what stages do for a micro-batch, the pipeline around it, then gradients and optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from conf.types.cluster_spec import ClusterSpec
from conf.units import FLOAT32_BYTES
from costs.collectives import pace_of, pair_seconds, ring_of, shown_seconds, transfer_seconds
from costs.kernels import gathered_weight_bytes, memory_bound_seconds
from costs.setting import Booleans, Floats, Integers, Plans, Setting
from costs.stages import StageGroup
from costs.step.muon import is_muons, muon_seconds
from costs.step.priced_stage import PricedStage
from costs.step.replicas import PricedReplicas, pipeline_extent, share_weights, widest_hop
from costs.step.schedule import ZERO_BUBBLE, MicroBatchSeconds, pipeline_seconds, smallest_group
from costs.step.sharding import sharded_seconds
from costs.terms import StepColumns
from costs.work import Work


@dataclass(frozen=True, slots=True)
class Passes:
    """Seconds of one micro-batch on a stage, in parts: computation, tensor-parallel collectives, and those of ZeRO.

    What the device waits for its `host` is a part of computation.

    A further cost of every micro-batch is a field here, and counts in `with_hop`, in a term of `run_pipeline` and in
    `pass_seconds`. In a field of computation it would also hide collectives. What costs once a chunk is multiplied by
    the virtual pipeline size, as a hop is.
    """

    forward: Floats
    input_gradient: Floats
    weight_gradient: Floats
    tensor_forward: Floats
    tensor_backward: Floats
    sharding_forward: Floats
    sharding_backward: Floats
    host: Floats

    @property
    def compute(self) -> Floats:
        """Computation that can run beside the reduction of gradients and the gathering of weights."""
        return self.forward + self.input_gradient + self.weight_gradient

    @property
    def at_work(self) -> Floats:
        """The same without what the device waits for its host."""
        return self.compute - self.host

    def with_hop(self, hop: Floats) -> MicroBatchSeconds:
        """The passes as the pipeline sees them: all parts added up, with a transfer each way."""
        return MicroBatchSeconds(
            self.forward + self.tensor_forward + self.sharding_forward + hop,
            self.input_gradient + self.tensor_backward + self.sharding_backward + hop,
            self.weight_gradient,
        )


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Seconds of all micro-batches, in columns, (n,), by what the slowest stage does with them.

    Attributes:
        busiest: computation of the stage whose device is longest at work, without what it waits for its host.
    """

    compute: Floats
    tensor: Floats
    transfers: Floats
    bubble: Floats
    sharding: Floats
    busiest: Floats


def step_columns(stages: Sequence[PricedStage]) -> StepColumns:
    """Seconds of one step by term; `stages` are all groups of the plans' stages, first to last."""
    first, groups = stages[0], [stage.group for stage in stages]
    setting, plans, work = first.setting, first.plans, first.work
    hop = hop_seconds(setting, plans, work)
    passes = [stage_passes(stage) for stage in stages]
    per_core = ranks_per_core(plans.world_size, setting.cluster)
    pipeline = run_pipeline(plans, groups, passes, [hop] * len(groups), per_core)
    reduced, update = after_pipeline(stages, passes)
    return sum_up(pipeline, reduced * per_core, update * per_core, slower_share(setting, plans.world_size))


def run_pipeline(
    plans: Plans, groups: list[StageGroup], passes: list[Passes], hops: list[Floats], per_core: Floats
) -> Pipeline:
    """All micro-batches through all stages.

    Args:
        hops: for each group, seconds of the transfer each way between one of its stages and its neighbour.
        per_core: see `ranks_per_core`.
    """
    m, p = plans.num_micro_batches, plans.pipeline_parallel_size
    # Every stage is lengthened by its own transfers, so that the longest chain of passes includes them.
    seconds = [one.with_hop(hop) for one, hop in zip(passes, hops, strict=True)]
    whole, slowest = pipeline_seconds(groups, seconds, p, m, plans.virtual_pipeline_size, plans.schedule)
    # The slowest stage runs all m micro-batches; ranks that take turns on a core each need their own time for it.
    turns = m * per_core
    compute = turns * _at(slowest, [one.compute for one in passes])
    tensor = turns * _at(slowest, [one.tensor_forward + one.tensor_backward for one in passes])
    sharding = turns * _at(slowest, [one.sharding_forward + one.sharding_backward for one in passes])
    # An activation comes or goes forward, and its gradient backward.
    transfers = turns * (2.0 * _at(slowest, hops))
    # The longest chain is m x the slowest stage's passes and transfers, and the waits around them: the rest of it.
    # Ranks that share cores work while others wait, which can leave no bubble at all; it never becomes negative.
    bubble = np.where(p > 1, np.maximum(whole - compute - tensor - sharding - transfers, 0.0), 0.0)
    at_work = (np.where(group.count > 0, one.at_work, 0.0) for group, one in zip(groups, passes, strict=True))
    return Pipeline(compute, tensor, transfers, bubble, sharding, turns * reduce(np.maximum, at_work))


def after_pipeline(stages: Sequence[PricedStage], passes: Sequence[Passes]) -> tuple[Floats, Floats]:
    """Seconds from the pipeline's end to that of the last reduction, and of the longest update.

    A stage's gradients are complete after its last backward pass. That pass goes from the last stage to the first, so
    a later stage has a head start, by the backward passes of all stages before it. No rank updates before all have
    reduced, since all add up the norm of the gradients first.

    Args:
        stages: the whole pipeline in groups of equal stages, of which each first one finishes last.
    """
    reduced = reduction_seconds(stages[0], passes[0])
    update, head_start = update_seconds(stages[0]), _last_backward_seconds(stages[0], passes[0])
    for stage, seconds in zip(stages[1:], passes[1:], strict=True):
        is_there = stage.group.count > 0
        own = reduction_seconds(stage, seconds) - head_start
        reduced = np.maximum(reduced, np.where(is_there, own, 0.0))
        update = np.maximum(update, np.where(is_there, update_seconds(stage), 0.0))
        head_start = head_start + _last_backward_seconds(stage, seconds)
    return reduced, update


def _last_backward_seconds(stage: PricedStage, passes: Passes) -> Floats:
    """Seconds by which a group's first stage ends its last backward pass after the stage that follows the group.

    Transfers between them are small beside it, and left out, as are collectives of ZeRO.
    """
    plans = stage.plans
    backward = passes.input_gradient + passes.tensor_backward
    # Weight gradients that waited fill the time until the end on later stages. Source: arXiv 2401.10241, section 2.2.
    filled = np.maximum(backward - passes.weight_gradient, 0.0)
    each = np.where(plans.schedule == ZERO_BUBBLE, filled, backward + passes.weight_gradient)
    return stage.group.count * each / plans.virtual_pipeline_size


def sum_up(pipeline: Pipeline, reduced: Floats, update: Floats, slower: Floats) -> StepColumns:
    """The terms of the step, from its parts.

    Args:
        slower: share by which the slowest device takes longer to compute, if not to wait for its host.
    """
    return StepColumns(
        compute_seconds=pipeline.compute,
        tensor_seconds=pipeline.tensor,
        pipeline_seconds=pipeline.transfers,
        bubble_seconds=pipeline.bubble,
        data_seconds=pipeline.sharding + reduced,
        optimizer_seconds=update,
        waiting_seconds=pipeline.busiest * slower,
    )


def _at(index: Integers, columns: list[Floats]) -> Floats:
    """Return, for each plan, the entry of the column that its index names."""
    chosen = columns[0]
    for number, column in enumerate(columns[1:], start=1):
        # Groups often share one array, as all have the same transfers; there is nothing to choose between then.
        if column is not columns[0]:
            chosen = np.where(index == number, column, chosen)
    return chosen


def stage_passes(stage: PricedStage) -> Passes:
    """The passes of one micro-batch: layers, the embedding on the first stage, norm and head on the last."""
    work, group = stage.work, stage.group
    # What recomputation repeats, collectives included, belongs to the backward pass, so that only the columns of
    # `of_layers` differ between layers that recompute and layers that do not.
    forward = stage.of_equal_layers("forward_seconds")
    backward = stage.of_layers("input_gradient_seconds")
    weights = stage.of_layers("weight_gradient_seconds")
    tensor = stage.of_equal_layers("tensor_forward_seconds")
    if np.any(group.is_last):
        # A group is the last one in some plans and not in others; the factor of 0 or 1 decides for each plan.
        has_head = group.is_last * 1.0
        forward = forward + has_head * work.head_forward_seconds
        backward = backward + has_head * work.head_input_gradient_seconds
        weights = weights + has_head * work.head_weight_gradient_seconds
        tensor = tensor + has_head * work.head_tensor_seconds
    if np.any(group.is_first):
        embedding = group.is_first * work.embedding_seconds
        forward, backward = forward + embedding, backward + embedding
    # The host is late for a micro-batch's first kernels; collectives run meanwhile, as beside computation.
    late = micro_batch_seconds(stage.setting)
    # What stays of a chunk has been priced as if it went out and came back.
    chunks = np.minimum(stage.plans.virtual_pipeline_size, group.layers)
    stays = chunks * stage.staying_bytes / stage.setting.cluster.host_bytes_per_second
    forward, backward = forward + late - stays, backward - stays
    # ZeRO's collectives run beside the whole backward pass, that is beside both gradients.
    gathered, reduced = sharded_seconds(stage, forward, backward + weights)
    return Passes(
        forward=forward,
        input_gradient=backward,
        weight_gradient=weights,
        tensor_forward=tensor,
        tensor_backward=stage.of_layers("tensor_backward_seconds"),
        sharding_forward=gathered,
        sharding_backward=reduced,
        host=stage.of_layers("waiting_seconds") + late - 2 * stays,
    )


def micro_batch_seconds(setting: Setting) -> float:
    """Seconds of the host for one micro-batch beside its layers; a CPU's are in what its kernels take."""
    if setting.cluster.device.kind == "cpu":
        return 0.0
    return setting.implementation.micro_batch_seconds * setting.cluster.efficiency.launch


def hop_seconds(setting: Setting, plans: Plans, work: Work, *, over: Setting | None = None) -> Floats:
    """Seconds of the transfers each way between neighbouring stages, for all chunks of a micro-batch, if not hidden.

    Args:
        over: the setting whose links they cross; None where these are the setting's own. What tensor ranks then gather
            stays on the setting's.
    """
    implementation, t = setting.implementation, plans.tensor_parallel_size
    stride = widest_hop(setting, plans)
    sent = work.held_hidden_bytes.astype(np.float64)
    gathered: Floats | float = 0.0
    if implementation.scattered_transfers:
        # Each tensor rank sends its t-th, and the receivers put the parts together over their faster links; with
        # sequence parallelism a rank wants no more than its part. Source: arXiv 2104.04473, section 4.1.
        sent = work.hidden_bytes / t
        whole = work.hidden_bytes.astype(np.float64)
        gathered = np.where(plans.sequence_parallel, 0.0, ring_of(setting, t, np.ones_like(t)).gather_seconds(whole))
    hop = (transfer_seconds(over or setting, sent, stride) + gathered) * (1.0 - implementation.transfers_overlap)
    if implementation.overlaps_chunk_transfers:
        hop = np.where(plans.virtual_pipeline_size > 1, _beside_a_chunk(setting, plans, work, hop), hop)
    # A micro-batch comes round as often as a stage has chunks, and leaves the stage each time.
    return np.where(plans.pipeline_parallel_size > 1, plans.virtual_pipeline_size * hop, 0.0)


def _beside_a_chunk(setting: Setting, plans: Plans, work: Work, hop: Floats) -> Floats:
    """Seconds that show of a transfer while the stage computes another chunk, of which forward passes take least."""
    # This is the mean chunk, since the columns hold no list of all chunks' layers.
    num_layers = setting.model.num_layers / (plans.pipeline_parallel_size * plans.virtual_pipeline_size)
    return shown_seconds(setting, hop, work.layer.forward_seconds * num_layers)


def reduction_seconds(stage: PricedStage, passes: Passes) -> Floats:
    """Seconds that no computation hides of the sums of gradients and gathers of weights that a stage has once a step.

    They run beside the computation of `overlapped_micro_batches`; under ZeRO-2, which scatters beside every backward
    pass, beside the forward passes of these alone. Adding up a tied embedding hides behind nothing.
    """
    setting, plans = stage.setting, stage.plans
    comm = _once_a_step(stage, stage.replicas)
    pace = pace_of(comm, _once_a_step(stage, stage.replicas.quick))
    hiding = np.where(plans.zero_stage == 2, passes.forward, passes.compute)
    hiding = hiding * overlapped_micro_batches(plans)
    shown = shown_seconds(setting, comm, hiding, setting.implementation.data_overlap, pace)
    if not setting.model.tied_embeddings:
        return shown
    copies = stage.work.token_embedding_parameters * float(setting.reduced_bytes)
    # The two copies are on the first stage and the last, which are the whole pipeline apart.
    tied = pair_seconds(setting, copies, pipeline_extent(setting, plans))
    has_copy = stage.group.is_first | stage.group.is_last
    return shown + np.where(has_copy & (plans.pipeline_parallel_size > 1), tied, 0.0)


def _once_a_step(stage: PricedStage, replicas: PricedReplicas) -> Floats:
    """Seconds of these sums and gathers.

    ZeRO-0 all-reduces gradients. ZeRO-1 scatters them (CPU ranks all-reduce them, which gloo does faster) and gathers
    the new weights. ZeRO-2 only gathers.
    """
    setting, parameters, experts = stage.setting, stage.parameters, stage.expert_parameters
    scattered = replicas.gather_seconds(parameters, experts, setting.reduced_bytes)
    weights = replicas.gather_seconds(parameters, experts, gathered_weight_bytes(setting))
    sharded = scattered + scattered if setting.cluster.device.kind == "cpu" else scattered  # data_parallel.FlatReplicas
    sharded = sharded + replicas.across_groups_seconds(parameters, experts, setting.reduced_bytes)
    # By ZeRO stage 0 to 3. A ring's all-reduce is a reduce-scatter and a gather of as many bytes, hence twice. ZeRO-2
    # and 3 scatter after every micro-batch, and 3 gathers for every pass, so that `sharded_seconds` has those.
    by_stage = [scattered + scattered, sharded + weights, weights, np.zeros_like(weights)]
    return np.asarray(np.choose(stage.plans.zero_stage, by_stage))


def overlapped_micro_batches(plans: Plans) -> Floats:
    """Number of micro-batches whose computation overlaps with the reduction of gradients and the gathering of weights.

    It is the last one, if a stage is one chunk. Of several chunks each is done with the whole last group of
    micro-batches before the next one is, so that all but one of them reduce beside the others.
    """
    chunks = plans.virtual_pipeline_size
    # In units of a whole stage's micro-batch, one chunk of a group takes group / chunks, and all but the last one
    # count.
    group = smallest_group(plans.num_micro_batches, plans.pipeline_parallel_size)
    return np.maximum(group * (chunks - 1) / chunks, 1.0)


def update_seconds(stage: PricedStage) -> Floats:
    """The update of what a rank of the stage owns, bound by the bandwidth of its memory or of the host's.

    Beside it are passes over whole gradients. Source: Megatron-Core, distributed/param_and_grad_buffer.py (`reset`,
    `scale_gradients`) and optimizer/clip_grads.py.
    """
    setting, whole = stage.setting, stage.parameters
    # Without ZeRO every replica updates all parameters of its stage.
    owned = np.where(stage.plans.zero_stage >= 1, stage.owned_parameters, whole)
    moved = update_bytes(setting, stage.plans, whole, owned)
    passed = whole * setting.implementation.whole_gradient_bytes
    if setting.offload_optimizer:
        return moved / setting.cluster.host_bytes_per_second + memory_bound_seconds(setting, passed, num_kernels=0)
    seconds = memory_bound_seconds(setting, moved + passed, num_kernels=1)
    return seconds + muon_seconds(stage) if is_muons(stage) else seconds


def ranks_per_core(num_devices: Integers | int, cluster: ClusterSpec) -> Floats:
    """Return how many ranks take turns on a core, also for messages. While one waits in its pipeline, another works.

    It is 1 where every rank has a device of its own.
    """
    cores = cluster.cores_per_node or cluster.devices_per_node
    return np.maximum(1.0, np.minimum(num_devices, cluster.devices_per_node) / cores)


def slower_share(setting: Setting, num_devices: Integers) -> Floats:
    """Return the share of its computation by which the slowest of so many devices is behind; all others wait for it.

    That is what the largest of n normal values is expected to be, n being large (a Gumbel distribution).
    """
    return setting.own_scale.slowest * np.sqrt(2.0 * np.log(num_devices))


FLOAT32_PASSES = 7
"""Of AdamW's kernel: it reads master, gradient and both moments, and writes all of them but the gradient."""


def update_bytes(setting: Setting, plans: Plans, held: Integers, owned: Integers) -> Floats:
    """Bytes of a rank's update; clipping is not in it, since only a step's gradient tells whether it clips.

    Args:
        held: the parameters of a rank.
        owned: those of them that it updates.
    """
    each = setting.implementation.optimizer_bytes_per_parameter
    if each is not None:
        return owned * each
    fully = (plans.zero_stage >= 3) & (plans.num_replicas > 1)
    shares = (plans.zero_stage >= 1) & share_weights(setting, plans)
    # FSDP2 frees gradients instead of making them zero, and makes means, which are turned into sums; its shards are the
    # masters themselves.
    zeroed = np.where(fully, 0, np.where(plans.zero_stage >= 2, owned, held)) * setting.gradient_bytes
    # Turning means into sums reads every gradient and writes it again.
    summed = 2 * FLOAT32_BYTES
    of_owned = np.where(fully, summed + _adam_bytes(FLOAT32_BYTES), _flat_bytes(setting, shares))
    return zeroed + owned * of_owned


def _adam_bytes(gradient_bytes: int) -> int:
    """The gradient's norm, its copy in fp32 where it is narrower, and the kernel of AdamW."""
    # The norm reads each gradient once; a copy reads it again and writes it in fp32.
    widened = gradient_bytes + FLOAT32_BYTES if gradient_bytes < FLOAT32_BYTES else 0
    return gradient_bytes + widened + FLOAT32_PASSES * FLOAT32_BYTES


def _flat_bytes(setting: Setting, shares: Booleans) -> Floats:
    """Return the bytes of an update in flat buckets: weights are rounded masters, and copied to be gathered."""
    weight, gradient = setting.dtype_bytes, setting.gradient_bytes
    # Undoing the scale of fp16's loss reads and writes each gradient; rounding reads the master and writes the weight;
    # what is gathered is read from the weights and written to a buffer.
    unscaled = 2 * gradient if setting.dtype == "fp16" else 0
    rounded = FLOAT32_BYTES + weight if weight < FLOAT32_BYTES else 0
    return unscaled + _adam_bytes(gradient) + rounded + np.where(shares, 2 * weight, 0)
