"""The error for a checkpoint that could not be written, and what to do about it."""

from __future__ import annotations

import errno
import shutil
from math import prod
from pathlib import Path

import torch
from torch.distributed.checkpoint.api import CheckpointException

from conf.errors import TrainingError
from conf.model_spec import ModelSpec
from conf.units import GIBIBYTE
from train_core.checkpoints.checkpoint_folder import Facts
from train_core.checkpoints.reader import failure_of_a_rank
from train_core.model.transformer import Transformer

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
BYTES_A_PARAMETER = 12
"""A weight and two moments in fp32."""


def free_bytes(folder: Path) -> int:
    """Room on the file system; a quota may leave less."""
    return shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free


def not_written(
    error: OSError | CheckpointException, rank: int, folder: Path, facts: Facts, free: int
) -> BaseException:
    """The exception to raise: a TrainingError where a file could not be written, which blames the rank that tried.

    Args:
        free: room that there was before.
    """
    if isinstance(error, OSError):
        return _refusal(error, rank, folder, facts, free)
    failures = sorted(error.failures.items(), key=lambda failure: failure[0])
    for failed, (cause, _) in failures:
        if isinstance(cause, OSError):
            return _refusal(cause, failed, folder, facts, free)
    failed, (cause, _) = failures[0]
    return failure_of_a_rank(failed, cause)


def _refusal(error: OSError, rank: int, folder: Path, facts: Facts, free: int) -> TrainingError:
    problem = f"rank {rank} could not write the checkpoint of step {facts.step} to {folder}: {error}"
    if error.errno not in FULL:
        return TrainingError(problem, "Mend that, or choose another output_dir.", rank)
    needed = BYTES_A_PARAMETER * _num_parameters(facts.model)
    room = f"it takes about {needed / GIBIBYTE:.3g} GiB, and {free / GIBIBYTE:.3g} GiB were free"
    return TrainingError(
        f"{problem} ({room})",
        "Make room there, and the same command goes on from the checkpoint before; or choose another output_dir.",
        rank,
    )


def _num_parameters(model: ModelSpec) -> int:
    with torch.device("meta"):
        return sum(prod(parameter.shape) for parameter in Transformer(model).parameters())
