"""Memory of one rank of each pipeline stage, at the peak of a 1F1B step."""

from __future__ import annotations

from conf.schema import Experiment, Frozen
from train_core.costs.parameters import stage_parameters

DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
FLOAT32_BYTES = 4
ADAM_STATES = 2


class StageMemory(Frozen):
    """Bytes on one rank of a pipeline stage, by what they hold."""

    parameters: int
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    logits_bytes: int
    reserved_bytes: int

    @property
    def total_bytes(self) -> int:
        return (
            self.weights_bytes
            + self.gradients_bytes
            + self.optimizer_bytes
            + self.activations_bytes
            + self.logits_bytes
            + self.reserved_bytes
        )


def stage_memories(experiment: Experiment) -> tuple[StageMemory, ...]:
    """One entry for every pipeline stage, first to last."""
    stages = range(experiment.parallel.pipeline_parallel_size)
    return tuple(_stage_memory(experiment, stage) for stage in stages)


def _stage_memory(experiment: Experiment, stage: int) -> StageMemory:
    parameters = stage_parameters(experiment, stage)
    is_last = stage == experiment.parallel.pipeline_parallel_size - 1
    return StageMemory(
        parameters=parameters,
        weights_bytes=parameters * DTYPE_BYTES[experiment.precision.dtype],
        gradients_bytes=parameters * FLOAT32_BYTES,
        optimizer_bytes=_optimizer_bytes(experiment, parameters),
        activations_bytes=_activations_bytes(experiment, stage),
        logits_bytes=_logits_bytes(experiment) if is_last else 0,
        reserved_bytes=experiment.cluster.device.reserved_memory_bytes,
    )


def _optimizer_bytes(experiment: Experiment, parameters: int) -> int:
    """Adam's two fp32 states, and an fp32 master copy where the weights are not fp32; ZeRO-1 shards them."""
    copies = ADAM_STATES + (experiment.precision.dtype != "fp32")
    shards = experiment.data_parallel_size if experiment.parallel.zero_stage >= 1 else 1
    return copies * FLOAT32_BYTES * -(-parameters // shards)


def micro_batches_in_flight(experiment: Experiment, stage: int) -> int:
    """Forward passes a stage holds at once under 1F1B. Source: arXiv 2104.04473, section 2.2.1."""
    return min(experiment.num_micro_batches, experiment.parallel.pipeline_parallel_size - stage)


def _activations_bytes(experiment: Experiment, stage: int) -> int:
    """Saved for backward by all micro-batches in flight; under full recomputation also one layer's working set."""
    layers = experiment.model.num_layers // experiment.parallel.pipeline_parallel_size
    in_flight = micro_batches_in_flight(experiment, stage)
    kept = layers * in_flight * layer_activation_bytes(experiment, experiment.parallel.recompute)
    working_set = layer_activation_bytes(experiment, "none") if experiment.parallel.recompute == "full" else 0
    return kept + working_set


def layer_activation_bytes(experiment: Experiment, recompute: str) -> int:
    """What one layer saves for backward of one micro-batch, on one rank, with flash attention and no dropout.

    Of 34 s b h bytes (16-bit) per layer, 10 are not sharded by plain tensor parallelism; flash attention keeps no
    scores; dropout masks (2 bytes) are absent here. Source: arXiv 2205.05198, table 2.
    """
    model, parallel = experiment.model, experiment.parallel
    width = DTYPE_BYTES[experiment.precision.dtype]
    elements = experiment.batch.micro_batch_size * model.seq_length * model.hidden_size
    t = parallel.tensor_parallel_size
    whole = t if parallel.sequence_parallel else 1  # sequence parallelism shards what tensor parallelism leaves whole
    if recompute == "full":
        return elements * width // whole
    outside_split = 4 * elements // whole  # inputs of both norms and of both column products
    ffn_share = 2 * model.ffn_hidden_size / model.hidden_size  # before and after GELU
    split = int((4 + ffn_share) * elements) // t  # q, k, v, attention output, feed-forward
    return (outside_split + split) * width


def _logits_bytes(experiment: Experiment) -> int:
    """Logits in compute precision and their fp32 softmax, of one micro-batch."""
    model = experiment.model
    elements = experiment.batch.micro_batch_size * model.seq_length * model.vocab_size
    width = DTYPE_BYTES[experiment.precision.dtype] + 2 * FLOAT32_BYTES
    return elements * width // experiment.parallel.tensor_parallel_size
