"""The plan of a calibration, and its results. No torch here: the login node writes the plan and reads the rates."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from conf.types.model_spec import ModelSpec
from conf.types.schema import Count, Dtype, Frozen, Name, Positive
from costs.layer.context import FLASH_BACKWARD_TO_FORWARD
from train_core.trial.atomic import keep_room, write_atomically, write_in_room
from train_core.trial.folder import JobFolder, PathInside
from train_core.trial.measurement import Environment

Pattern = Literal["all_reduce", "all_gather", "reduce_scatter", "transfer"]
PATTERNS: tuple[Pattern, ...] = ("all_reduce", "all_gather", "reduce_scatter", "transfer")

SMALL_LAYER = ModelSpec(
    name="small-layer",
    family="gpt",
    num_layers=1,
    hidden_size=16,
    ffn_hidden_size=64,
    num_attention_heads=2,
    num_query_groups=2,
    head_size=None,
    rotary_base=None,
    gated_mlp=False,
    tied_embeddings=True,
    vocab_size=16,
    seq_length=4,
)
"""A layer so small that its arithmetic costs nothing beside the calls."""


class MeasuredSpread(Frozen):
    """One quantity, measured several times."""

    median: Positive
    lowest: Positive
    highest: Positive

    @classmethod
    def of(cls, samples: Sequence[float]) -> MeasuredSpread:
        return cls(median=statistics.median(samples), lowest=min(samples), highest=max(samples))

    def times(self, factor: float) -> MeasuredSpread:
        return MeasuredSpread(median=self.median * factor, lowest=self.lowest * factor, highest=self.highest * factor)


class Product(Frozen):
    """A matrix product (rows, depth) x (depth, columns)."""

    rows: Count
    columns: Count
    depth: Count

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.columns * self.depth


class AttentionShape(Frozen):
    """Causal attention of whole heads, forward and backward."""

    num_sequences: Count
    num_heads: Count
    seq_length: Count
    head_size: Count

    @property
    def flops(self) -> float:
        """FLOPs of the lower triangle alone, as the cost model counts those of a fused kernel."""
        forward = 2 * self.num_sequences * self.num_heads * self.seq_length**2 * self.head_size
        return (1 + FLASH_BACKWARD_TO_FORWARD) * forward


class LinkPlan(Frozen):
    """One link tier as a job reaches it.

    Attributes:
        stride: devices of a block of the next closer tier: ranks that many apart can only meet through this link.
        num_members: such ranks in one block of the tier, as far as the job goes.
        group_sizes: the sizes of groups to measure; all groups of one size work at once.
    """

    name: str
    stride: Count
    num_members: Count
    group_sizes: Annotated[tuple[Count, ...], Field(strict=False)]


class RatesPlan(Frozen):
    """The measurements that every rank of a calibration makes; all ranks at the same time, as in training.

    Attributes:
        kind: what the ranks compute on; a CPU rank is one thread.
        large_products: those that a data-sheet peak is held against.
        thin_products: those of a tensor-parallel layer.
        memory_bytes: the size of each buffer that is copied.
        num_small_kernels: queued behind a large product, where kernels are queued (on a GPU).
        kernels_per_layer: of one layer forward and backward, as the cost model counts them.
        message_bytes: whole tensors of collectives and transfers, ascending.
        num_samples: each quantity is measured that often, for `sample_seconds` each.
    """

    kind: Literal["gpu", "cpu"]
    world_size: Count
    dtypes: Annotated[tuple[Dtype, ...], Field(strict=False)]
    large_products: Annotated[tuple[Product, ...], Field(strict=False)]
    thin_products: Annotated[tuple[Product, ...], Field(strict=False)]
    attention_shapes: Annotated[tuple[AttentionShape, ...], Field(strict=False)]
    memory_bytes: Count
    num_small_kernels: Count
    kernels_per_layer: Count
    links: Annotated[tuple[LinkPlan, ...], Field(strict=False)]
    message_bytes: Annotated[tuple[Count, ...], Field(strict=False)]
    num_samples: Count
    sample_seconds: Positive


class ProductRate(Frozen):
    """The rate of one product in one precision.

    Attributes:
        flops_per_second: the rate of one rank, as the mean over all.
    """

    dtype: Dtype
    product: Product
    is_large: bool
    flops_per_second: MeasuredSpread


class AttentionRate(Frozen):
    dtype: Dtype
    shape: AttentionShape
    flops_per_second: MeasuredSpread


class LinkTime(Frozen):
    """Seconds of one collective or transfer of the slowest group.

    Attributes:
        num_bytes: the size of the whole tensor that is reduced, gathered into, scattered from, or sent.
    """

    link: str
    pattern: Pattern
    num_ranks: Count
    num_bytes: Count
    seconds: MeasuredSpread


class DeviceRates(Frozen):
    """`rates.json`: all that was measured.

    Attributes:
        copy_bytes_per_second: bytes that one rank reads and writes; `triad...` is a + s b, two reads and a write.
        kernel_seconds: the time of one kernel that computes next to nothing.
        hostnames: the hosts of all ranks, sorted.
        cores_per_host: cores that the ranks of a host may use together, on the host with the fewest.
        finished: seconds since the epoch.
    """

    plan: RatesPlan
    products: Annotated[tuple[ProductRate, ...], Field(strict=False)]
    attentions: Annotated[tuple[AttentionRate, ...], Field(strict=False)]
    copy_bytes_per_second: MeasuredSpread
    triad_bytes_per_second: MeasuredSpread
    kernel_seconds: MeasuredSpread
    link_times: Annotated[tuple[LinkTime, ...], Field(strict=False)]
    environment: Environment
    hostnames: Annotated[tuple[Name, ...], Field(strict=False)]
    cores_per_host: Count
    finished: float


class RankFacts(Frozen):
    """What a rank found of its device before the training; all of it is 0 or None where it cannot be told.

    Attributes:
        free_bytes, total_bytes: of the device's memory, before anything of ours was there; 0 on a CPU.
        product_flops_per_second: of one large product in fp16, in fp32 on a CPU.
        product_is_right: the product of ones is what it must be.
        clock_hertz: of the device right after it.
        bus_bytes_per_second: what passes a rank in an all-reduce over all ranks; None for a single rank.
        sum_is_right: the all-reduce of ones is what it must be.
    """

    rank: int
    node: str
    free_bytes: int
    total_bytes: int
    product_flops_per_second: Positive
    product_is_right: bool
    clock_hertz: Positive | None
    bus_bytes_per_second: Positive | None
    sum_is_right: bool


class RatesFolder(JobFolder):
    """One calibration on disk; besides what every job's folder has:

    calibrate.lock  held (flock) by the one process that calibrates
    plan.json       the `RatesPlan`; written by that process
    progress        one line for every part that rank 0 begins
    rates.json      the `DeviceRates`, once all is measured
    """

    lock = PathInside("calibrate.lock")
    plan = PathInside("plan.json")
    progress = PathInside("progress")
    rates = PathInside("rates.json")

    def prepare(self, plan: RatesPlan) -> None:
        """Forget an earlier calibration and write what this one measures."""
        self.forget_failures()
        for path in (self.progress, self.rates, self.submission, *self.logs.glob("*")):
            path.unlink(missing_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        write_atomically(self.plan, plan.model_dump_json(indent=1))
        keep_room(self.rates)

    def read_plan(self) -> RatesPlan:
        return RatesPlan.model_validate_json(self.plan.read_text())

    def tell(self, line: str) -> None:
        """Add a line for those who wait. A disk that takes none ends nothing."""
        with contextlib.suppress(OSError), self.progress.open("a") as file:
            file.write(line + "\n")

    def last_line(self) -> str:
        """The newest line; empty before the first."""
        with contextlib.suppress(OSError):
            lines = self.progress.read_text(errors="replace").splitlines()
            return lines[-1] if lines else ""
        return ""

    def write_rates(self, rates: DeviceRates) -> None:
        write_in_room(self.rates, rates.model_dump_json(indent=1))

    def read_rates(self) -> DeviceRates | None:
        """The rates; None until they have been written whole."""
        return self.read(DeviceRates, self.rates)
