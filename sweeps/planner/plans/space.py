"""The values of each knob that a search goes through, given those that were chosen before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from math import gcd, isqrt, lcm
from typing import NamedTuple, TypeVar

from conf.errors import ConfigError
from conf.nearest import padded_vocabulary
from conf.plan.knobs import SCHEDULES, KnobValue
from conf.plan.setup_parts import SetupParts
from conf.plan.trainer_limits import LAYER_SPLIT, SPLIT_QUERY_GROUPS, TORN_ZERO_GROUPS, Beside, beside
from conf.types.cluster_spec import ClusterSpec
from conf.types.model_spec import ModelSpec
from conf.types.recompute import MODES, RECOMPUTES, UNCOMPILED
from conf.types.schema import Schedule
from conf.types.trainer_spec import TRISWEEP
from costs.counts.parameters import largest_micro_batch_size, num_parameters
from costs.setting import Setting
from sweeps.memory_odds import MemoryOdds
from sweeps.planner.plans.runnable import StageLayout, all_layouts, runs
from sweeps.planner.plans.strategy import even_ends

MOST_ZERO_STAGE = 3
SEARCHED_SCHEDULES = tuple(name for name in SCHEDULES if name != "gpipe")
"""GPipe takes as long as 1F1B and keeps the activations of all micro-batches, so it is never chosen."""
RECOMPUTE_EVERY = (1, 2, 3, 4, 6, 8, 12, 16)
"""Layers of which the first recomputes. Further numbers would recompute hardly less of a chunk than these."""
FEWEST_TOKENS_PER_RANK = 1024
"""Context parallelism leaves each rank at least so many tokens of a sequence: with fewer, products are too narrow to be
worth its traffic (assumed)."""
LEAST_OFFLOADED_SHARE = 0.1
"""A search offloads an optimizer's state only if, shared out among all devices, it takes at least this part of each.
Memory is predicted with an error of 6 % in the mean, so that less is no reason to wait for the host in every step."""
STATE_BYTES_PER_PARAMETER = 12
"""Master weights and both moments of Adam in fp32."""
Value = TypeVar("Value", bound=KnobValue)
Holder = TypeVar("Holder", bound=SetupParts)


@dataclass(frozen=True, slots=True)
class Space:
    """The plans that a search enumerates: sizes of the job, pinned knobs, and memory to spare.

    Attributes:
        pinned: knobs that have only this value, by their name in `conf.plan.knobs`; `layers_per_stage: None` spreads
            evenly.
        headroom_bytes: memory of every device that plans must leave free.
        as_declared: plans are ranked by their price as declared, though nobody measured how many ports of a node a ring
            gets; else by the geometric mean of that and of the price with one port.
        asks_likely: the headroom is what makes plans likely to fit, and is given up where no plan leaves it free.
        compiles_layers: this package's own trainer compiles layers, and then recomputes no single operations.
    """

    setting: Setting
    world_size: int
    global_batch_size: int
    tensor_parallel_across_nodes: bool = False
    pinned: Mapping[str, KnobValue] = field(default_factory=dict)
    headroom_bytes: int = 0
    compiles_layers: bool = False
    asks_likely: bool = False
    as_declared: bool = False

    @property
    def room_bytes(self) -> int:
        """The bytes of a device's memory that a plan may take."""
        return self.setting.cluster.device.memory_bytes - self.headroom_bytes

    @property
    def with_fewest_ports(self) -> ClusterSpec | None:
        """The cluster as if rings left nodes through one port; None where that is no question."""
        cluster = self.setting.cluster
        if self.as_declared or self.world_size <= cluster.devices_per_node:
            return None
        return cluster.with_fewest_ports()

    @property
    def odds(self) -> MemoryOdds:
        """What is known of the memory that its plans need, beside the predicted."""
        return MemoryOdds.of(self.setting.implementation.name, self.world_size)

    def on_paper(self) -> Space:
        """The space with every plan whose predicted memory a device has, however likely it is to fit."""
        return replace(self, headroom_bytes=0, asks_likely=False)

    def features(self, *words: str, **has: bool) -> Beside:
        """The features, as `conf.plan.trainer_limits.beside` has them, of plans of which this is known."""
        recipe = (self.setting.matmul_recipe,) if self.setting.matmul_recipe else ()
        has["activations_offloaded"] = self.setting.offload_activations
        return beside(self.setting.model, None, self.setting.dtype, *recipe, *words, **has)

    def allowed_values(self, knob: str, values: Sequence[Value], **has: bool) -> list[Value]:
        """The values that the knob may still have: those that the trainer runs, or the pinned one of them."""
        kept = values if knob not in self.pinned else [value for value in values if self.pinned[knob] == value]
        features = self.features(**has)
        return [value for value in kept if runs(self.setting.implementation, knob, value, features)]


