"""Time of one 1F1B step, by a simple roofline: matrix products, memory-bound operations, links, bubble, optimizer."""

from __future__ import annotations

from conf.experiment import Experiment
from conf.schema import Frozen, LinkSpec
from train_core.costs.flops import attention_core_forward_flops, head_forward_flops, layer_forward_flops
from train_core.costs.memory import DTYPE_BYTES, FLOAT32_BYTES, layer_activation_bytes
from train_core.costs.parameters import stage_parameters

BACKWARD_TO_FORWARD = 2
ACTIVATION_PASSES = 3  # each saved activation is written once and read about twice per pass
OPTIMIZER_BYTES_PER_PARAMETER = 30  # gradient 4, master and two moments read and written 24, weight 2


class StepTime(Frozen):
    """Seconds of one step on the slowest stage. The terms add up to the total.

    Attributes:
        compute_seconds: matrix products and memory-bound operations, recomputation included.
        tensor_seconds: tensor-parallel collectives.
        pipeline_seconds: sending activations between stages.
        bubble_seconds: waiting for the pipeline to fill and drain.
        data_seconds: reducing gradients and gathering weights over replicas.
        optimizer_seconds: the update, bound by memory bandwidth.
    """

    compute_seconds: float
    tensor_seconds: float
    pipeline_seconds: float
    bubble_seconds: float
    data_seconds: float
    optimizer_seconds: float

    @property
    def total_seconds(self) -> float:
        return (
            self.compute_seconds
            + self.tensor_seconds
            + self.pipeline_seconds
            + self.bubble_seconds
            + self.data_seconds
            + self.optimizer_seconds
        )


def step_time(experiment: Experiment) -> StepTime:
    m, p = experiment.num_micro_batches, experiment.parallel.pipeline_parallel_size
    compute = _micro_batch_compute_seconds(experiment)
    tensor = _micro_batch_tensor_seconds(experiment)
    pipeline = _micro_batch_pipeline_seconds(experiment)
    return StepTime(
        compute_seconds=m * compute,
        tensor_seconds=m * tensor,
        pipeline_seconds=m * pipeline,
        bubble_seconds=(p - 1) * (compute + tensor + pipeline),
        data_seconds=_data_seconds(experiment),
        optimizer_seconds=_optimizer_seconds(experiment),
    )


def _micro_batch_compute_seconds(experiment: Experiment) -> float:
    """Forward, backward and recomputation of one micro-batch on the last stage, which also holds the output head."""
    model, parallel, device = experiment.model, experiment.parallel, experiment.cluster.device
    b, layers = experiment.batch.micro_batch_size, model.num_layers // parallel.pipeline_parallel_size
    repeated = {
        "none": 0,
        "selective": attention_core_forward_flops(model, b),
        "full": layer_forward_flops(model, b),
    }[parallel.recompute]
    passes = 1 + BACKWARD_TO_FORWARD
    flops = layers * (passes * layer_forward_flops(model, b) + repeated) + passes * head_forward_flops(model, b)
    rate = experiment.peak_flops_per_second * device.matmul_efficiency
    traffic = layers * layer_activation_bytes(experiment, "none") * ACTIVATION_PASSES
    forwards = passes + (parallel.recompute == "full")
    memory_bound = traffic * forwards / passes / device.memory_bandwidth_bytes_per_second
    return flops / parallel.tensor_parallel_size / rate + memory_bound


def _all_reduce_seconds(num_bytes: float, num_ranks: int, link: LinkSpec) -> float:
    """Ring all-reduce, alpha-beta: 2 (n-1)/n of the bytes, 2 (n-1) messages. Equal to reduce-scatter + all-gather."""
    if num_ranks == 1:
        return 0.0
    steps = 2 * (num_ranks - 1)
    return steps * (link.latency_seconds + num_bytes / num_ranks / link.bandwidth_bytes_per_second)


def _activation_bytes(experiment: Experiment) -> int:
    """The tensor that passes between layers, whole."""
    model, b = experiment.model, experiment.batch.micro_batch_size
    return b * model.seq_length * model.hidden_size * DTYPE_BYTES[experiment.precision.dtype]


def _micro_batch_tensor_seconds(experiment: Experiment) -> float:
    """Four all-reduces a layer (two forward, two backward), two more when the forward is repeated.

    Source: arXiv 2104.04473, section 3.2.
    """
    parallel = experiment.parallel
    link = experiment.cluster.link_spanning(parallel.tensor_parallel_size)
    layers = experiment.model.num_layers // parallel.pipeline_parallel_size
    reductions = layers * (4 + 2 * (parallel.recompute == "full"))
    return reductions * _all_reduce_seconds(_activation_bytes(experiment), parallel.tensor_parallel_size, link)


def _micro_batch_pipeline_seconds(experiment: Experiment) -> float:
    """One activation forward and its gradient backward; every tensor-parallel rank sends its own copy or shard."""
    parallel = experiment.parallel
    if parallel.pipeline_parallel_size == 1:
        return 0.0
    stride = parallel.world_size // parallel.pipeline_parallel_size  # ranks of one stage are consecutive
    link = experiment.cluster.link_spanning(2 * stride)
    sent = _activation_bytes(experiment) / (parallel.tensor_parallel_size if parallel.sequence_parallel else 1)
    return 2 * (link.latency_seconds + sent / link.bandwidth_bytes_per_second)


def _data_seconds(experiment: Experiment) -> float:
    """Gradients reduced in fp32 over the replicas; ZeRO-1 reduces to shards and gathers weights instead."""
    parallel = experiment.parallel
    link = experiment.cluster.link_spanning(parallel.tensor_parallel_size * experiment.data_parallel_size)
    gradients = stage_parameters(experiment, 0) * FLOAT32_BYTES
    whole = _all_reduce_seconds(gradients, experiment.data_parallel_size, link)
    if parallel.zero_stage == 0:
        return whole
    weights_to_gradients = DTYPE_BYTES[experiment.precision.dtype] / FLOAT32_BYTES
    return whole / 2 * (1 + weights_to_gradients)


def _optimizer_seconds(experiment: Experiment) -> float:
    shards = experiment.data_parallel_size if experiment.parallel.zero_stage >= 1 else 1
    traffic = stage_parameters(experiment, 0) / shards * OPTIMIZER_BYTES_PER_PARAMETER
    return traffic / experiment.cluster.device.memory_bandwidth_bytes_per_second
