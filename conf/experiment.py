"""An `Experiment` is the one immutable value that the cost model and the trainer both take.

Invariants between the parts live here; those inside a part live in its type.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property

from pydantic import model_validator

from conf.errors import InfeasiblePlan
from conf.schema import (
    BatchPlan,
    ClusterSpec,
    DataSpec,
    Frozen,
    ModelSpec,
    ParallelPlan,
    PrecisionPlan,
    TrainingPlan,
)


class Parts(Frozen):
    """What an experiment is made of."""

    model: ModelSpec
    cluster: ClusterSpec
    parallel: ParallelPlan
    batch: BatchPlan
    precision: PrecisionPlan
    data: DataSpec
    training: TrainingPlan


class Experiment(Parts):
    """One point of a sweep, whole: the value that is estimated on paper and trained on devices.

    Raises:
        InfeasiblePlan: the parts cannot exist together; names the dotted key, its value and what would fit.
    """

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
    if experiment.num_nodes > 1 and not parallel.tensor_parallel_across_nodes:
        _require_divides(key, size, "cluster.devices_per_node", experiment.cluster.devices_per_node)
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
