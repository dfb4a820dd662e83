"""Data parallelism: gradients are summed over the replicas while backward runs, and ZeRO shares out the update.

ZeRO-0 keeps everything on every replica. ZeRO-1 shards the optimizer state: each replica updates one shard of every
bucket, and the updated weights are gathered. ZeRO-2 keeps no more of the gradients than that shard, so each backward
pass is reduced by itself (arXiv 1910.02054, section 5). ZeRO-3 is in `fully_sharded`.

All parameters of a rank lie in a few flat buckets, each with a gradient of the same length, so that every pass over
parameters (the sum over replicas, the norm, the update) is one operation or one collective on a bucket. Which of them
share a bucket is said in `costs.shared_rules`.

    weights    | qkv.weight | projection.weight | up.weight | ... | padding |     parameters are views of it
    gradients  | qkv.weight | projection.weight | up.weight | ... | padding |     filled by the backward passes
               |  shard of replica 0   |  shard of replica 1   |   ...      |

A bucket's way through a step, on each of two replicas:

    backward         gradients  |ggggggggggggggggg|    every parameter adds its own, and tells the bucket's `Reduction`
    the last came    gradients  |  sum over both  |    travels while backward goes on with the layers before
    update           weights    |wwwwwwww|        |    replica 0 its shard, replica 1 the other; under ZeRO-0 both all
    share_weights    weights    |wwwwwwww|wwwwwwww|    gathered
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from conf.plan.experiment import Experiment
from costs.shared_rules import MAX_BUCKET_ELEMENTS, Treatment, bucket_members, padded_length
from train_core.model.initialize import DTYPES
from train_core.parallel.collectives import Axis, Pending, all_gather, all_reduce, reduce_scatter, shard
from train_core.parallel.main_gradient import attach
from train_core.parallel.mesh import Mesh
from train_core.parallel.narrow import has_wide_products
from train_core.parallel.parallelize import Stage, treatment_of

if TYPE_CHECKING:
    from train_core.parallel.fully_sharded import FullySharded

Replicas: TypeAlias = "FlatReplicas | FullySharded"
"""This rank's part of what the replicas update together, as a list of flat parts.

All lists that the methods return have one entry for each part, in the same order.
"""


class BucketMember(NamedTuple):
    """A parameter's place in its bucket: elements `start` to `start + parameter.numel()`.

    Attributes:
        name: the parameter's name in this rank's stage.
        num_uses: how many modules have the parameter; each adds to its gradient in every backward pass.
    """

    name: str
    parameter: nn.Parameter
    start: int
    num_uses: int

    def of(self, flat: Tensor) -> Tensor:
        """The parameter's part of a tensor that is as long as the bucket, as a view."""
        return flat[self.start : self.start + self.parameter.numel()].view(self.parameter.shape)


@dataclass(frozen=True, eq=False)
class Bucket:
    """Weights (n) in the compute precision, gradients (n) in the accumulation precision.

    n is a multiple of the number of replicas, so that each has an equal shard.

    Attributes:
        replicas: the ranks over which the gradients are summed.
    """

    treatment: Treatment
    members: tuple[BucketMember, ...]
    weights: Tensor
    gradients: Tensor
    replicas: Axis


def flatten(
    stage: Stage, mesh: Mesh, gradient_dtype: torch.dtype = torch.float32, max_elements: int = MAX_BUCKET_ELEMENTS
) -> Iterator[Bucket]:
    """Move the parameters of `stage` into buckets, of which they become views, one bucket at a time."""
    # Two for a tied embedding beside its head: every module that has a parameter adds a gradient of its own to it.
    named = (each for chunk in stage.chunks for each in chunk.named_parameters(remove_duplicate=False))
    uses = Counter(id(parameter) for _, parameter in named)
    buckets = bucket_members(
        stage.named_parameters(),
        lambda named: treatment_of(stage, *named),
        lambda named: named[1].numel(),
        max_elements,
    )
    for treatment, members in buckets:
        yield _bucket(treatment, members, uses, gradient_dtype, mesh.axis(*treatment.reduced_over))


def _bucket(
    treatment: Treatment,
    named: list[tuple[str, nn.Parameter]],
    uses: Counter[int],
    gradient_dtype: torch.dtype,
    replicas: Axis,
) -> Bucket:
    members, used = list[BucketMember](), 0
    for name, parameter in named:
        members.append(BucketMember(name, parameter, used, uses[id(parameter)]))
        used += parameter.numel()
    length, first = padded_length(used, replicas.size), named[0][1]
    # Zeros, so that the padding adds nothing to a norm, and the update leaves it as it is.
    weights = torch.zeros(length, dtype=first.dtype, device=first.device)
    for member in members:
        member.of(weights).copy_(member.parameter.detach())
        # The data is replaced and not the parameter, which modules and the tied head go on sharing.
        member.parameter.data = member.of(weights)
    return Bucket(treatment, tuple(members), weights, weights.new_zeros(length, dtype=gradient_dtype), replicas)


