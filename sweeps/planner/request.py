"""Turns Hydra overrides into the spaces that a search goes through: an override of a knob pins it.

A vocabulary that is as it comes from a tokenizer, such as GPT-2's 50,257, would leave one tensor rank alone. What a
plan needs is stated with it, as `model.vocab_size`, so that the plan runs as it was priced.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from conf.compose.load import Composition, load_cluster, settings_of
from conf.compose.orders import require_order
from conf.compose.settings import Settings
from conf.compose.tree import part_at, value_at, with_values
from conf.errors import ConfigError, InfeasiblePlan
from conf.folders import is_own, path_of
from conf.overrides import Overrides, value_text
from conf.plan.experiment import require_compilable, require_plain_scores, require_whole_attention
from conf.plan.knobs import KNOBS, KnobValue, knob_value
from conf.plan.setup import require_layers_of_stages, require_one_maker, require_precision, require_whole_weights
from conf.plan.setup_parts import MIXED, is_count, named_blocks, written_blocks
from conf.types.cluster_spec import ClusterSpec, DeviceSpec
from conf.types.model_spec import ModelSpec
from conf.types.schema import Value
from conf.types.sweep_spec import SweepSpec
from conf.units import GIBIBYTE, MEBIBYTE
from costs import IMPLEMENTATIONS, Implementation
from costs.counts.parameters import require_computable
from costs.setting import Setting
from costs.trainers import TRISWEEP
from sweeps.memory_odds import MemoryOdds
from sweeps.planner.plans.runnable import require_run
from sweeps.planner.plans.space import Space, padded_model, shared_tensor_sizes
from sweeps.planner.plans.strategy import Strategy, even_ends, spread_layers

KNOB_KEYS = {knob.key: knob.name for knob in KNOBS if knob.role != "given" and knob.group}
PLAIN_BY_KEY = {knob.key: knob.plain for knob in KNOBS if knob.role != "given" and knob.group}
"""The knobs of a plan that pins nothing."""
VOCABULARY = "model.vocab_size"
NOT_IN_MIXED = (
    *("pipeline_parallel_size", "virtual_pipeline_size", "schedule", "layers_per_stage"),
    *("context_parallel_size", "expert_parallel_size", "expert_tensor_parallel_size"),
    *("zero_group_size", "offload_optimizer", "offload_activations", "pipeline_before_data"),
)
"""Knobs that a job over several types of devices does not choose."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A cluster that was offered beside others and cannot run such a job, or not on such a number of devices."""

    cluster: str
    reason: InfeasiblePlan


@dataclass(frozen=True, slots=True)
class Request:
    """The request for a search: the spaces to go through, and the configuration of what they share.

    Attributes:
        settings: the configuration, in which every knob that the search is free to vary has its plain value, and the
            vocabulary is padded if plans need that.
        left_out: what was offered and cannot run the job; empty where there was no choice of clusters.
    """

    settings: Settings
    spaces: tuple[Space, ...]
    vocab_size: int
    left_out: tuple[LeftOut, ...] = ()

    @property
    def unpadded_model(self) -> ModelSpec:
        return self.settings.model.model_copy(update={"vocab_size": self.vocab_size})

    @property
    def padding(self) -> dict[str, Value]:
        """The padded vocabulary as a value of the configuration; empty where it stays as it was asked for."""
        padded = self.settings.model.vocab_size
        return {} if padded == self.vocab_size else {VOCABULARY: padded}

    @property
    def padding_overrides(self) -> list[str]:
        return [f"{key}={value_text(value)}" for key, value in self.padding.items()]


