"""Names, types, units and invariants of everything a user can configure.

A *Spec* is a fact about the world, a *Plan* is a choice. Values live in the YAML groups beside this file; nothing here
has a default. An `Experiment` is the one immutable value that the cost model and the trainer both take.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from conf.errors import ConfigError, InfeasiblePlan

Count = Annotated[int, Field(gt=0)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Dtype = Literal["fp32", "bf16", "fp16"]
Recompute = Literal["none", "selective", "full"]
Value = bool | int | float | str | None


class Frozen(BaseModel):
    """Immutable, strict (no `"3"` for `3`), and closed: an unknown key is an error."""

    # A diverged loss is NaN; written as JSON null, pydantic's default, it could not be read back.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, ser_json_inf_nan="constants")


class ModelSpec(Frozen):
    """A GPT: learned positions, LayerNorm, GELU, biases, embedding tied to the output head.

    Attributes:
        ffn_hidden_size: width of the feed-forward layer (the papers use 4 x hidden_size).
        vocab_size: rows of the token embedding, padding included.
        seq_length: tokens per sequence; also the number of learned positions.
    """

    name: Name
    num_layers: Count
    hidden_size: Count
    ffn_hidden_size: Count
    num_attention_heads: Count
    vocab_size: Count
    seq_length: Count

    @model_validator(mode="after")
    def _heads_divide_hidden(self) -> ModelSpec:
        if self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                "model.num_attention_heads",
                self.num_attention_heads,
                f"does not divide model.hidden_size = {self.hidden_size}",
                "Choose a number of heads that divides it.",
            )
        return self


class DeviceSpec(Frozen):
    """One schedulable accelerator (one MI250X GCD, not the card), or one CPU rank.

    Attributes:
        kind: what the trainer runs on; `cpu` means gloo, `gpu` NCCL or RCCL.
        peak_flops_per_second: dense peak by precision.
        peak_source: where the peak comes from; the word `measured` means that the trainer measures a matmul peak in the
            same run and utilization is stated against that, while the numbers given here serve only the prediction.
        matmul_efficiency: share of the peak that a large matrix product reaches.
        reserved_memory_bytes: taken by the framework, the collectives library and fragmentation.
    """

    name: str
    kind: Literal["gpu", "cpu"]
    peak_flops_per_second: dict[Dtype, Positive]
    peak_source: str
    memory_bytes: Count
    memory_bandwidth_bytes_per_second: Positive
    matmul_efficiency: Fraction
    reserved_memory_bytes: Annotated[int, Field(ge=0)]


class LinkSpec(Frozen):
    """What connects blocks of `num_devices` consecutive devices.

    Attributes:
        bandwidth_bytes_per_second: per device and direction, when all devices of the block communicate.
    """

    name: str
    num_devices: Count
    bandwidth_bytes_per_second: Positive
    latency_seconds: NonNegative


class ClusterSpec(Frozen):
    """Nodes of equal devices. `links` go from the closest tier to the widest, which also spans whatever is wider."""

    name: Name
    num_nodes: Count
    devices_per_node: Count
    device: DeviceSpec
    links: Annotated[tuple[LinkSpec, ...], Field(min_length=1, strict=False)]

    @property
    def num_devices(self) -> int:
        return self.num_nodes * self.devices_per_node

    def link_spanning(self, num_devices: int) -> LinkSpec:
        """The closest tier whose blocks hold `num_devices` consecutive devices, else the widest."""
        return next((link for link in self.links if link.num_devices >= num_devices), self.links[-1])

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
        sequence_parallel: shard LayerNorm and residual activations over the tensor-parallel ranks.
        zero_stage: 0 keeps the optimizer state on every data-parallel rank, 1 shards it.
        recompute: activations recomputed in backward: none, selective (attention core), full (whole layer).
        tensor_parallel_across_nodes: allow a tensor-parallel group to leave its node.
    """

    world_size: Count
    tensor_parallel_size: Count
    pipeline_parallel_size: Count
    sequence_parallel: bool
    zero_stage: Literal[0, 1]
    recompute: Recompute
    tensor_parallel_across_nodes: bool