def shard_range(bucket: Bucket, replica: int | None = None) -> range:
    """The elements of a bucket that are a replica's, or this rank's, where replicas share it out."""
    width, replica = len(bucket.weights) // bucket.replicas.size, bucket.replicas.rank if replica is None else replica
    return range(replica * width, (replica + 1) * width)


def replicas_of(stage: Stage, mesh: Mesh, experiment: Experiment) -> Replicas:
    """The replicas of a stage whose parameters lie on the devices that train."""
    if experiment.is_fully_sharded:
        from train_core.parallel.fully_sharded import FullySharded  # here, because FSDP2 takes a second to import

        return FullySharded(stage, mesh, experiment)
    weight = stage.named_parameters()[0][1]
    on_gpu, is_wide = weight.is_cuda, has_wide_products(weight.dtype, weight.device)
    return FlatReplicas(stage, mesh, experiment, scatters=on_gpu, gathers_late=on_gpu, is_wide=is_wide)


class FlatReplicas:
    """Replicas whose parts are shards of flat buckets, or whole buckets under ZeRO-0.

    Attributes:
        is_sharded: each replica updates another part.
        scatters: gradients are reduced to shards; else they are summed whole, which gloo does faster.
        gathers_late: updated weights travel beside the next forward pass, from the step's start on. It does not pay on
            a CPU, where the cores that compute also carry them.
        is_wide: gradients of narrow weights are made in the type in which they are accumulated.
        in_flight: the latest sum of ZeRO-2 that is on its way; there is one at a time, so that few buckets have memory
            at once.
    """

    def __init__(
        self, stage: Stage, mesh: Mesh, experiment: Experiment, *, scatters: bool, gathers_late: bool, is_wide: bool
    ) -> None:
        """`scatters` and `gathers_late` count only where ZeRO shards something."""
        self.is_wide = is_wide
        zero_stage, gradient_dtype = experiment.parallel.zero_stage, DTYPES[experiment.precision.gradient_dtype]
        self.stage, self.mesh = stage, mesh
        # With tensor ranks experts have replicas where nothing else has: those ranks share out their tokens.
        self.is_sharded = zero_stage >= 1 and max(mesh.replicas.size, mesh.num_expert_replicas) > 1
        self.scatters, self.gathers_late = self.is_sharded and scatters, self.is_sharded and gathers_late
        self.in_flight: ShardReduction | None = None
        # Whether updated shards have yet to be gathered, and the gathers on their way, by the number of their bucket.
        self.are_apart, self.gathering = False, dict[int, Pending]()
        self.treatments, self.buckets, self.reductions = list[Treatment](), list[Bucket](), list[Reduction]()
        for bucket in flatten(stage, mesh, gradient_dtype):
            self.treatments.append(bucket.treatment)
            self.buckets.append(bucket)
            self.reductions.append(
                ShardReduction(bucket, self)  # lets the gradients' memory go before the next bucket takes any
                if zero_stage == 2 and self.is_sharded
                else Reduction(bucket, self, experiment.num_micro_batches)
            )
        if self.is_sharded:
            # Weights may still be on their way when a forward pass begins.
            self._wait_before_use()

    def own(self, bucket: Bucket, flat: Tensor) -> Tensor:
        """The part of one of a bucket's tensors that this rank updates, as a view."""
        return shard(flat, bucket.replicas) if self.is_sharded else flat

    def shared_over(self, index: int) -> Axis:
        """The replicas that share out a part."""
        return self.buckets[index].replicas if self.is_sharded else Axis()

    def range_of(self, index: int, replica: int | None = None) -> range:
        """The elements of a part's bucket that a replica updates, or this rank."""
        bucket = self.buckets[index]
        return shard_range(bucket, replica) if self.is_sharded else range(len(bucket.weights))

    def members(self, index: int) -> list[tuple[str, torch.Size, int]]:
        """Of a part: name, shape and first element of each parameter, as `range_of` counts them."""
        return [(each.name, each.parameter.shape, each.start) for each in self.buckets[index].members]

    def own_weights(self) -> list[Tensor]:
        """The weights that this rank updates, as views."""
        return [self.own(bucket, bucket.weights) for bucket in self.buckets]

    def zero_gradients(self) -> None:
        """Begin a step: forget the gradients of the one before."""
        self._gather()
        for reduction in self.reductions:
            reduction.begin()

    def reduced_gradients(self) -> list[Tensor]:
        """The gradients of the weights that this rank updates, summed over the replicas."""
        return [reduction.finish() for reduction in self.reductions]

    def share_weights(self) -> None:
        """Have every replica's weights made whole again after each has updated its own part."""
        # Only noted: where weights are gathered late, `zero_gradients` starts that at the next step's beginning.
        self.are_apart = self.is_sharded
        if not self.gathers_late:
            self.wait_for_weights()

    def _gather(self) -> None:
        """Start making weights whole that are not."""
        if self.are_apart:
            self.are_apart = False
            for index, bucket in enumerate(self.buckets):
                # A copy of the shard, because gloo does not allow the input to lie inside the output.
                own = self.own(bucket, bucket.weights).clone()
                self.gathering[index] = all_gather(own, bucket.replicas, into=bucket.weights)

    def wait_for_weights(self) -> None:
        """Wait until the weights may be read by others than the model's forward passes."""
        self._wait_for(range(len(self.buckets)))

    def after_evaluation(self) -> None:
        """Let go what forward passes have left: nothing, because every replica keeps whole weights."""

    def _wait_for(self, buckets: Iterable[int], *_: object) -> None:
        self._gather()
        for index in buckets:
            if (gathering := self.gathering.pop(index, None)) is not None:
                gathering.wait()

    def _wait_before_use(self) -> None:
        """Have each part of the model wait for the buckets of its weights before its next forward pass."""
        holding = {id(member.parameter): i for i, bucket in enumerate(self.buckets) for member in bucket.members}
        # Hooks on layers and not on the chunk: the first layer then computes while the weights of later ones travel.
        for chunk in self.stage.chunks:
            for part in (*chunk.layers.values(), *(child for child in chunk.children() if child is not chunk.layers)):
                # In the order in which their gathers are started, and so arrive.
                buckets = sorted({holding[id(parameter)] for parameter in part.parameters()})
                part.register_forward_pre_hook(partial(self._wait_for, buckets))

    def start(self, bucket: Bucket) -> Pending:
        """Start the sum of a bucket's gradients over its replicas."""
        if self.scatters:
            # In place: the sum may be written into this rank's share of what is summed, and takes no memory of its own.
            return reduce_scatter(bucket.gradients, bucket.replicas, into=self.own(bucket, bucket.gradients))
        return all_reduce(bucket.gradients, bucket.replicas)


