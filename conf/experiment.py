"""An `Experiment` is the one immutable value that the cost model and the trainer both take.

Invariants between the parts live here; those inside a part live in its type.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from itertools import groupby

from pydantic import model_validator

from conf.errors import InfeasiblePlan
from conf.schema import (
    ROTARY_BASE,
    BatchPlan,
    CheckpointPlan,
    ClusterSpec,
    DataSpec,
    Frozen,
    ModelSpec,
    ParallelPlan,
    PrecisionPlan,
    ProfilePlan,
    TrainingPlan,
    WatchPlan,
)

SCHEDULE_LABELS = {"gpipe": "gpipe", "zero-bubble": "zb"}


class Parts(Frozen):
    """What an experiment is made of."""

    model: ModelSpec
    cluster: ClusterSpec
    parallel: ParallelPlan
    batch: BatchPlan
    precision: PrecisionPlan
    data: DataSpec
    training: TrainingPlan
    checkpoint: CheckpointPlan
    watch: WatchPlan
    profile: ProfilePlan


class Experiment(Parts):
    """One point of a sweep, whole: the value that is estimated on paper and trained on devices.

    Raises:
        InfeasiblePlan: the parts cannot exist together; names the dotted key, its value and what would fit.
    """

    @property
    def is_fully_sharded(self) -> bool:
        """ZeRO-3, and there are replicas to share out the weights."""
        return self.parallel.zero_stage == 3 and self.data_parallel_size > 1

    @property
    def data_parallel_size(self) -> int:
        return self.parallel.world_size // (self.parallel.tensor_parallel_size * self.parallel.pipeline_parallel_size)

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
        content = self.model_dump(
            mode="json", exclude={"cluster": True, "watch": True, "model": {"name"}, "data": {"cache_dir"}}
        )
        content["cluster"] = self.cluster.name
        # null and the value that it stands for measure the same thing
        content["model"]["head_size"] = self.model.query_size // self.model.num_attention_heads
        content["model"]["rotary_base"] = self.model.rotary_base or ROTARY_BASE
        content["parallel"]["layers_per_stage"] = self.layers_per_stage
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
        parts += [f"vp{parallel.virtual_pipeline_size}"] if parallel.virtual_pipeline_size > 1 else []
        parts += [SCHEDULE_LABELS[parallel.schedule]] if parallel.schedule in SCHEDULE_LABELS else []
        parts += [_spread(self.layers_per_stage)] if len(set(self.layers_per_stage)) > 1 else []
        parts += ["sp"] if parallel.sequence_parallel else []
        parts += [f"zero{parallel.zero_stage}"] if parallel.zero_stage else []
        parts += [f"{parallel.recompute}{_every(parallel)}"] if parallel.recompute != "none" else []
        return "-".join(parts)

    @model_validator(mode="after")
    def _exists(self) -> Experiment:
        for check in CHECKS:
            check(self)
        return self


def _every(parallel: ParallelPlan) -> str:
    return f"-every{parallel.recompute_every}" if parallel.recompute_every > 1 else ""


def _spread(layers_per_stage: tuple[int, ...]) -> str:
    """`layers5.6x10.5`: 5 layers on the first stage, 6 on each of the next 10, 5 on the last."""
    runs = [(layers, len(list(stages))) for layers, stages in groupby(layers_per_stage)]
    return "layers" + ".".join(f"{layers}x{count}" if count > 1 else str(layers) for layers, count in runs)


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
    if experiment.num_nodes > 1 and not parallel.tensor_parallel_across_nodes:
        _require_divides(key, size, "cluster.devices_per_node", experiment.cluster.devices_per_node)
    _require_divides(key, size, "model.num_attention_heads", model.num_attention_heads)
    _require_divides(key, size, "model.num_query_groups", model.num_query_groups)
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
    parallel, num_layers = experiment.parallel, experiment.model.num_layers
    chunks = parallel.pipeline_parallel_size * parallel.virtual_pipeline_size
    if chunks > num_layers:
        raise InfeasiblePlan(
            "parallel.pipeline_parallel_size",
            parallel.pipeline_parallel_size,
            f"leaves stages without a layer: {chunks} stages or chunks, model.num_layers = {num_layers}",
            "Use fewer stages, or fewer chunks (parallel.virtual_pipeline_size).",
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


def _check_schedule(experiment: Experiment) -> None:
    parallel, key = experiment.parallel, "parallel.schedule"
    if parallel.schedule != "1f1b" and parallel.pipeline_parallel_size == 1:
        remedy = "Use schedule=1f1b, or raise parallel.pipeline_parallel_size."
        raise InfeasiblePlan(key, parallel.schedule, "needs pipeline_parallel_size above 1", remedy)
    if parallel.schedule != "interleaved":
        return
    if len(set(experiment.layers_per_stage)) > 1 or experiment.layers_per_stage[0] % parallel.virtual_pipeline_size:
        raise InfeasiblePlan(
            "parallel.virtual_pipeline_size",
            parallel.virtual_pipeline_size,
            f"does not cut model.num_layers = {experiment.model.num_layers} into equal chunks on"
            f" {parallel.pipeline_parallel_size} stages",
            "Choose sizes whose product divides the layers, and parallel.layers_per_stage=null.",
        )
    if experiment.num_micro_batches % parallel.pipeline_parallel_size:
        raise InfeasiblePlan(
            key,
            parallel.schedule,
            f"needs micro-batches in groups of pipeline_parallel_size = {parallel.pipeline_parallel_size}, and there"
            f" are {experiment.num_micro_batches}",
            "Change batch.global_batch_size or batch.micro_batch_size, or use schedule=1f1b.",
        )


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
            f"Choose one of {', '.join(sorted(device.peak_flops_per_second))}, or give the device a peak.",
        )


def _check_profile(experiment: Experiment) -> None:
    profile, training, world_size = experiment.profile, experiment.training, experiment.parallel.world_size
    if absent := [rank for rank in profile.trace_ranks if rank >= world_size]:
        problem = f"names ranks that do not exist ({absent}): parallel.world_size = {world_size}"
        remedy = f"Use ranks 0 to {world_size - 1}."
        raise InfeasiblePlan("profile.trace_ranks", list(profile.trace_ranks), problem, remedy)
    key, steps = "profile.trace_steps", list(profile.trace_steps)
    if absent := [step for step in steps if step > training.num_steps]:
        problem = f"names steps that do not come ({absent}): training.num_steps = {training.num_steps}"
        raise InfeasiblePlan(key, steps, problem, f"Use steps 1 to {training.num_steps}, or more steps.")
    if bool(steps) != bool(profile.trace_ranks):
        remedy = "Give both profile.trace_steps and profile.trace_ranks, or neither."
        raise InfeasiblePlan(key, steps, f"does not go with profile.trace_ranks = {list(profile.trace_ranks)}", remedy)
    if sum(step > training.num_warmup_steps for step in set(steps)) == training.num_steps - training.num_warmup_steps:
        remedy = "Trace fewer steps, or add steps: traced ones are slower and so not timed."
        raise InfeasiblePlan(key, steps, "leaves no step to time", remedy)


def _check_training(experiment: Experiment) -> None:
    training = experiment.training
    if training.compile_layers and training.dropout:
        problem = f"would compile anew in every step for new masks: training.dropout = {training.dropout}"
        remedy = "Set training.compile_layers=false, or training.dropout=0."
        raise InfeasiblePlan("training.compile_layers", True, problem, remedy)


def _check_watch(experiment: Experiment) -> None:
    every = experiment.watch.compare_replicas_every
    if every is not None and experiment.parallel.zero_stage == 3:
        problem, remedy = "finds no replicas with parallel.zero_stage = 3", "Use null, or zero_stage=2 or less."
        raise InfeasiblePlan("watch.compare_replicas_every", every, problem, remedy)


CHECKS = (
    _check_devices,
    _check_tensor_axis,
    _check_pipeline_axis,
    _check_batch,
    _check_schedule,
    _check_precision,
    _check_profile,
    _check_training,
    _check_watch,
)
