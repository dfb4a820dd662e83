"""One row of a table of configurations as a `Setup` and the trainer that it is priced for.

Columns are those of published tables (docs/estimate.md). What a row leaves empty takes the usual default; what cannot
be priced raises a `ConfigError` whose key is the column, so that a reason can name it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from conf.errors import ConfigError
from conf.knobs import plain_values
from conf.schema import BatchPlan, Dtype, Family, ParallelPlan, PrecisionPlan, Recompute
from conf.setup import Setup
from conf.world import ClusterSpec, ModelSpec
from sweeps.table.cells import Row, choice_of, count_of, flag_of, index_of, text_of
from sweeps.table.clusters import cluster_of
from sweeps.table.words import about_columns
from train_core.costs import IMPLEMENTATIONS, Implementation
from train_core.costs.counts.computable import require_computable
from train_core.costs.trainers.capabilities import require_runnable
from train_core.costs.trainers.declared_limits import CAPABILITIES

REQUIRED_COLUMNS = ("layers", "hidden", "heads", "seq", "num_gpus", "tp", "pp", "micro_batch", "global_batch")
DEVICE_COLUMNS = ("gpu", "cluster")
OPTIONAL_COLUMNS = (
    "ffn_hidden",
    "vocab",
    "kv_heads",
    "head_dim",
    "gated_mlp",
    "tied_embeddings",
    "vpp",
    "dp",
    "cp",
    "ep",
    "sequence_parallel",
    "precision",
    "recompute",
    "zero_stage",
    "flash_attention",
    "implementation",
    "stage",
)
MEASURED_COLUMNS = ("iter_time_s", "tokens_per_s", "tflops_per_gpu", "mfu_pct", "hfu_pct", "memory_gib")
USUAL_VOCABULARY = 51_200  # GPT-2's 50,257 as Megatron-LM pads it for 8 tensor ranks
MOST_LAYERS = 10_000  # the layers of every stage are listed, so that a slip here would cost time and memory
VOCABULARY_MULTIPLE = 128
PRECISIONS: dict[str, Dtype] = {
    "bf16": "bf16",
    "bfloat16": "bf16",
    "amp_bf16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
    "amp_fp16": "fp16",
    "fp32": "fp32",
    "float32": "fp32",
}
RECOMPUTATIONS: dict[str, Recompute] = {"none": "none", "no": "none", "selective": "selective", "full": "full"}
ZERO_STAGES: dict[str, Literal[0, 1, 2, 3]] = {"0": 0, "1": 1, "2": 2, "3": 3}
FLASH_ATTENTION = {
    "yes": True,
    "true": True,
    "1": True,
    "v1": True,
    "v2": True,
    "v3": True,
    "flash": True,
    "triton/flash": True,
    "triton": True,
    "sdpa": True,
    "no": False,
    "false": False,
    "0": False,
    "none": False,
}
USUAL_TRAINERS = {0: "megatron-lm", 1: "megatron-deepspeed", 2: "fsdp", 3: "fsdp"}
"""The trainer of a row that names none, by its ZeRO stage. A row of stage 2 or 3 that has no flash attention and does
not say FSDP is from before FSDP's time, and priced as DeepSpeed's."""


@dataclass(frozen=True)
class Configuration:
    """What a row describes, ready to be priced.

    Attributes:
        stage: the pipeline stage whose memory is asked for; None asks for that of the worst stage.
    """

    setup: Setup
    implementation: Implementation
    stage: int | None


def configuration_of(row: Row, implementation: str | None = None) -> Configuration:
    """What `row` describes, priced as `implementation` carries it out unless the row names one itself.

    Raises:
        ConfigError: what cannot be priced, with the column as its key.
    """
    for column in ("cp", "ep"):
        _require_one(row, column)
    try:
        return _configuration_of(row, implementation)
    except ConfigError as error:
        raise about_columns(error, row) from None


def _configuration_of(row: Row, implementation: str | None) -> Configuration:
    cluster, parallel = cluster_of(row), _parallel_of(row)
    setup = Setup(
        model=_model_of(row, parallel.tensor_parallel_size),
        cluster=_widened(cluster, parallel.world_size),
        parallel=parallel,
        batch=_batch_of(row),
        precision=_precision_of(row, cluster),
    )
    require_computable(setup.model, setup.batch.micro_batch_size)
    stage = index_of(row, "stage")
    if stage is not None and stage >= parallel.pipeline_parallel_size:
        remedy = f"Choose 0 to {parallel.pipeline_parallel_size - 1}."
        raise ConfigError("stage", stage, f"is not one of pp = {parallel.pipeline_parallel_size} stages", remedy)
    trainer = _implementation_of(row, parallel, implementation)
    # A row that was measured did run, and the usual trainer is a guess: neither is refused for what trainers can do.
    is_chosen = implementation is not None or text_of(row, "implementation")
    if is_chosen and not any(text_of(row, column) for column in MEASURED_COLUMNS):
        require_runnable(setup, trainer.name, CAPABILITIES[trainer.name])
    return Configuration(setup, trainer, stage)


def _require_one(row: Row, column: str) -> None:
    size = count_of(row, column, default=1)
    if size > 1:
        names = {"cp": "context parallelism", "ep": "expert parallelism"}
        raise ConfigError(column, size, f"{names[column]} is not modelled", "Only rows of 1 can be priced.")


def _widened(cluster: ClusterSpec, num_devices: int) -> ClusterSpec:
    """The cluster with as many nodes as the row's devices fill, if it has fewer.

    A published table may come from a larger machine of the same kind than the one in conf/cluster.
    """
    nodes = -(-num_devices // cluster.devices_per_node)
    return cluster if nodes <= cluster.num_nodes else cluster.model_copy(update={"num_nodes": nodes})


def _parallel_of(row: Row) -> ParallelPlan:
    tensor, pipeline, devices = count_of(row, "tp"), count_of(row, "pp"), count_of(row, "num_gpus")
    chunks = count_of(row, "vpp", default=1)
    if text_of(row, "dp") and tensor * pipeline * count_of(row, "dp") != devices:
        problem = f"times tp x pp = {tensor} x {pipeline} is not num_gpus = {devices}"
        raise ConfigError("dp", text_of(row, "dp"), problem, "Correct one of the four, or leave dp empty.")
    said = {
        "world_size": devices,
        "tensor_parallel_size": tensor,
        "pipeline_parallel_size": pipeline,
        "virtual_pipeline_size": chunks,
        "schedule": "interleaved" if chunks > 1 else "1f1b",
        # As in Megatron-LM, which turns it off where there is nothing to share with.
        "sequence_parallel": flag_of(row, "sequence_parallel", default=False) and tensor > 1,
        "zero_stage": choice_of(row, "zero_stage", ZERO_STAGES, default=0),
        "recompute": choice_of(row, "recompute", RECOMPUTATIONS, default="none"),
        # A row was run as it says, so that no layout is refused because a search would not choose it.
        "tensor_parallel_across_nodes": True,
    }
    return ParallelPlan(**{**plain_values("parallel"), **said})


def _model_of(row: Row, tensor_parallel_size: int) -> ModelSpec:
    hidden, heads, gated = count_of(row, "hidden"), count_of(row, "heads"), flag_of(row, "gated_mlp", default=False)
    family = _family_of(row, gated)
    return ModelSpec(
        name="row",
        family=family,
        num_layers=count_of(row, "layers", most=MOST_LAYERS),
        hidden_size=hidden,
        ffn_hidden_size=count_of(row, "ffn_hidden", default=4 * hidden),
        num_attention_heads=heads,
        num_query_groups=count_of(row, "kv_heads", default=heads),
        head_size=count_of(row, "head_dim") if text_of(row, "head_dim") else None,
        rotary_base=None,
        gated_mlp=gated,
        tied_embeddings=flag_of(row, "tied_embeddings", default=family == "gpt"),
        vocab_size=_padded(count_of(row, "vocab", default=USUAL_VOCABULARY), tensor_parallel_size),
        seq_length=count_of(row, "seq"),
    )


def _family_of(row: Row, gated: bool) -> Family:
    """Llama's if the row has a gated feed-forward layer or says how many heads of keys there are; else GPT's."""
    return "llama" if gated or text_of(row, "kv_heads") else "gpt"


def _padded(vocabulary: int, tensor_parallel_size: int) -> int:
    """Rows of the embedding: a multiple of 128 x tensor size, so that every rank's share suits its matrix units.

    Source: Megatron-LM, megatron/tokenizer/tokenizer.py, _vocab_size_with_padding.
    """
    multiple = VOCABULARY_MULTIPLE * tensor_parallel_size
    return -(-vocabulary // multiple) * multiple


def _batch_of(row: Row) -> BatchPlan:
    return BatchPlan(global_batch_size=count_of(row, "global_batch"), micro_batch_size=count_of(row, "micro_batch"))


def _precision_of(row: Row, cluster: ClusterSpec) -> PrecisionPlan:
    usual: Dtype = "bf16" if "bf16" in cluster.device.peak_flops_per_second else "fp16"
    dtype = choice_of(row, "precision", PRECISIONS, default=usual)
    # The loss scale has no effect on the price; the type wants some value.
    return PrecisionPlan(dtype=dtype, gradient_dtype="fp32", initial_loss_scale=1.0, loss_scale_window=1)


def _implementation_of(row: Row, parallel: ParallelPlan, given: str | None) -> Implementation:
    flash = choice_of(row, "flash_attention", FLASH_ATTENTION, default=False)
    by_stage = USUAL_TRAINERS[parallel.zero_stage]
    is_fsdp = flash or "fsdp" in text_of(row, "zero_stage").lower()
    usual = "megatron-deepspeed" if by_stage == "fsdp" and not is_fsdp else by_stage
    chosen = choice_of(row, "implementation", IMPLEMENTATIONS, default=IMPLEMENTATIONS[given or usual])
    return chosen.model_copy(update={"flash_attention": flash})