class ShardChoice(NamedTuple):
    """The choices that a layer's cost depends on beside the sizes of a block."""

    micro_batch_size: int
    sequence_parallel: bool
    recompute: int
    recompute_every: int


class Placing(NamedTuple):
    """The places of optimizer state and the order of ranks: settings of a whole block of plans."""

    zero_group_size: int | None
    offload_optimizer: bool
    pipeline_before_data: bool


class Sizes(NamedTuple):
    """The sizes that share out all devices: those of a block of plans."""

    tensor: int
    context: int
    pipeline: int
    data: int

    @property
    def num_replicas(self) -> int:
        return self.data * self.context

    @property
    def several(self) -> dict[str, bool]:
        """Of which there are several, by the names of `conf.plan.trainer_limits.Feature`."""
        sizes = {"pipeline": self.pipeline, "tensor": self.tensor, "context": self.context, "replicas": self.data}
        return {name: size > 1 for name, size in sizes.items()}


class Family(NamedTuple):
    """The sizes that all plans of a family have, on one number of devices of one cluster."""

    sizes: Sizes
    expert: int


def shared_tensor_sizes(space: Space) -> list[int]:
    """The tensor-parallel sizes that the model's heads and layers and the devices allow, whatever the vocabulary."""
    model, cluster = space.setting.model, space.setting.cluster
    # Zero, which every number divides, leaves the greatest common divisor below as it is.
    split = gcd(model.num_attention_heads, model.num_query_groups, model.ffn_hidden_size)
    one_node = space.world_size <= cluster.devices_per_node
    pinned = space.pinned.get("tensor_parallel_size")
    is_split = isinstance(pinned, int) and pinned % model.num_query_groups == 0
    if is_split and runs(space.setting.implementation, SPLIT_QUERY_GROUPS, True):
        split = gcd(model.num_attention_heads, model.ffn_hidden_size)
        one_node = space.world_size <= cluster.joined_devices
    inside = 0 if space.tensor_parallel_across_nodes or one_node else cluster.devices_per_node
    sizes, setting = divisors(gcd(split, space.world_size, inside)), space.setting
    is_own = setting.implementation.name == TRISWEEP.name
    if model.experts is not None and is_own and setting.expert_tensor_parallel_size != 1:
        sizes = [1]  # see `conf.plan.expert_axis.check_own_experts`
    return space.allowed_values("tensor_parallel_size", sizes)


def tensor_parallel_sizes(space: Space) -> list[int]:
    """Divisors of everything that tensor parallelism splits; inside a node unless the space says otherwise."""
    return [size for size in shared_tensor_sizes(space) if space.setting.model.vocab_size % size == 0]