def search_request(
    asked: Composition,
    *,
    devices: str | None = None,
    clusters: Sequence[str] = (),
    implementation: str | None = None,
    headroom: str | None = None,
) -> Request:
    """The spaces for a configuration: one for every cluster and number of its devices.

    Args:
        asked: the configuration; its plan need not be one that can exist, as a search replaces it.
        devices: `512`, `256,512`, a range `64-512` (whole nodes within), or `all`; None takes what the overrides or the
            sweep say, else the whole cluster.
        clusters: files of conf/cluster to choose among; without any, the configuration's.
        implementation: the trainer whose costs are taken; None takes those of the configured one (`trainer.costs_of`).
        headroom: memory that plans leave free, such as `6GiB` or `10%` of every device; None takes those that are
            likely to fit.

    Raises:
        ConfigError: something is unknown, or cannot be.
        InfeasiblePlan: the only cluster, or each of them, cannot run such a job.
    """
    # Only an override of a single knob pins it: a chosen file, such as parallel=frontier-175b, leaves all free.
    named = asked.overrides.pinned_keys()
    pinned = {key: part_at(asked.tree, key) for key in KNOB_KEYS if key in named}
    settings = settings_of(with_values(asked.tree, _neutral(pinned)))
    require_order(settings, open_key="training.num_steps")  # of what is planned on paper a command may yet state it
    if settings.mixed is not None:
        remedy = (
            "Search with `trisweep plan --mixed selene:512,dgx-h100:512`, which prints the overrides of what it finds."
        )
        raise ConfigError(MIXED, written_blocks(settings.mixed), "is not varied by a search over one cluster", remedy)
    require_computable(settings.model, settings.batch.micro_batch_size)
    knobs = {KNOB_KEYS[key]: knob_value(KNOB_KEYS[key], settings.parallel, settings.batch) for key in pinned}
    if clusters:
        _require_no_cluster_values(asked.overrides)
    chosen = [load_cluster(name) for name in dict.fromkeys(clusters)] or [settings.cluster]
    training, plain = settings.training, implementation_called(implementation or settings.trainer.costs_of)
    compiles = training.compile_layers and plain.name == TRISWEEP.name
    trainer = plain.in_training(training.dropout, compiles=compiles)
    _require_plans_that_run(trainer, settings, knobs)
    batch, across = settings.batch.global_batch_size, settings.parallel.tensor_parallel_across_nodes
    spaces: list[Space] = []
    left_out: list[LeftOut] = []
    for cluster in chosen:
        # Among several clusters each number is judged alone: one that this cluster lacks must not rule out the others.
        parts = devices.split(",") if devices and len(chosen) > 1 else [devices]
        sizes, lacking = _device_counts(cluster, parts, settings, asked.overrides)
        left_out += lacking
        for size in sizes:
            setting = _setting(settings, cluster, trainer, knobs)
            space = Space(setting, size, batch, across, knobs, compiles_layers=compiles)
            spaces.append(_with_headroom(space, headroom, size))
    if not spaces:
        raise left_out[0].reason
    _require_expressible(settings, knobs)
    return _pad_vocabulary(settings, spaces, left_out)


def _require_plans_that_run(trainer: Implementation, settings: Settings, knobs: Mapping[str, KnobValue]) -> None:
    """Refuse a configuration, or a pinned knob, with which no plan can exist that the trainer runs."""
    require_run(trainer, settings, knobs)
    require_whole_weights(settings.parallel)
    if trainer.is_compiled:
        offloads = settings.parallel.offload_activations
        require_compilable(settings.training, str(knobs.get("recompute")), offloads=offloads)
    if trainer.name == TRISWEEP.name:
        require_whole_attention(settings.training, settings.parallel.context_parallel_size)
        require_plain_scores(settings.training, settings.model)


def _pad_vocabulary(settings: Settings, spaces: Sequence[Space], left_out: Sequence[LeftOut]) -> Request:
    """The request with a vocabulary that every tensor-parallel size divides that the model and the devices allow."""
    model = padded_model(settings.model, sorted({size for space in spaces for size in shared_tensor_sizes(space)}))
    if model is not settings.model:
        spaces = [replace(space, setting=replace(space.setting, model=model)) for space in spaces]
    padded = settings.model_copy(update={"model": model})
    return Request(padded, tuple(spaces), settings.model.vocab_size, tuple(left_out))


