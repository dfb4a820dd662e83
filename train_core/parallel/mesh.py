"""The mesh: this rank's group along each axis, and its channels to the neighbouring stages.

Which ranks those are is said in `costs.axes`; `groups` makes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch.distributed as dist

from costs.axes import EXPERT_REPLICAS, REPLICAS, Layout
from costs.shared_rules import Treatment
from train_core.parallel.clock import Clock, Line
from train_core.parallel.collectives import Axis


@dataclass(frozen=True)
class Channel:
    """Activations or gradients from one stage to one other.

    Each has a group of its own: NCCL runs the operations of a group one after the other, so that with a shared one a
    send could wait behind a receive whose other end waits for that very send.
    """

    peer: int
    group: dist.ProcessGroup | None
    line: Line


@dataclass(frozen=True)
class Mesh:
    """The groups and channels of this rank.

    Attributes:
        clock: is told of every wait on the axes and channels.
        axes: the groups of this rank by the axes that they lie along, and the first and the last stage as `ENDS`.
        activations_in: from the stage before; gradients_in from the one after. None at the ends of the pipeline,
            unless it is a ring.
    """

    layout: Layout
    clock: Clock
    world: Axis
    axes: Mapping[tuple[str, ...], Axis]
    activations_in: Channel | None = None
    activations_out: Channel | None = None
    gradients_in: Channel | None = None
    gradients_out: Channel | None = None

    def axis(self, *names: str) -> Axis:
        """The ranks that differ from this one along these axes alone; all users of one group share it."""
        return self.axes[names]

    def counts(self, treatment: Treatment) -> bool:
        """True if this rank counts such parameters in norms and checkpoints: of several copies the first one does."""
        return all(self.axis(name).rank == 0 for name in treatment.copied_over)

    @property
    def tensor(self) -> Axis:
        return self.axis("tensor")

    @property
    def pipeline(self) -> Axis:
        return self.axis("pipeline")

    @property
    def batch(self) -> Axis:
        """The ranks among which the sequences of a batch are shared out."""
        return self.axis("data")

    @property
    def replicas(self) -> Axis:
        """The ranks over which gradients are summed, as they hold the same parameters and have other tokens."""
        return self.axis(*REPLICAS)

    @property
    def num_expert_replicas(self) -> int:
        """So many ranks hold the same experts and have other tokens; with tensor ranks there are more of them."""
        return self.axes.get((EXPERT_REPLICAS,), Axis()).size

    @property
    def is_first_stage(self) -> bool:
        return self.pipeline.rank == 0

    @property
    def is_last_stage(self) -> bool:
        return self.pipeline.rank == self.pipeline.size - 1
