"""One row of a table of configurations as an `Experiment` and the trainer that it is priced for.

Columns are those of published tables (docs/estimate.md). What a row leaves empty takes the usual default; what cannot
be priced raises a `ConfigError` whose key is the column, so that a reason can name it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from conf.errors import ConfigError
from conf.experiment import Experiment
from conf.load import options
from conf.schema import BatchPlan, ClusterSpec, Dtype, Family, ModelSpec, ParallelPlan, PrecisionPlan, Recompute
from sweeps.known_clusters import cluster_named, clusters_by_gpu, default_settings, known_gpus
from sweeps.row_cells import Row, choice_of, count_of, flag_of, index_of, text_of
from train_core.costs import IMPLEMENTATIONS, Implementation, num_parameters

REQUIRED_COLUMNS = ("layers", "hidden", "heads", "seq", "num_gpus", "tp", "pp", "micro_batch", "global_batch")
DEVICE_COLUMNS = ("gpu", "cluster")
USUAL_VOCABULARY = 51_200
MOST_LAYERS = 10_000
LARGEST_SIZE = 2**56  # elements or parameters; bytes of anything larger would not be exact
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
COLUMN_OF_KEY = {
    "model.num_layers": "layers",
    "model.hidden_size": "hidden",
    "model.ffn_hidden_size": "ffn_hidden",
    "model.num_attention_heads": "heads",
    "model.num_query_groups": "kv_heads",
    "model.head_size": "head_dim",
    "model.vocab_size": "vocab",
    "model.seq_length": "seq",
    "parallel.world_size": "num_gpus",
    "parallel.tensor_parallel_size": "tp",
    "parallel.pipeline_parallel_size": "pp",
    "parallel.virtual_pipeline_size": "vpp",
    "parallel.sequence_parallel": "sequence_parallel",
    "parallel.zero_stage": "zero_stage",
    "parallel.recompute": "recompute",
    "batch.global_batch_size": "global_batch",
    "batch.micro_batch_size": "micro_batch",
    "precision.dtype": "precision",
    "parallel.schedule": "vpp",
    "schedule=1f1b": "vpp=1",
    ", and parallel.layers_per_stage=null": "",
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "data_parallel_size": "dp",
    "micro_batch_size": "micro_batch",
}


@dataclass(frozen=True)
class Configuration:
    """A row that can be priced.

    Attributes:
        stage: the pipeline stage whose memory is asked for; None takes the worst one's.
    """

    experiment: Experiment
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
        raise _about_columns(error, row) from None


def _configuration_of(row: Row, implementation: str | None) -> Configuration:
    cluster, parallel, defaults = _cluster_of(row), _parallel_of(row), default_settings()
    experiment = Experiment(
        model=_model_of(row, parallel.tensor_parallel_size),
        cluster=_widened(cluster, parallel.world_size),
        parallel=parallel,
        batch=_batch_of(row),
        precision=_precision_of(row, cluster),
        data=defaults.data,
        training=defaults.training,
    )
    _require_computable(experiment)
    stage = index_of(row, "stage")
    if stage is not None and stage >= parallel.pipeline_parallel_size:
        remedy = f"Choose 0 to {parallel.pipeline_parallel_size - 1}."
        raise ConfigError("stage", stage, f"is not one of pp = {parallel.pipeline_parallel_size} stages", remedy)
    return Configuration(experiment, _implementation_of(row, parallel, implementation), stage)


def _require_one(row: Row, column: str) -> None:
    size = count_of(row, column, default=1)
    if size > 1:
        names = {"cp": "context parallelism", "ep": "expert parallelism"}
        raise ConfigError(column, size, f"{names[column]} is not modelled", "Only rows of 1 can be priced.")


def _cluster_of(row: Row) -> ClusterSpec:
    """The cluster that the row names, else the one that claims its device."""
    cluster, gpu = text_of(row, "cluster"), text_of(row, "gpu")
    if cluster and cluster not in options("cluster"):
        raise ConfigError("cluster", cluster, "is no file of conf/cluster", f"Known: {', '.join(options('cluster'))}.")
    if not gpu and not cluster:
        raise ConfigError("gpu", gpu, "is empty, and no device is taken for granted", f"Known: {_shown_gpus()}.")
    if not gpu:
        return cluster_named(cluster)
    claimed_by = clusters_by_gpu().get(gpu.lower())
    if not claimed_by:
        raise ConfigError("gpu", gpu, "is not the device of a known cluster", f"Known: {_shown_gpus()}.")
    if not cluster and len(claimed_by) > 1:
        remedy = f"Name one of {', '.join(claimed_by)} in the column cluster."
        raise ConfigError("gpu", gpu, "is claimed by more than one cluster", remedy)
    chosen = cluster_named(cluster or claimed_by[0])
    if chosen.device.name not in {cluster_named(claim).device.name for claim in claimed_by}:
        problem = f"is not the device of cluster = {cluster}, which has {chosen.device.name}"
        raise ConfigError("gpu", gpu, problem, "Correct one of the two, or leave gpu empty.")
    return chosen


def _shown_gpus() -> str:
    return ", ".join(known_gpus())


def _widened(cluster: ClusterSpec, num_devices: int) -> ClusterSpec:
    """The cluster with as many nodes as the row's devices fill, where it has fewer."""
    nodes = -(-num_devices // cluster.devices_per_node)
    return cluster if nodes <= cluster.num_nodes else cluster.model_copy(update={"num_nodes": nodes})


def _parallel_of(row: Row) -> ParallelPlan:
    tensor, pipeline, devices = count_of(row, "tp"), count_of(row, "pp"), count_of(row, "num_gpus")
    chunks = count_of(row, "vpp", default=1)
    if text_of(row, "dp") and tensor * pipeline * count_of(row, "dp") != devices:
        problem = f"times tp x pp = {tensor} x {pipeline} is not num_gpus = {devices}"
        raise ConfigError("dp", text_of(row, "dp"), problem, "Correct one of the four, or leave dp empty.")
    return ParallelPlan(
        world_size=devices,
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        virtual_pipeline_size=chunks,
        schedule="interleaved" if chunks > 1 else "1f1b",
        layers_per_stage=None,
        # As in Megatron-LM, which turns it off where there is nothing to share with.
        sequence_parallel=flag_of(row, "sequence_parallel", default=False) and tensor > 1,
        zero_stage=choice_of(row, "zero_stage", ZERO_STAGES, default=0),
        recompute=choice_of(row, "recompute", RECOMPUTATIONS, default="none"),
        tensor_parallel_across_nodes=True,
    )


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
        gated_mlp=gated,
        tied_embeddings=flag_of(row, "tied_embeddings", default=family == "gpt"),
        vocab_size=_padded(count_of(row, "vocab", default=USUAL_VOCABULARY), tensor_parallel_size),
        seq_length=count_of(row, "seq"),
    )


