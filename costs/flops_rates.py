"""The FLOPs of a step and their rates, in the fields that an estimate and a measurement share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from conf.types.schema import Count, Frozen, NonNegative, Positive


class BlockRates(Frozen):
    """The rates of one type of devices in a step of a mixed job: predicted in an `Estimate`, else measured.

    Attributes:
        num_ranks: of the block of stages on this type; each has a device of its own, but ranks of a CPU may share.
        model_flops_per_second_per_device: what the block's own layers need, over the whole step and all its devices.
        peak_flops_per_second: dense peak of one of these devices, to which the utilization refers.
        peak_memory_bytes: on the fullest rank of the block.
        memory_capacity_bytes: what one of its devices has, as its maker states.
    """

    cluster: str
    device: str
    num_ranks: Count
    layers_per_stage: Annotated[tuple[Count, ...], Field(strict=False)]
    model_flops_per_second_per_device: Positive
    peak_flops_per_second: Positive
    model_flops_utilization: NonNegative
    peak_memory_bytes: int
    memory_capacity_bytes: int


def flops_fields(needed: int, executed: int, device_seconds: float, peak: float) -> dict[str, Any]:
    """The fields that state the FLOPs of a step, which are those of an `Estimate` too.

    Args:
        device_seconds: of the step, all devices together.
    """
    rate = 1 / device_seconds
    return {
        "model_flops": needed,
        "hardware_flops": executed,
        "model_flops_per_second_per_device": needed * rate,
        "hardware_flops_per_second_per_device": executed * rate,
        "peak_flops_per_second": peak,
        "model_flops_utilization": needed * rate / peak,
        "hardware_flops_utilization": executed * rate / peak,
    }