def context_parallel_sizes(space: Space, tensor_parallel_size: int) -> list[int]:
    """Divisors of the remaining devices that cut sequences into pairs of equal pieces, long enough to be worth it."""
    length = space.setting.model.seq_length
    most = length if "context_parallel_size" in space.pinned else max(1, length // FEWEST_TOKENS_PER_RANK)
    if space.setting.implementation.dropout and space.setting.implementation.name == TRISWEEP.name:
        most = 1  # see `conf.plan.experiment.require_whole_attention`
    # A rank takes one piece from the front and one from the back, so that causal attention is equally long for all.
    sizes = [
        size
        for size in divisors(space.world_size // tensor_parallel_size)
        if size == 1 or (size <= most and length % (2 * size) == 0)
    ]
    return space.allowed_values("context_parallel_size", sizes)


def pipeline_parallel_sizes(space: Space, ranks_per_stage: int) -> list[int]:
    """Every number of stages that the devices allow and that leaves no stage without a layer."""
    most = space.setting.model.num_layers
    sizes = [size for size in divisors(space.world_size // ranks_per_stage) if size <= most]
    return space.allowed_values("pipeline_parallel_size", sizes)


def expert_parallel_sizes(space: Space, sizes: Sizes) -> list[int]:
    """Divisors of the experts that leave whole groups of a stage's ranks; 1 where there are no experts.

    Where each rank holds whole experts, they are spread over a stage's tensor ranks too.
    """
    experts, split = space.setting.model.experts, space.setting.expert_tensor_size(sizes.tensor)
    if experts is None:
        return space.allowed_values("expert_parallel_size", [1])
    ranks = sizes.tensor * sizes.num_replicas
    whole = [size for size in divisors(experts.num_experts) if ranks % (size * split) == 0]
    return space.allowed_values("expert_parallel_size", whole)


def priced_batch_sizes(space: Space) -> list[int]:
    """Every divisor of the batch that can be priced: the micro-batches of any number of replicas."""
    most = largest_micro_batch_size(space.setting.model)
    return [size for size in divisors(space.global_batch_size) if size <= most]


def micro_batch_sizes(space: Space, data_parallel_size: int) -> list[int]:
    """The micro-batches that divide a replica's share of the batch; none if the batch has no equal shares."""
    share, surplus = divmod(space.global_batch_size, data_parallel_size)
    sizes = [] if surplus else [size for size in priced_batch_sizes(space) if share % size == 0]
    return space.allowed_values("micro_batch_size", sizes)


def zero_stages(space: Space, sizes: Sizes, *, offload: bool = False) -> list[int]:
    """The ZeRO stages that can exist; 3, which also shares out the weights, only without a pipeline.

    A single replica shares nothing out, so that all its stages are one plan. It takes the pinned stage, else the first
    that its trainer runs.
    """
    possible = list(range(MOST_ZERO_STAGE + (sizes.pipeline == 1)))
    stages = space.allowed_values("zero_stage", possible, offload=offload, **sizes.several)
    return stages[:1] if sizes.num_replicas == 1 and "zero_stage" not in space.pinned else stages


def shards_of(
    space: Space, tensor_parallel_size: int, data_parallel_size: int, context_parallel_size: int = 1
) -> list[ShardChoice]:
    """Micro-batch, sequence parallelism and recomputation of every shard: what a layer's cost depends on."""
    # With context parallelism a rank has two pieces of a sequence, each of which its tensor ranks share out.
    t, pieces = tensor_parallel_size, 2 * context_parallel_size if context_parallel_size > 1 else 1
    splits_sequences = t > 1 and space.setting.model.seq_length % (pieces * t) == 0
    both = [False, True] if splits_sequences else [False]
    sequence_parallel = space.allowed_values("sequence_parallel", both, tensor=t > 1)
    choices = product(micro_batch_sizes(space, data_parallel_size), sequence_parallel, recomputations(space))
    return [ShardChoice(b, split, *recomputation) for b, split, recomputation in choices]


def recomputations(space: Space) -> list[tuple[int, int]]:
    """Index of what is recomputed, and in every how many layers; the latter is 1 where nothing is.

    With a fused attention kernel `selective` saves little more than the kernel's log-sum-exp, a thousandth of the
    activations. A share of that is not worth a plan, so that it is tried in every layer alone.
    """
    pinned, fused = space.pinned.get("recompute_every"), space.setting.implementation.flash_attention
    every = space.allowed_values("recompute_every", [pinned] if isinstance(pinned, int) else RECOMPUTE_EVERY)
    alike = {(), ("core",)} if fused else {()}
    return [
        (RECOMPUTES.index(name), number)
        for name in space.allowed_values("recompute", RECOMPUTES)
        if not (space.compiles_layers and name in UNCOMPILED)
        for number in (every[:1] if MODES[name].repeats in alike else every)
    ]


def layouts(space: Space, num_stages: int) -> list[StageLayout]:
    """Schedules, chunks and spreads of the layers: the plainest first."""
    pinned_ends, pinned_chunks = _pinned_ends(space, num_stages), space.pinned.get("virtual_pipeline_size")
    if not pinned_ends and space.pinned.get("layers_per_stage"):
        return []  # the list is for another number of stages
    assert pinned_chunks is None or isinstance(pinned_chunks, int)
    found = all_layouts(space.setting.model.num_layers, num_stages, pinned_ends, pinned_chunks)
    chunks = set(space.allowed_values("virtual_pipeline_size", sorted({layout.num_chunks for layout in found})))
    schedules = {SCHEDULES.index(name) for name in searched_schedules(space, pipeline=num_stages > 1)}
    splits = {split for split in ("even", "ends", "uneven") if runs(space.setting.implementation, LAYER_SPLIT, split)}
    return [
        layout
        for layout in found
        if layout.schedule in schedules and layout.num_chunks in chunks and layout.split in splits
    ]


def searched_schedules(space: Space, *, pipeline: bool = False) -> list[Schedule]:
    """The schedules that plans may have, with several stages or where that is not known yet; GPipe only if pinned."""
    names = SCHEDULES if space.pinned.get("schedule") == "gpipe" else SEARCHED_SCHEDULES
    return space.allowed_values("schedule", names, pipeline=pipeline)


def _pinned_ends(space: Space, num_stages: int) -> tuple[int, int] | None:
    """The ends of a pinned spread; None where none is pinned, or one for another number of stages."""
    if "layers_per_stage" not in space.pinned:
        return None
    listed = space.pinned["layers_per_stage"]
    if listed is None:
        return even_ends(space.setting.model.num_layers, num_stages)
    assert isinstance(listed, tuple)
    return (listed[0], listed[-1]) if len(listed) == num_stages else None


def placings(space: Space, sizes: Sizes) -> list[Placing]:
    """Groups of ZeRO, where the optimizer's state is held, and the order of the axes: the plainest first."""
    groups = space.allowed_values("zero_group_size", _zero_groups(space, sizes))
    offloads = space.allowed_values("offload_optimizer", [False, True] if _may_offload(space) else [False])
    return [Placing(*chosen) for chosen in product(groups, offloads, _orders(space, sizes))]


def keeps_order(space: Space, family: Family, pipeline_before_data: bool) -> bool:
    """True if the family's ranks can stand in this order.

    Stages of one replica are neighbours only where its experts are spread over just the ranks of a stage.
    """
    sizes, setting = family.sizes, space.setting
    if setting.model.experts is None or sizes.pipeline == 1 or not pipeline_before_data:
        return True
    spread = family.expert * (setting.expert_tensor_parallel_size or sizes.tensor)
    return spread == sizes.tensor * sizes.context


def _may_offload(space: Space) -> bool:
    """True if the state of the optimizer is worth moving, or somebody asks for it."""
    shared = STATE_BYTES_PER_PARAMETER * num_parameters(space.setting.model) / space.world_size
    is_large = shared >= LEAST_OFFLOADED_SHARE * space.setting.cluster.device.memory_bytes
    return is_large or "offload_optimizer" in space.pinned


def _orders(space: Space, sizes: Sizes) -> list[bool]:
    """Return the orders of ranks to try: stages as neighbours (True) or replicas; one if the order means nothing."""
    one_node = space.world_size <= space.setting.cluster.devices_per_node
    if sizes.pipeline == 1 or sizes.num_replicas == 1 or one_node:
        return space.allowed_values("pipeline_before_data", [bool(space.pinned.get("pipeline_before_data"))])
    return space.allowed_values("pipeline_before_data", [False, True], **sizes.several)


def _zero_groups(space: Space, sizes: Sizes) -> list[int | None]:
    """All replicas, those of a node, and where the batch has no more sequences than there are devices further sizes.

    Narrower groups add up more gradients between groups, and those that leave a node gather over the network. Either
    is worth it at most where there are few micro-batches to hide what all replicas would have to gather and reduce.
    """
    devices = space.setting.cluster.devices_per_node
    few = space.global_batch_size <= space.world_size
    further = reversed(divisors(devices)) if few else ()
    tried = list(dict.fromkeys((devices // sizes.tensor, *further)))
    groups = [space.pinned["zero_group_size"]] if "zero_group_size" in space.pinned else tried
    torn, replicas = runs(space.setting.implementation, TORN_ZERO_GROUPS, True), sizes.num_replicas
    sizes_run = [size for size in groups if isinstance(size, int) and (torn or size % sizes.context == 0)]
    return [None, *(size for size in sizes_run if 1 < size < replicas and replicas % size == 0)]


def divisors(number: int) -> list[int]:
    return list(_divisors(number))


@lru_cache(maxsize=4096)  # a search asks many times for the divisors of few numbers
def _divisors(number: int) -> tuple[int, ...]:
    small = [size for size in range(1, isqrt(number) + 1) if number % size == 0]
    # Divisors come in pairs around the root, whose own pair is counted once.
    return (*small, *(number // size for size in reversed(small) if size * size != number))


MOST_TYPES = 3
"""The most types of devices in one job. Each further type multiplies the number of assignments by about the number of
layers, which with four types makes billions."""


def require_few_types(clusters: list[str]) -> None:
    """Raises ConfigError for one job over so many clusters that its assignments could not all be searched."""
    if len(clusters) > MOST_TYPES:
        problem = f"names {len(clusters)} types of devices, and a search of one job goes through {MOST_TYPES} at most"
        raise ConfigError("--mixed", ",".join(clusters), problem, "Leave the slowest or the smallest out.")


def padded_model(model: ModelSpec, tensor_parallel_sizes: Iterable[int]) -> ModelSpec:
    """The model with so many rows that each of these sizes divides them; itself if they do already."""
    sizes = [size for size in tensor_parallel_sizes if size > 0]
    if all(model.vocab_size % size == 0 for size in sizes):
        return model
    return model.model_copy(update={"vocab_size": padded_vocabulary(model.vocab_size, lcm(*sizes))})


def padded_for(parts: Holder, tensor_parallel_size: int) -> Holder:
    """The parts with the model as a plan of this tensor-parallel size needs it."""
    model = padded_model(parts.model, [tensor_parallel_size])
    return parts if model is parts.model else parts.model_copy(update={"model": model})