def _setting(
    settings: Settings, cluster: ClusterSpec, trainer: Implementation, knobs: Mapping[str, KnobValue]
) -> Setting:
    precision, tensor_size = settings.precision, knobs.get("expert_tensor_parallel_size")
    assert tensor_size is None or isinstance(tensor_size, int)
    return Setting(
        settings.model,
        cluster,
        precision.dtype,
        trainer,
        precision.gradient_dtype,
        matmul_recipe=precision.priced_recipe,
        expert_tensor_parallel_size=tensor_size,
        offload_activations=settings.parallel.offload_activations,
        expert_dispatcher=settings.parallel.expert_dispatcher,
        context_exchange=settings.parallel.context_exchange,
        optimizer=settings.training.optimizer if trainer.name == TRISWEEP.name else "adamw",
    )


def _device_counts(
    cluster: ClusterSpec, parts: Sequence[str | None], settings: Settings, overrides: Overrides
) -> tuple[list[int], list[LeftOut]]:
    """The numbers of this cluster's devices that the job can have, of those asked for, and why not the others."""
    sizes: set[int] = set()
    lacking: dict[str, LeftOut] = {}
    device, lacks = cluster.device, f"has no peak on {cluster.device.name} of cluster {cluster.name}"
    for devices in parts:
        try:
            require_precision(settings.precision, device, lacks, "another cluster")
            sizes.update(_world_sizes(cluster, devices, settings, overrides))
        except InfeasiblePlan as reason:
            lacking[str(reason)] = LeftOut(cluster.name, reason)
    return sorted(sizes), list(lacking.values())


def _require_no_cluster_values(overrides: Overrides) -> None:
    """A choice among clusters takes each as its file says: one override could not tell for which it is meant."""
    for override in overrides.of({"cluster"}):
        if override.pins:
            remedy = "Write it into a copy of the cluster's file, or search one cluster with cluster=NAME."
            raise ConfigError(override.key, override.value, "does not say which of --clusters it is for", remedy)


def configured_strategy(settings: Settings, world_size: int) -> Strategy:
    """The plan that a configuration states, on a number of devices."""
    parallel = settings.parallel.model_copy(update={"world_size": world_size})
    return Strategy(parallel, settings.batch)


def offers(text: str) -> list[tuple[str, int]]:
    """Parse `selene:512,dgx-h100:512` into clusters and numbers of their devices.

    Raises:
        ConfigError: the text is something else.
    """
    found = named_blocks(text, "--mixed", ",", "selene:512,dgx-h100:512")
    if len({name for name, _ in found}) < 2:
        raise ConfigError("--mixed", text, "names fewer than two clusters", "Write selene:512,dgx-h100:512.")
    return found


def mixed_request(asked: Composition, text: str, implementation: str | None, headroom: str | None = None) -> Request:
    """One space for each offer of a mixed job; only what such a job can choose may be pinned."""
    parts: list[Request] = []
    for name, number in offers(text):
        device_counts(load_cluster(name), str(number), stated_by="--mixed")
        given = {"devices": str(number), "implementation": implementation, "headroom": headroom}
        parts.append(search_request(asked, clusters=[name], **given))
    require_one_maker("--mixed", text, (part.spaces[0].setting.cluster.device for part in parts))
    for knob in NOT_IN_MIXED:
        if knob in parts[0].spaces[0].pinned:
            value = parts[0].spaces[0].pinned[knob]
            remedy = "Leave it out: stages follow from the devices, pipelines run 1F1B, the rest is plain."
            raise ConfigError(f"parallel.{knob}", value, "is not chosen in a job over several types", remedy)
    whole = sum(part.spaces[0].world_size for part in parts)
    spaces = [_with_headroom(part.spaces[0], headroom, whole) for part in parts]
    model = parts[0].unpadded_model
    return _pad_vocabulary(
        parts[0].settings.model_copy(update={"model": model}),
        [replace(space, setting=replace(space.setting, model=model)) for space in spaces],
        (),
    )


