"""The parts of a setup, and what follows from several of them together: sizes, stages, nodes, peaks.

In a job over several types of devices each type holds a block of consecutive pipeline stages. All
stages have the same tensor- and data-parallel sizes and run the same micro-batches, so that a replica's pipeline
crosses every type. In the configuration a block is `CLUSTER:DEVICES`, and `+` puts blocks one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated

from pydantic import Field

from conf.errors import ConfigError
from conf.plan.chunks import chunk_ranges
from conf.plan.knobs import KnobValue, knob_value, label_of
from conf.types.cluster_spec import ClusterSpec
from conf.types.model_spec import ModelSpec
from conf.types.schema import BatchPlan, Count, Frozen, OptimizerName, ParallelPlan, PrecisionPlan

MIXED, EXAMPLE = "mixed", "selene:512+dgx-h100:512"
MOST_DIGITS = 18  # more than any number of devices has, and few enough for Python to read quickly


class StageBlock(Frozen):
    """Consecutive pipeline stages on so many devices of one cluster."""

    cluster: ClusterSpec
    num_devices: Count

    @property
    def num_nodes(self) -> int:
        return -(-self.num_devices // self.cluster.devices_per_node)

    @property
    def tasks_per_node(self) -> int:
        return self.num_devices // self.num_nodes

    def __str__(self) -> str:
        return f"{self.cluster.name}:{self.num_devices}"


def written_blocks(blocks: Sequence[StageBlock]) -> str:
    """The blocks as the configuration writes them, such as `selene:512+dgx-h100:512`."""
    return "+".join(map(str, blocks))


def named_blocks(text: str, key: str = MIXED, separator: str = "+", example: str = EXAMPLE) -> list[tuple[str, int]]:
    """Clusters and numbers of their devices, from a text such as `selene:512+dgx-h100:512`.

    Raises ConfigError where the text is something else.
    """
    blocks = []
    for part in text.split(separator):
        name, _, number = part.strip().partition(":")
        if not name or not is_count(number) or int(number) == 0:
            raise ConfigError(key, text, "is not a list of clusters and devices", f"Write {example}.")
        blocks.append((name, int(number)))
    return blocks


def is_count(text: str) -> bool:
    """True for a number with few enough digits; Python refuses to convert text of thousands of digits."""
    return text.isdecimal() and len(text) <= MOST_DIGITS


class SetupParts(Frozen):
    """The parts of a setup and what follows from them. They are not yet checked against each other.

    Attributes:
        mixed: blocks of stages of a job over several types of devices, first to last; null where all devices are those
            of `cluster`, which otherwise is that of one of them.
    """

    model: ModelSpec
    cluster: ClusterSpec
    parallel: ParallelPlan
    batch: BatchPlan
    precision: PrecisionPlan
    mixed: Annotated[tuple[StageBlock, ...], Field(strict=False)] | None = None

    @property
    def dropout(self) -> float:
        """The probability with which training drops values. A setup has no training, so nothing is dropped."""
        return 0.0

    @property
    def optimizer(self) -> OptimizerName:
        """That of the training; a setup without one is priced with AdamW."""
        return "adamw"

    @property
    def compiles_layers(self) -> bool:
        """True if training compiles the layers, which no setup without a training does."""
        return False

    @property
    def is_fully_sharded(self) -> bool:
        """True if weights are sharded: under ZeRO-3, if there are several replicas to share them out."""
        return self.parallel.zero_stage == 3 and self.num_replicas > 1

    @property
    def data_parallel_size(self) -> int:
        return self.parallel.data_parallel_size

    @property
    def num_replicas(self) -> int:
        return self.parallel.num_replicas

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

    @cached_property
    def chunk_ranges(self) -> tuple[tuple[range, ...], ...]:
        """Indices of the layers of each stage's model chunks, of which there are several only with interleaving."""
        return chunk_ranges(self.layers_per_stage, self.parallel.virtual_pipeline_size)

    @property
    def blocks(self) -> tuple[StageBlock, ...]:
        """The consecutive stages on each type of devices: one block of all stages, unless the job is mixed."""
        return self.mixed or (StageBlock(cluster=self.cluster, num_devices=self.parallel.world_size),)

    @property
    def stages_per_block(self) -> tuple[int, ...]:
        of_stage = self.parallel.world_size // self.parallel.pipeline_parallel_size
        return tuple(block.num_devices // of_stage for block in self.blocks)

    @property
    def clusters_of_stages(self) -> list[ClusterSpec]:
        """The cluster on whose devices each stage runs, first to last."""
        counted = zip(self.blocks, self.stages_per_block, strict=True)
        return [block.cluster for block, count in counted for _ in range(count)]

    @property
    def place(self) -> str:
        """The cluster's name, or of a mixed job the names and numbers of devices of all."""
        return self.cluster.name if self.mixed is None else written_blocks(self.mixed)

    @property
    def num_nodes(self) -> int:
        return sum(block.num_nodes for block in self.blocks)

    @property
    def tasks_per_node(self) -> int:
        """Tasks on each node; in a mixed job on those that have most."""
        return max(block.tasks_per_node for block in self.blocks)

    @property
    def peak_flops_per_second(self) -> float:
        """Declared dense peak of one device in this precision; in a mixed job the mean over all devices."""
        dtype = self.precision.dtype
        return self._mean([block.cluster.device.peak_flops_per_second[dtype] for block in self.blocks])

    @property
    def price_per_hour(self) -> float | None:
        """Dollars for an hour of one device, in a mixed job the mean over all; None where one has no known price."""
        prices = [block.cluster.device.price_per_hour for block in self.blocks]
        stated = [price for price in prices if price is not None]
        return self._mean(stated) if len(stated) == len(prices) else None

    @property
    def watts(self) -> float:
        """Design power of one device, in a mixed job the mean over all."""
        return self._mean([block.cluster.device.watts for block in self.blocks])

    def _mean(self, of_blocks: Sequence[float]) -> float:
        """The mean over all devices of what each block's devices have."""
        if len(of_blocks) == 1:  # the division could change its last digit
            return of_blocks[0]
        total = sum(block.num_devices * value for block, value in zip(self.blocks, of_blocks, strict=True))
        return total / self.parallel.world_size

    @cached_property
    def label(self) -> str:
        """A short name of the plan for people; no program parses it."""
        return label_of(self.parallel, self.batch, self.layers_per_stage)

    def knob_value(self, knob: str) -> KnobValue:
        """The value of a knob, by its name in `conf.plan.knobs`."""
        return knob_value(knob, self.parallel, self.batch)