class BatchPlan(Frozen):
    """Sequences per optimizer step, and per forward pass of one data-parallel replica."""

    global_batch_size: Count
    micro_batch_size: Count


class PrecisionPlan(Frozen):
    """Type of weights and activations. Gradients are accumulated, and the optimizer works, in fp32."""

    dtype: Literal["fp32", "bf16"]


class DataSpec(Frozen):
    """Where tokens come from.

    Attributes:
        source: `text` reads files, `synthetic` draws random tokens (for pure throughput).
        path: a text file or a folder of them; null takes the Python standard library's sources.
        tokenizer: `bytes`, or `bpe` trained on the text up to the model's vocabulary.
        max_bytes: text beyond this many bytes is not read.
        cache_dir: folder of the memory-mapped token files; null puts them beside the trials.
    """

    source: Literal["text", "synthetic"]
    path: str | None
    tokenizer: Literal["bytes", "bpe"]
    max_bytes: Count
    cache_dir: str | None


class TrainingPlan(Frozen):
    """The optimizer's schedule, and how many steps are measured.

    Attributes:
        num_steps: optimizer steps in all.
        num_warmup_steps: first steps that are left out of the timing.
        learning_rate_warmup_steps: linear warm-up, then a cosine down to min_learning_rate at num_steps.
        clip_gradient_norm: global norm over every axis; null does not clip.
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


class Experiment(Frozen):
    """One point of a sweep, whole: the value that is estimated on paper and trained on devices.

    Raises:
        InfeasiblePlan: the parts cannot exist together; names the dotted key, its value and what would fit.
    """

    model: ModelSpec
    cluster: ClusterSpec
    parallel: ParallelPlan
    batch: BatchPlan
    precision: PrecisionPlan
    data: DataSpec
    training: TrainingPlan

    @property
    def data_parallel_size(self) -> int:
        return self.parallel.world_size // (self.parallel.tensor_parallel_size * self.parallel.pipeline_parallel_size)

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of one data-parallel replica in one step."""
        return self.batch.global_batch_size // (self.batch.micro_batch_size * self.data_parallel_size)

    @property
    def num_nodes(self) -> int:
        return -(-self.parallel.world_size // self.cluster.devices_per_node)

    @property
    def tasks_per_node(self) -> int:
        return self.parallel.world_size // self.num_nodes

    @property
    def peak_flops_per_second(self) -> float:
        """Declared dense peak of one device in this precision."""
        return self.cluster.device.peak_flops_per_second[self.precision.dtype]

    @cached_property
    def fingerprint(self) -> str:
        """Twelve hex digits, equal for two experiments exactly when they measure the same thing."""
        content = self.model_dump(mode="json", exclude={"cluster": True, "model": {"name"}, "data": {"cache_dir"}})
        content["cluster"] = self.cluster.name
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def label(self) -> str:
        """A short name for people; never parsed."""
        parallel, batch = self.parallel, self.batch
        parts = [
            f"tp{parallel.tensor_parallel_size}",
            f"pp{parallel.pipeline_parallel_size}",
            f"dp{self.data_parallel_size}",
            f"mb{batch.micro_batch_size}",
            f"gb{batch.global_batch_size}",
        ]
        parts += ["sp"] if parallel.sequence_parallel else []
        parts += [f"zero{parallel.zero_stage}"] if parallel.zero_stage else []
        parts += [f"{parallel.recompute}"] if parallel.recompute != "none" else []
        return "-".join(parts)

    @model_validator(mode="after")
    def _exists(self) -> Experiment:
        for check in (_check_devices, _check_tensor_axis, _check_pipeline_axis, _check_batch, _check_precision):
            check(self)
        return self


def _require_divides(divisor_key: str, divisor: int, key: str, value: int) -> None:
    if value % divisor:
        raise InfeasiblePlan(divisor_key, divisor, f"does not divide {key} = {value}", f"Choose a divisor of {value}.")


def _check_devices(experiment: Experiment) -> None:
    parallel, cluster = experiment.parallel, experiment.cluster
    model_parallel_size = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    if parallel.world_size > cluster.num_devices:
        raise InfeasiblePlan(
            "parallel.world_size",
            parallel.world_size,
            f"is more than the {cluster.num_devices} devices of cluster {cluster.name}"
            f" ({cluster.num_nodes} nodes x {cluster.devices_per_node})",
            "Use fewer ranks, or raise cluster.num_nodes or cluster.devices_per_node.",
        )
    if parallel.world_size % model_parallel_size:
        raise InfeasiblePlan(
            "parallel.world_size",
            parallel.world_size,
            f"is not a multiple of tensor_parallel_size x pipeline_parallel_size = {parallel.tensor_parallel_size} x"
            f" {parallel.pipeline_parallel_size} = {model_parallel_size}",
            f"Use a multiple of {model_parallel_size}, or smaller tensor- or pipeline-parallel sizes.",
        )
    if parallel.world_size > cluster.devices_per_node and parallel.world_size % cluster.devices_per_node:
        raise InfeasiblePlan(
            "parallel.world_size",
            parallel.world_size,
            f"does not fill whole nodes of {cluster.devices_per_node} devices",
            f"Use a multiple of {cluster.devices_per_node}.",
        )


def _check_tensor_axis(experiment: Experiment) -> None:
    model, parallel, key = experiment.model, experiment.parallel, "parallel.tensor_parallel_size"
    size = parallel.tensor_parallel_size
    if size > experiment.cluster.devices_per_node and not parallel.tensor_parallel_across_nodes:
        raise InfeasiblePlan(
            key,
            size,
            f"is more than the {experiment.cluster.devices_per_node} devices of a node",
            "Stay inside a node, or set parallel.tensor_parallel_across_nodes=true.",
        )
    _require_divides(key, size, "model.num_attention_heads", model.num_attention_heads)
    _require_divides(key, size, "model.ffn_hidden_size", model.ffn_hidden_size)
    _require_divides(key, size, "model.vocab_size", model.vocab_size)
    if parallel.sequence_parallel:
        _require_divides(key, size, "model.seq_length", model.seq_length)
    if parallel.sequence_parallel and size == 1:
        raise InfeasiblePlan(
            "parallel.sequence_parallel",
            True,
            "needs tensor_parallel_size above 1",
            "Set parallel.sequence_parallel=false, or raise parallel.tensor_parallel_size.",
        )


def _check_pipeline_axis(experiment: Experiment) -> None:
    size = experiment.parallel.pipeline_parallel_size
    _require_divides("parallel.pipeline_parallel_size", size, "model.num_layers", experiment.model.num_layers)


def _check_batch(experiment: Experiment) -> None:
    batch, replicas = experiment.batch, experiment.data_parallel_size
    sequences = batch.micro_batch_size * replicas
    if batch.global_batch_size % sequences:
        raise InfeasiblePlan(
            "batch.global_batch_size",
            batch.global_batch_size,
            f"is not a multiple of micro_batch_size x data_parallel_size = {batch.micro_batch_size} x {replicas}"
            f" = {sequences}",
            f"Use a multiple of {sequences}.",
        )


def _check_precision(experiment: Experiment) -> None:
    dtype, device = experiment.precision.dtype, experiment.cluster.device
    if dtype not in device.peak_flops_per_second:
        raise InfeasiblePlan(
            "precision.dtype",
            dtype,
            f"has no peak under cluster.device.peak_flops_per_second of {device.name}",
            f"Choose one of {', '.join(sorted(device.peak_flops_per_second))}, or add the peak to the cluster file.",
        )


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


class Settings(Frozen):
    """The whole configuration, as composed by Hydra. The parts of an experiment are not yet held against each other."""

    model: ModelSpec
    cluster: ClusterSpec
    parallel: ParallelPlan
    batch: BatchPlan
    precision: PrecisionPlan
    data: DataSpec
    training: TrainingPlan
    slurm: SlurmSpec
    tracking: TrackingSpec
    output_dir: str
    sweep: SweepSpec | None

    def experiment(self) -> Experiment:
        """The experiment that these settings describe.

        Raises:
            InfeasiblePlan: the parts cannot exist together.
        """
        return Experiment(**{key: getattr(self, key) for key in Experiment.model_fields})