def _neutral(pinned: Mapping[str, Any]) -> dict[str, Any]:
    """Every knob at its plainest value except for the pinned ones and what these imply."""
    # Chunks and the interleaved schedule need each other, so a person may pin one and leave out the other.
    values: dict[str, Any] = {**PLAIN_BY_KEY, **pinned}
    if values["parallel.virtual_pipeline_size"] != 1 and "parallel.schedule" not in pinned:
        values["parallel.schedule"] = "interleaved"
    if values["parallel.schedule"] == "interleaved" and "parallel.virtual_pipeline_size" not in pinned:
        values["parallel.virtual_pipeline_size"] = 2
    # A list has a number for every stage, and so says how many there are.
    if isinstance(listed := values["parallel.layers_per_stage"], list):
        values["parallel.pipeline_parallel_size"] = pinned.get("parallel.pipeline_parallel_size", len(listed))
    return values


def implementation_called(name: str) -> Implementation:
    """The trainer whose costs are taken; raises ConfigError where none is called so."""
    if name not in IMPLEMENTATIONS:
        known = f"Known: {', '.join(IMPLEMENTATIONS)}."
        raise ConfigError("--implementation", name, "is not a trainer known here", known)
    return IMPLEMENTATIONS[name]


def _world_sizes(cluster: ClusterSpec, devices: str | None, settings: Settings, overrides: Overrides) -> list[int]:
    if devices is not None:
        return device_counts(cluster, devices)
    size, is_pinned = searched_size(cluster, settings, overrides), "parallel.world_size" in overrides.pinned_keys()
    if settings.sweep is None and not is_pinned:
        return [size]
    return device_counts(cluster, str(size), stated_by="parallel.world_size")


def searched_size(cluster: ClusterSpec, settings: Settings, overrides: Overrides) -> int:
    """The number of devices that a search takes where no option names any."""
    if "parallel.world_size" in overrides.pinned_keys():
        return settings.parallel.world_size
    if settings.sweep is None:
        return cluster.num_devices
    return min(_most_devices(settings.sweep, settings), cluster.num_devices)


def _most_devices(sweep: SweepSpec, settings: Settings) -> int:
    """The largest number of devices that any point of the sweep uses."""
    key = "parallel.world_size"
    listed = [value for stated, value in sweep.listed_values() if stated == key]
    return max(size for size in [settings.parallel.world_size, *listed] if isinstance(size, int))


def device_counts(cluster: ClusterSpec, devices: str, stated_by: str = "--devices") -> list[int]:
    """Numbers of devices that a job on this cluster can have: `512`, `256,512`, `64-512` or `all`.

    Args:
        stated_by: the option or the dotted key that they are from, for errors.

    Raises:
        ConfigError: the text is something else.
        InfeasiblePlan: the cluster has no such number of devices, or it does not fill whole nodes.
    """
    whole = [nodes * cluster.devices_per_node for nodes in range(1, cluster.num_nodes + 1)]
    if devices == "all":
        return whole
    counts: list[int] = []
    for part in devices.split(","):
        low, dash, high = part.partition("-")
        if not is_count(low) or (dash and not is_count(high)):
            raise ConfigError(stated_by, devices, "is not a list of numbers", "Write 512, 256,512, 64-512 or all.")
        # A range keeps what fills whole nodes; a number that was named has to do so, or is refused.
        if dash:
            counts += [count for count in whole if int(low) <= count <= int(high)]
        else:
            counts.append(_legal_count(cluster, int(low), stated_by))
    if not counts:
        remedy = f"Choose between {whole[0]} and {whole[-1]}."
        raise InfeasiblePlan(stated_by, devices, f"holds no number of whole nodes of cluster {cluster.name}", remedy)
    return sorted(set(counts))


def _legal_count(cluster: ClusterSpec, count: int, stated_by: str) -> int:
    if cluster.can_give(count):
        return count
    problem = (
        f"is not a number of devices that a job can have on cluster {cluster.name}, which has {cluster.num_devices}"
    )
    size = cluster.devices_per_node
    remedy = f"Use up to {size}, or a multiple of it, raise cluster.num_nodes, or choose another cluster=NAME."
    raise InfeasiblePlan(stated_by, count, problem, remedy)


