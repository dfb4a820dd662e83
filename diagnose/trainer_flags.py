"""Flags of trainers that no column of a table says, and what a step costs without them.

A prediction takes for granted that they are set as people set them who know. Where a run's files say otherwise, its
step is priced without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from conf.plan.setup import Setup
from costs import IMPLEMENTATIONS, Implementation
from diagnose.evidence import OFF, FileEvidence, column_says, is_off, is_on, setting_of
from diagnose.runs import UserRun

LAUNCH_BLOCKING = ("CUDA_LAUNCH_BLOCKING", "HIP_LAUNCH_BLOCKING")
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
Finder = Callable[[UserRun], FileEvidence | None]


@dataclass(frozen=True)
class TrainerFlag:
    """One flag that costs time where it is not set as it should be.

    Attributes:
        trainers: for whose costs this holds.
        found: the line that shows that it is set wrongly.
        without: facts of the trainer while it is.
        applies: whether it makes any difference to such a plan.
        title: what the run does for the lack of it.
        remedy: what to write, in the trainer's words.
        flags: those that files of conf/trainer give every run, and that such a run has not.
    """

    name: str
    trainers: tuple[str, ...]
    found: Finder
    without: Mapping[str, Any]
    applies: Callable[[Setup], bool]
    title: str
    remedy: str
    flags: tuple[str, ...] = ()


def _has_replicas(setup: Setup) -> bool:
    return setup.num_replicas > 1


def _splits_tensors(setup: Setup) -> bool:
    return setup.parallel.tensor_parallel_size > 1


def _one_connection(run: UserRun) -> FileEvidence | None:
    return is_on(run, CONNECTIONS)


def _other_connections(run: UserRun) -> FileEvidence | None:
    found = setting_of(run, CONNECTIONS)
    return FileEvidence(f"{CONNECTIONS} = {found[1].value}", found[1].at) if found and found[1].value != "1" else None


def _blocks_launches(run: UserRun) -> FileEvidence | None:
    column = run.columns.get("launch_blocking")
    if column is not None:
        return None if column.value.lower() in OFF else column_says(run, "launch_blocking")
    return is_on(run, *LAUNCH_BLOCKING)


TRAINER_FLAGS = (
    TrainerFlag(
        name="launch blocking",
        trainers=tuple(IMPLEMENTATIONS),
        found=_blocks_launches,
        without={"blocks_launches": True},
        applies=lambda setup: setup.cluster.device.kind == "gpu",
        title="the host waits for every kernel before it launches the next, and nothing runs beside anything else",
        remedy=f"unset {LAUNCH_BLOCKING[0]}",
    ),
    TrainerFlag(
        name="overlap of the gradients' reduction",
        trainers=("megatron-core",),
        found=lambda run: is_off(run, "overlap_grad_reduce"),
        without={"data_overlap": 0.0},
        applies=_has_replicas,
        title="gradients are reduced after the backward pass, not beside it",
        remedy="--overlap-grad-reduce, and with the distributed optimizer --overlap-param-gather",
        flags=("--overlap-grad-reduce", "--overlap-param-gather"),
    ),
    TrainerFlag(
        name="overlap of ZeRO's communication",
        trainers=("deepspeed", "megatron-deepspeed"),
        found=lambda run: None if setting_of(run, "overlap_comm") is None else is_off(run, "overlap_comm"),
        without={"data_overlap": 0.0, "sharded_overlap": 0.0},
        applies=_has_replicas,
        title="gradients are reduced after the backward pass, not beside it",
        remedy='"overlap_comm": true in "zero_optimization"',
    ),
    TrainerFlag(
        name="one connection to the device",
        trainers=("fsdp", "torchtitan"),
        found=_one_connection,
        without={"data_overlap": 0.0, "sharded_overlap": 0.0},
        applies=lambda setup: _has_replicas(setup) and setup.parallel.zero_stage >= 2,
        title="one queue to the device puts FSDP's gathers behind the products that they should run beside",
        remedy=f"unset {CONNECTIONS}",
    ),
    TrainerFlag(
        name="several connections to the device",
        trainers=("megatron-lm", "megatron-core"),
        found=_other_connections,
        without={"overlaps_weight_gradient": False},
        applies=_splits_tensors,
        title="tensor ranks' reductions may start too late to run beside the weights' gradients",
        remedy=f"export {CONNECTIONS}=1",
    ),
    TrainerFlag(
        name="asynchronous tensor-parallel reduction",
        trainers=("megatron-lm", "megatron-core"),
        found=lambda run: is_on(run, "no_async_tensor_model_parallel_allreduce"),
        without={"overlaps_weight_gradient": False},
        applies=_splits_tensors,
        title="tensor ranks' reductions do not run beside the weights' gradients",
        remedy="leave out --no-async-tensor-model-parallel-allreduce",
    ),
    TrainerFlag(
        name="overlap of tensor-parallel collectives",
        trainers=("megatron-core",),
        found=lambda run: None if "async_tp" in run.columns else is_off(run, "tp_comm_overlap"),
        without={"tensor_overlap": 0.0},
        applies=lambda setup: _splits_tensors(setup) and setup.parallel.sequence_parallel,
        title="tensor ranks wait for their gathers and reductions, none of which is cut into pieces",
        remedy="--tp-comm-overlap, which needs Transformer Engine with its user buffers",
    ),
    TrainerFlag(
        name="overlap of transfers between chunks",
        trainers=("megatron-core",),
        found=lambda run: is_on(run, "no_overlap_p2p_communication"),
        without={"overlaps_chunk_transfers": False},
        applies=lambda setup: setup.parallel.virtual_pipeline_size > 1,
        title="transfers between chunks do not run beside other chunks",
        remedy="leave out --no-overlap-p2p-communication",
    ),
    TrainerFlag(
        name="one product for all experts",
        trainers=("megatron-core",),
        found=lambda run: None if "grouped_gemm" in run.columns else is_off(run, "moe_grouped_gemm"),
        without={"groups_experts": False},
        applies=lambda setup: setup.model.experts is not None,
        title="the products of a rank's experts follow one another",
        remedy="--moe-grouped-gemm",
        flags=("--moe-grouped-gemm",),
    ),
)


def wrong_flags(run: UserRun, setup: Setup, trainer: Implementation) -> list[tuple[TrainerFlag, FileEvidence]]:
    """The flags that the run's files show to be set wrongly, of those that change its trainer's costs, and where."""
    return [
        (flag, found)
        for flag in TRAINER_FLAGS
        if trainer.name in flag.trainers
        and flag.applies(setup)
        and any(getattr(trainer, name) != value for name, value in flag.without.items())
        and (found := flag.found(run)) is not None
    ]