def _family_of(row: Row, gated: bool) -> Family:
    """Llama's where the row speaks of a gated feed-forward layer or of grouped keys; else GPT's."""
    return "llama" if gated or text_of(row, "kv_heads") else "gpt"


def _padded(vocabulary: int, tensor_parallel_size: int) -> int:
    """Rows of the embedding: padded where tensor ranks could not share them out evenly.

    Source: Megatron-LM, megatron/tokenizer/tokenizer.py, _vocab_size_with_padding: to a multiple of 128 x tensor size.
    """
    multiple = VOCABULARY_MULTIPLE * tensor_parallel_size
    return vocabulary if vocabulary % tensor_parallel_size == 0 else -(-vocabulary // multiple) * multiple


def _batch_of(row: Row) -> BatchPlan:
    return BatchPlan(global_batch_size=count_of(row, "global_batch"), micro_batch_size=count_of(row, "micro_batch"))


def _precision_of(row: Row, cluster: ClusterSpec) -> PrecisionPlan:
    usual: Dtype = "bf16" if "bf16" in cluster.device.peak_flops_per_second else "fp16"
    return PrecisionPlan(dtype=choice_of(row, "precision", PRECISIONS, default=usual))


def _require_computable(experiment: Experiment) -> None:
    """A slip of the keyboard can describe sizes that 64-bit arithmetic turns into nonsense."""
    model, tokens = experiment.model, experiment.batch.micro_batch_size * experiment.model.seq_length
    widths = model.seq_length * model.num_attention_heads + model.hidden_size + model.ffn_hidden_size + model.vocab_size
    if max(num_parameters(model), model.num_layers * tokens * widths) > LARGEST_SIZE:
        problem = (
            f"makes a model of {num_parameters(model) / 1e9:,.0f} billion parameters, or activations, beyond pricing"
        )
        raise ConfigError(
            "model.hidden_size", model.hidden_size, problem, "Correct layers, hidden, seq or micro_batch."
        )


def _implementation_of(row: Row, parallel: ParallelPlan, given: str | None) -> Implementation:
    usual = IMPLEMENTATIONS[given or USUAL_TRAINERS[parallel.zero_stage]]
    chosen = choice_of(row, "implementation", IMPLEMENTATIONS, default=usual)
    flash = choice_of(row, "flash_attention", FLASH_ATTENTION, default=False)
    return chosen.model_copy(update={"flash_attention": flash})


def _about_columns(error: ConfigError, row: Row) -> ConfigError:
    """The same complaint in the words of the table: columns and cells instead of dotted keys and their values."""
    key, problem, remedy = (_in_columns(text) for text in (error.key, error.problem, error.remedy))
    return ConfigError(key, text_of(row, key) or error.value, problem, remedy)


def _in_columns(text: str) -> str:
    for dotted, column in COLUMN_OF_KEY.items():
        text = text.replace(dotted, column)
    return text