def _require_expressible(settings: Settings, knobs: Mapping[str, KnobValue]) -> None:
    """Refuse a listed spread of layers that a search cannot express: it must be even between its two ends.

    The columns of a search hold the layers of the first and of the last stage only.
    """
    listed = knobs.get("layers_per_stage")
    if not isinstance(listed, tuple):
        return
    key, num_layers = "parallel.layers_per_stage", settings.model.num_layers
    require_layers_of_stages(listed, settings.parallel.pipeline_parallel_size, num_layers)
    even = spread_layers(num_layers, len(listed), *even_ends(num_layers, len(listed)))
    if listed not in (even, spread_layers(num_layers, len(listed), listed[0], listed[-1])):
        problem = "is not even between its first and its last stage, and a search goes through no other spreads"
        raise InfeasiblePlan(key, listed, problem, "Use null for an even spread, or leave the key out.")


UNITS = {"GiB": GIBIBYTE, "MiB": MEBIBYTE, "GB": 10**9, "MB": 10**6}
AMOUNT = re.compile(rf"(\d+(?:\.\d+)?) ?({'|'.join(UNITS)}|%)|0")


def _with_headroom(space: Space, text: str | None, num_devices: int) -> Space:
    """The space whose plans leave so much memory free; with None, so much that they are likely to fit.

    Args:
        num_devices: of the whole job.
    """
    device = space.setting.cluster.device
    if text is not None:
        return replace(space, headroom_bytes=headroom_bytes(text, device))
    odds = MemoryOdds.of(space.setting.implementation.name, num_devices)
    free = device.memory_bytes - odds.room_bytes(device.memory_bytes)
    return replace(space, headroom_bytes=free, asks_likely=True)


def headroom_bytes(text: str, device: DeviceSpec) -> int:
    """Return how many bytes of the device's memory have to stay free.

    Raises:
        ConfigError: the text is not an amount of memory, or all that the device has.
    """
    found = AMOUNT.fullmatch(text.strip())
    if found is None:
        raise ConfigError("--headroom", text, "is not an amount of memory", "Write 6GiB, 6GB, 500MiB, 10% or 0.")
    number, unit = float(found[1] or 0), found[2] or "%"
    amount = int(number / 100 * device.memory_bytes) if unit == "%" else int(number * UNITS[unit])
    if amount >= device.memory_bytes:
        problem = f"leaves nothing of the {device.memory_bytes / GIBIBYTE:.1f} GiB of {device.name}"
        raise ConfigError("--headroom", text, problem, "Leave less free.")
    return amount


TOKENS = 3 * 2**20
"""Tokens of a step: those of GPT-3 175B, 1,536 sequences of 2,048 (arXiv 2005.14165). Factors of two and three suit the
numbers of devices that clusters have."""
BATCH = "batch.global_batch_size"


def usual_overrides(asked: Composition, clusters: Sequence[str] = ()) -> list[str]:
    """Return overrides for a command that names only a model and GPUs: the defaults suit a try on a laptop.

    There are none for what was given, and none for a sweep, which states its own.
    """
    given = asked.overrides
    places_given = bool(clusters) or bool(given.of({"cluster"}).entries)
    if given.stated_value("sweep") is not None or not (places_given and given.of({"model"}).entries):
        return []
    places = [load_cluster(name) for name in clusters] or [asked.settings.cluster]
    if any(place.device.kind != "gpu" for place in places):
        return []
    added: list[str] = []
    # The type of two bytes that all of them compute in; bf16 needs no scaling of the loss, so it comes first.
    dtype = next((name for name in ("bf16", "fp16") if all(name in each.device.dtypes for each in places)), None)
    if dtype is not None and not given.of({"precision"}).entries and not _has_own_default("precision", "fp32"):
        added.append(f"precision={dtype}")
    named = given.stated_value("batch") is not None or given.stated_value(BATCH) is not None
    length = value_at(asked.tree, "model.seq_length")
    if not named and isinstance(length, int) and not _has_own_default("batch", "default"):
        added.append(f"{BATCH}={3 * 2 ** max(0, round(math.log2(TOKENS / 3 / length)))}")
    return added


def _has_own_default(group: str, option: str) -> bool:
    path = path_of(group, option)
    return path is not None and is_own(path)