class Reduction:
    """Sums one bucket's gradients over the replicas as soon as this rank has added all of a step's to it."""

    def __init__(self, bucket: Bucket, replicas: FlatReplicas, num_passes: int) -> None:
        """The sum starts after `num_passes` backward passes have added their gradients."""
        self.bucket, self.replicas = bucket, replicas
        # Counting is enough to know when the last gradient has come, whatever the schedule's order is.
        self.num_gradients = num_passes * sum(member.num_uses for member in bucket.members)
        self.missing = self.num_gradients
        self.pending: Pending | None = None
        for member in bucket.members:
            attach(member.parameter, member.of(bucket.gradients), self, is_wide=replicas.is_wide)

    def begin(self) -> None:
        self.bucket.gradients.zero_()

    def before_gradient(self) -> None:
        """The buffer is there for the whole step."""

    def after_gradient(self) -> None:
        self.missing -= 1
        if self.missing == 0:
            # Counting starts anew here, since under ZeRO-2 the next pass may add before the step ends.
            self.missing = self.num_gradients
            self.pending = self.replicas.start(self.bucket)

    def finish(self) -> Tensor:
        assert self.pending is not None, "a parameter of the bucket got no gradient"
        self.pending.wait()
        self.pending = None
        return self.replicas.own(self.bucket, self.bucket.gradients)


class ShardReduction(Reduction):
    """Sums every backward pass over the replicas and keeps this rank's shard; the whole bucket has memory only while a
    pass adds to it or its sum is on its way.
    """

    def __init__(self, bucket: Bucket, replicas: FlatReplicas) -> None:
        super().__init__(bucket, replicas, num_passes=1)
        self.shard = torch.zeros_like(replicas.own(bucket, bucket.gradients))
        # An empty storage frees the memory but keeps the tensor, of which the parameters' buffers are views.
        self.storage, self.num_bytes = bucket.gradients.untyped_storage(), bucket.gradients.nbytes
        self.storage.resize_(0)

    def begin(self) -> None:
        self.shard.zero_()

    def before_gradient(self) -> None:
        # The sum of the pass before may still travel in this very buffer.
        self._collect()
        # The first gradient of a pass finds no memory, and takes some.
        if not self.storage.size():
            self.storage.resize_(self.num_bytes)
            self.bucket.gradients.zero_()

    def after_gradient(self) -> None:
        super().after_gradient()
        # A sum has just started. The one before it is collected now, so that at most two buckets have memory.
        if self.pending is not None:
            if (before := self.replicas.in_flight) is not None:
                before._collect()
            self.replicas.in_flight = self

    def _collect(self) -> None:
        """Add what has been summed to the shard, and let the bucket's memory go."""
        if self.pending is not None:
            self.pending.wait()
            self.pending = None
            self.shard.add_(self.replicas.own(self.bucket, self.bucket.gradients))
            self.storage.resize_(0)

    def finish(self) -> Tensor:
        self._collect()
        return self.shard
