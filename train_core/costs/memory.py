"""Memory of one rank of each pipeline stage, at the peak of a 1F1B step."""

from __future__ import annotations

from conf.experiment import Experiment
from conf.schema import Frozen, Recompute
from train_core.costs.parameters import stage_parameters

DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
FLOAT32_BYTES = 4
ADAM_STATES = 2
NORM_STATISTICS = 4  # mean and inverse deviation of both norms, per token


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


def layer_activation_bytes(experiment: Experiment, recompute: Recompute) -> int:
    """What one layer keeps for backward of one micro-batch, on one rank, with flash attention and no dropout.

    Counted exactly (a test holds it against the real layer): the inputs of both norms and of both column products are
    whole on every tensor-parallel rank, unless sequence parallelism shards them; qkv, the attention's output and both
    sides of GELU are always split. Source: arXiv 2205.05198, section 4, less its scores and dropout masks.
    """
    model, parallel, b = experiment.model, experiment.parallel, experiment.batch.micro_batch_size
    width, t = DTYPE_BYTES[experiment.precision.dtype], parallel.tensor_parallel_size
    tokens = b * model.seq_length
    held_tokens = tokens // t if parallel.sequence_parallel else tokens
    if recompute == "full":
        return held_tokens * model.hidden_size * width
    whole = held_tokens * (4 * model.hidden_size + NORM_STATISTICS)
    split = tokens * (4 * model.hidden_size + 2 * model.ffn_hidden_size) // t
    log_sum_exp = tokens * model.num_attention_heads // t * FLOAT32_BYTES if recompute == "none" else 0
    return (whole + split) * width + log_sum_exp


def _logits_bytes(experiment: Experiment) -> int:
    """Logits in compute precision and their fp32 softmax, of one micro-batch."""
    model = experiment.model
    elements = experiment.batch.micro_batch_size * model.seq_length * model.vocab_size
    width = DTYPE_BYTES[experiment.precision.dtype] + 2 * FLOAT32_BYTES
    return elements * width // experiment.parallel.tensor_parallel_size
