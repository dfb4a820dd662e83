"""The limits on the size of a search."""

from __future__ import annotations

from conf.errors import ConfigError
from conf.model_spec import ModelSpec
from conf.schema import BatchPlan
from train_core.costs.counts.computable import require_computable

MOST_SEQUENCES = 10**9
"""The largest global batch that is searched. Real trainings use thousands of sequences. A search finds every divisor
of the number and tries each as a micro-batch, which for a far larger number would take very long."""
MOST_TYPES = 3
"""The most types of devices in one job. Each further type multiplies the number of assignments by about the number of
layers, which with four types makes billions."""


def require_searchable(model: ModelSpec, batch: BatchPlan) -> None:
    """Refuse a model or a batch whose plans are too many to go through or too large to price exactly.

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
    """Refuse one job over so many clusters that its assignments could not all be searched.

    Raises:
        ConfigError: there are too many.
    """
    if len(clusters) > MOST_TYPES:
        problem = f"names {len(clusters)} types of devices, and a search of one job goes through {MOST_TYPES} at most"
        raise ConfigError("mixed", ",".join(clusters), problem, "Leave the slowest or the smallest out.")
