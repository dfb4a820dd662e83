"""How large a search may be."""

from __future__ import annotations

from conf.errors import ConfigError
from conf.schema import BatchPlan
from conf.world import ModelSpec
from train_core.costs.computable import require_computable

MOST_SEQUENCES = 10**9
"""In a global batch. What is trained with is thousands; every divisor of a batch is tried as a micro-batch."""
MOST_TYPES = 3
"""Of devices in one job: every type more multiplies the assignments by the layers, to billions with four."""


def require_searchable(model: ModelSpec, batch: BatchPlan) -> None:
    """Nothing, if all plans of the model and the batch can be gone through and priced exactly.

    Args:
        batch: its micro-batch is the pinned one, else 1.

    Raises:
        ConfigError: the model, the pinned micro-batch or the batch is too large for that.
    """
    if batch.global_batch_size > MOST_SEQUENCES:
        raise ConfigError(
            "batch.global_batch_size",
            batch.global_batch_size,
            f"is more sequences than the {MOST_SEQUENCES:,} that a search takes",
            "Give the sequences, not the tokens, of one optimizer step.",
        )
    require_computable(model, batch.micro_batch_size)


def require_few_types(clusters: list[str]) -> None:
    """Nothing, if one job over the devices of these clusters can be searched.

    Raises:
        ConfigError: there are too many.
    """
    if len(clusters) > MOST_TYPES:
        problem = f"names {len(clusters)} types of devices, and a search of one job goes through {MOST_TYPES} at most"
        raise ConfigError("mixed", ",".join(clusters), problem, "Leave the slowest or the smallest out.")
