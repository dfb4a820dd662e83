"""Names, types, units and invariants of everything a user can configure.

A *Spec* is a fact about the world, a *Plan* is a choice. Values live in the YAML groups beside this file; nothing here
has a default. What follows from several of them together is in `experiment`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from conf.credentials import without_credentials
from conf.errors import ConfigError, InfeasiblePlan

Count = Annotated[int, Field(gt=0)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Dtype = Literal["fp32", "bf16", "fp16"]
Recompute = Literal["none", "selective", "full"]
Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]
Family = Literal["gpt", "llama"]
Value = bool | int | float | str | None
ROTARY_BASE = 10_000.0
"""Of rotary positions, where a model names none. Source: arXiv 2104.09864, section 3.2.2."""


class Frozen(BaseModel):
    """Immutable, strict (no `"3"` for `3`), and closed: an unknown key is an error."""

    # A diverged loss is NaN; written as JSON null, pydantic's default, it could not be read back.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, ser_json_inf_nan="constants")


class ModelSpec(Frozen):
    """A transformer decoder.

    Attributes:
        family: `gpt` has learned positions, LayerNorm and biases; `llama` rotary positions, RMSNorm and no biases.
        ffn_hidden_size: width of the feed-forward layer (the papers' GPTs use 4 x hidden_size).
        num_query_groups: heads of keys and values, each shared by as many query heads (grouped-query attention).
        head_size: width of one head; null takes hidden_size / num_attention_heads.
        rotary_base: base of the frequencies of rotary positions; null takes 10,000.
        gated_mlp: SwiGLU, with a third matrix, instead of GELU.
        tied_embeddings: the output head is the token embedding.
        vocab_size: rows of the token embedding, padding included.
        seq_length: tokens per sequence; also the number of learned positions.
    """

    name: Name
    family: Family
    num_layers: Count
    hidden_size: Count
    ffn_hidden_size: Count
    num_attention_heads: Count
    num_query_groups: Count
    head_size: Count | None
    rotary_base: Annotated[float, Field(gt=1)] | None
    gated_mlp: bool
    tied_embeddings: bool
    vocab_size: Count
    seq_length: Count

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.num_attention_heads * (self.head_size or self.hidden_size // self.num_attention_heads)

    @property
    def key_value_size(self) -> int:
        """Width of all key heads together, which is that of all value heads."""
        return self.query_size // self.num_attention_heads * self.num_query_groups

    @model_validator(mode="after")
    def _heads_divide(self) -> ModelSpec:
        if self.head_size is None and self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                "model.num_attention_heads",
                self.num_attention_heads,
                f"does not divide model.hidden_size = {self.hidden_size}",
                "Choose a number of heads that divides it, or give model.head_size.",
            )
        if self.num_attention_heads % self.num_query_groups:
            raise ConfigError(
                "model.num_query_groups",
                self.num_query_groups,
                f"does not divide model.num_attention_heads = {self.num_attention_heads}",
                "Choose a number of query groups that divides it.",
            )
        if self.family == "llama" and self.query_size // self.num_attention_heads % 2:
            raise ConfigError(
                "model.head_size",
                self.query_size // self.num_attention_heads,
                "is odd, and rotary positions turn pairs of its elements",
                "Choose an even model.head_size, or fewer or more heads.",
            )
        return self


class DeviceSpec(Frozen):
    """One schedulable accelerator (one MI250X GCD, not the card), or one CPU rank: what its maker states.

    Attributes:
        kind: what the trainer runs on; `cpu` means gloo, `gpu` NCCL or RCCL.
        peak_flops_per_second: dense peak by precision.
        peak_source: where the peak comes from; the word `measured` means that the trainer measures a matmul peak in the
            same run and utilization is stated against that, while the numbers given here serve only the prediction.
        num_multiprocessors: units that each compute one tile of a matrix product at a time (SMs, CUs; 1 on a CPU rank).
        watts: design power, of one device.
        price_per_hour: US dollars of one device-hour; null where nobody names a price.
    """

    name: str
    kind: Literal["gpu", "cpu"]
    peak_flops_per_second: dict[Dtype, Positive]
    peak_source: str
    memory_bytes: Count
    memory_bandwidth_bytes_per_second: Positive
    memory_source: str
    num_multiprocessors: Count
    watts: Positive
    watts_source: str
    price_per_hour: Positive | None
    price_source: str


class LinkSpec(Frozen):
    """What connects blocks of `num_devices` consecutive devices.

    Attributes:
        bandwidth_bytes_per_second: per device and direction, when all devices of the block communicate, as stated by
            the maker; collectives reach ClusterSpec.efficiency.link of it.
    """

    name: str
    num_devices: Count
    bandwidth_bytes_per_second: Positive
    latency_seconds: NonNegative


class EfficiencySpec(Frozen):
    """The constants of the cost model that no data sheet states; `calibrate` measures or fits them.

    Attributes:
        matmul: share of the peak that large, well-shaped matrix products reach in training.
        attention: the same of a fused (flash) attention kernel.
        memory: share of the memory bandwidth that memory-bound kernels reach.
        link: share of a link's bandwidth that collectives and transfers reach.
        kernel_seconds: what one kernel costs on top: launch, ramp-up and tail.
        jitter: share of the step lost to the slowest rank with every doubling of the nodes.
        source: on what each was fitted or measured; a row on which one was fitted is no test of the prediction.
    """

    matmul: Fraction
    attention: Fraction
    memory: Fraction
    link: Fraction
    kernel_seconds: NonNegative
    jitter: Annotated[float, Field(ge=0, lt=1)]
    source: str


class ClusterSpec(Frozen):
    """Nodes of equal devices. `links` go from the closest tier to the widest, which also spans whatever is wider.

    Attributes:
        cores_per_node: on a CPU, the cores that the ranks of a node share; null gives every rank a device of its own.
        gpu_names: what tables of configurations call this cluster's device (the `gpu` column of `trisweep estimate`).
        reserved_memory_bytes: taken on each device by the framework and the collectives library.
        fragmentation: lost to the allocator's gaps, as a share of the bytes of activations.
    """

    name: Name
    num_nodes: Count
    devices_per_node: Count
    cores_per_node: Count | None
    gpu_names: Annotated[tuple[str, ...], Field(strict=False)]
    device: DeviceSpec
    efficiency: EfficiencySpec
    reserved_memory_bytes: Annotated[int, Field(ge=0)]
    fragmentation: NonNegative
    reserved_memory_source: str
    links: Annotated[tuple[LinkSpec, ...], Field(min_length=1, strict=False)]

    @property
    def num_devices(self) -> int:
        return self.num_nodes * self.devices_per_node

    @model_validator(mode="after")
    def _links_widen(self) -> ClusterSpec:
        extents = [link.num_devices for link in self.links]
        if extents != sorted(set(extents)):
            raise ConfigError(
                "cluster.links", extents, "num_devices must grow from tier to tier", "List the closest tier first."
            )
        return self


class ParallelPlan(Frozen):
    """How one model is laid over the devices. The data-parallel size follows from `world_size`.

    Attributes:
        world_size: ranks of the job, one per device (on a CPU, ranks share the cores). In YAML, null stands for every
            device of the cluster.
        virtual_pipeline_size: model chunks on every stage; more than 1 only with the interleaved schedule.
        schedule: order of forward and backward passes on a stage. `gpipe` runs all forward passes first; `zero-bubble`
            is ZB-H1: weight gradients fill waits.
        layers_per_stage: layers of each stage, first to last; null spreads them evenly.
        sequence_parallel: shard LayerNorm and residual activations over the tensor-parallel ranks.
        zero_stage: what the data-parallel ranks share out: 0 nothing, 1 the optimizer state, 2 also the gradients,
            3 also the weights.
        recompute: activations recomputed in backward: none, selective (attention core), full (whole layer).
        recompute_every: recompute in the first layer of each model chunk and in every n-th after it; 1 means all.
        tensor_parallel_across_nodes: allow a tensor-parallel group to leave its node.
    """

    world_size: Count
    tensor_parallel_size: Count
    pipeline_parallel_size: Count
    virtual_pipeline_size: Count
    schedule: Schedule
    layers_per_stage: Annotated[tuple[Count, ...], Field(strict=False)] | None
    sequence_parallel: bool
    zero_stage: Literal[0, 1, 2, 3]
    recompute: Recompute
    recompute_every: Count
    tensor_parallel_across_nodes: bool

    @model_validator(mode="after")
    def _chunks_need_interleaving(self) -> ParallelPlan:
        if (self.virtual_pipeline_size > 1) != (self.schedule == "interleaved"):
            raise InfeasiblePlan(
                "parallel.virtual_pipeline_size",
                self.virtual_pipeline_size,
                f"does not go with parallel.schedule = {self.schedule}",
                "Use schedule=interleaved with 2 or more chunks, any other schedule with 1.",
            )
        return self


class BatchPlan(Frozen):
    """Sequences per optimizer step, and per forward pass of one data-parallel replica."""

    global_batch_size: Count
    micro_batch_size: Count


class PrecisionPlan(Frozen):
    """Type of weights and activations. The optimizer works in fp32.

    Attributes:
        gradient_dtype: in which gradients are accumulated over micro-batches and reduced over replicas; `bf16` goes
            with bf16 weights alone.
        initial_loss_scale: fp16 multiplies the loss by this, so that small gradients do not vanish; it halves at every
            overflow. Other precisions do not scale.
        loss_scale_window: steps without overflow after which fp16 doubles the scale.
    """

    dtype: Dtype
    gradient_dtype: Literal["fp32", "bf16"]
    initial_loss_scale: Positive
    loss_scale_window: Count

    @model_validator(mode="after")
    def _gradients_are_as_wide_as_weights(self) -> PrecisionPlan:
        if self.gradient_dtype == "bf16" and self.dtype != "bf16":
            raise ConfigError(
                "precision.gradient_dtype",
                "bf16",
                f"is narrower than precision.dtype = {self.dtype} allows",
                "Use gradient_dtype=fp32, or precision=bf16.",
            )
        return self


class DataSpec(Frozen):
    """Where tokens come from.

    Attributes:
        source: `text` reads files, `megatron` an indexed dataset, `synthetic` draws random tokens (for pure
            throughput).
        path: a text file or a folder of them, null takes the Python standard library's sources; of an indexed dataset
            the path without `.bin` and `.idx`.
        tokenizer: `bytes`, or `bpe` trained on the text up to the model's vocabulary; null where no text is read.
        max_bytes: text beyond this many bytes is not read; null where no text is read.
        cache_dir: folder of the memory-mapped token files; null puts them beside the trials.
        held_out_fraction: the last part of the tokens, never trained on, for the held-out loss.
    """

    source: Literal["text", "megatron", "synthetic"]
    path: str | None
    tokenizer: Literal["bytes", "bpe"] | None
    max_bytes: Count | None
    cache_dir: str | None
    held_out_fraction: Annotated[float, Field(ge=0, lt=1)]

    @model_validator(mode="before")
    @classmethod
    def _nothing_stands_for_no_text(cls, value: object) -> object:
        """Folders from before the two keys could be null hold these values where no text is read."""
        if not isinstance(value, dict) or value.get("source") == "text":
            return value
        is_dummy = (value.get("tokenizer"), value.get("max_bytes")) == ("bytes", 1)
        return {**value, "tokenizer": None, "max_bytes": None} if is_dummy else value

    @model_validator(mode="after")
    def _text_is_read_somehow(self) -> DataSpec:
        for key in ("tokenizer", "max_bytes"):
            if self.source == "text" and getattr(self, key) is None:
                raise ConfigError(f"data.{key}", None, "does not say how to read text", f"Give data.{key}=VALUE.")
        return self


class TrainingPlan(Frozen):
    """The optimizer's schedule, and how many steps are measured.

    Attributes:
        num_steps: optimizer steps in all.
        num_warmup_steps: first steps that are left out of the timing.
        learning_rate_warmup_steps: linear warm-up, then a cosine down to min_learning_rate at num_steps.
        clip_gradient_norm: global norm over every axis; null does not clip.
        dropout: after the embedding, in and after attention, and after the feed-forward layer.
        compile_layers: pass every layer through torch.compile.
        evaluate_every: steps between evaluations of the held-out loss; null never evaluates.
        num_evaluation_batches: global batches that one evaluation averages over.
    """

    num_steps: Count
    num_warmup_steps: Annotated[int, Field(ge=0)]
    learning_rate: Positive
    min_learning_rate: NonNegative
    learning_rate_warmup_steps: Annotated[int, Field(ge=0)]
    weight_decay: NonNegative
    adam_beta1: Annotated[float, Field(ge=0, lt=1)]
    adam_beta2: Annotated[float, Field(ge=0, lt=1)]
    adam_epsilon: Positive
    clip_gradient_norm: Positive | None
    dropout: Annotated[float, Field(ge=0, lt=1)]
    compile_layers: bool
    evaluate_every: Count | None
    num_evaluation_batches: Count
    seed: Annotated[int, Field(ge=0)]

    @model_validator(mode="after")
    def _some_step_is_measured(self) -> TrainingPlan:
        if self.num_warmup_steps >= self.num_steps:
            raise ConfigError(
                "training.num_warmup_steps",
                self.num_warmup_steps,
                f"leaves none of training.num_steps = {self.num_steps} to measure",
                "Use fewer warm-up steps or more steps.",
            )
        return self


class CheckpointPlan(Frozen):
    """When training is saved, and where it goes on from.

    Attributes:
        every_steps: steps between checkpoints, beside that of the last step; SIGUSR2, SIGTERM and Ctrl-C ask for one
            more, after which the training ends. Null never saves: SIGTERM and Ctrl-C end the training at once.
        keep_last: whole checkpoints that are kept; older ones are deleted.
        asynchronous: write beside the training that goes on.
        load: a checkpoint folder, or Hugging Face weights (`*.safetensors`), to start from; null starts from random
            weights. A trial that was interrupted goes on from its own last checkpoint whatever is given here.
    """

    every_steps: Count | None
    keep_last: Count
    asynchronous: bool
    load: str | None


class WatchPlan(Frozen):
    """What is looked out for while a job runs.

    Attributes:
        hang_seconds: a collective or transfer that waits longer ends the job, naming who waits in what.
        compare_replicas_every: steps between comparisons of the weights' checksums over the data-parallel ranks; null
            never compares.
        straggler_ratio: a rank whose own work takes longer than this many times the median rank's is named.
        max_overflows: fp16 steps in a row that overflow before the job ends.
    """

    hang_seconds: Positive
    compare_replicas_every: Count | None
    straggler_ratio: Annotated[float, Field(gt=1)]
    max_overflows: Count


class ProfilePlan(Frozen):
    """What is recorded beside the step time.

    Attributes:
        breakdown: say in `measurement.json` how much of a step each rank computes, communicates and waits.
        trace_steps: steps of which torch's profiler writes a trace.
        trace_ranks: ranks that write one.
    """

    breakdown: bool
    trace_steps: Annotated[tuple[Count, ...], Field(strict=False)]
    trace_ranks: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False)]


class SlurmSpec(Frozen):
    """Site settings of one Slurm machine.

    Attributes:
        gpu_request: how devices are asked for: `gpus-per-node`, `gres` (`gpu:N`) or `none` (whole nodes).
        max_array_size: elements of one job array; null asks `scontrol show config`.
        array_parallelism: elements of an array that run at once (`%N`).
        setup: shell lines before srun (modules, environments).
        container_prefix: put before the Python of the job, such as `apptainer exec image.sif`; null for none.
        python: the interpreter on the compute nodes; null takes the one that submits.
        extra_sbatch: further sbatch options, long names without the leading dashes.
        max_resubmits: how often a trial that lost its node is submitted again.
    """

    partition: str | None
    account: str | None
    qos: str | None
    time_limit_minutes: Count
    constraint: str | None
    gpu_request: Literal["gpus-per-node", "gres", "none"]
    cpus_per_task: Count | None
    max_array_size: Count | None
    array_parallelism: Count
    setup: Annotated[tuple[str, ...], Field(strict=False)]
    srun_args: Annotated[tuple[str, ...], Field(strict=False)]
    container_prefix: str | None
    python: str | None
    environment: dict[str, str]
    extra_sbatch: dict[str, str | int | bool]
    max_resubmits: Annotated[int, Field(ge=0)]


class TrackingSpec(Frozen):
    """Where MLflow stores runs. `sqlite` keeps one file under the output folder; `server` needs `uri`."""

    kind: Literal["sqlite", "server"]
    uri: str | None
    experiment: str

    @model_validator(mode="after")
    def _server_has_uri(self) -> TrackingSpec:
        if self.kind == "server" and not self.uri:
            raise ConfigError("tracking.uri", self.uri, "a tracking server needs an address", "Give tracking.uri=URL.")
        return self

    def without_credentials(self) -> TrackingSpec:
        """As records keep it: a password in the address is nobody else's."""
        return self.model_copy(update={"uri": self.uri and without_credentials(self.uri)})

    def signed_in_as(self, configured: TrackingSpec) -> TrackingSpec:
        """With the credentials of the configuration, where that names the same store."""
        return configured if configured.without_credentials() == self else self


class PointSet(Frozen):
    """Points as a rectangular grid (`axes`) and as a list (`points`); keys are dotted, values plain."""

    axes: dict[str, Annotated[tuple[Value, ...], Field(strict=False, min_length=1)]]
    points: Annotated[tuple[dict[str, Value], ...], Field(strict=False)]
    baseline: dict[str, Value]


class ProxySpec(PointSet):
    """The small stand-in that is measured where there is no cluster.

    Attributes:
        overrides: Hydra overrides that turn the full-size configuration into the proxy's.
        time_limit_minutes: a proxy trial that runs longer is ended.
    """

    overrides: Annotated[tuple[str, ...], Field(strict=False)]
    time_limit_minutes: Positive


class SearchPlan(Frozen):
    """How a sweep comes to its points.

    Attributes:
        kind: `grid` takes those that the sweep lists, `planner` those that the search of all plans chooses.
        top_k: plans that the planner takes for their predicted speed.
        num_probes: further ones, each of which tests an assumption of the prediction.
    """

    kind: Literal["grid", "planner"]
    top_k: Annotated[int, Field(ge=0)]
    num_probes: Annotated[int, Field(ge=0)]

    @model_validator(mode="after")
    def _planner_takes_some(self) -> SearchPlan:
        if self.kind == "planner" and not self.top_k:
            raise ConfigError("search.top_k", self.top_k, "leaves the planner no plan to take", "Use 1 or more.")
        return self


class SweepSpec(PointSet):
    """A question, the points that answer it, and how many of them to measure.

    Attributes:
        max_trials: measure this many of the points that fit, the best predicted first (the baseline always).
        published: rows of `results/published.csv` (its `id` column) to show beside the measurements.
    """

    name: Name
    question: str
    max_trials: Count
    published: Annotated[tuple[str, ...], Field(strict=False)]
    proxy: ProxySpec | None
