"""Which sizes of context parallelism cannot exist: every rank takes two equal pieces of each sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conf.errors import InfeasiblePlan
from conf.remedies import largest_share, next_multiple

if TYPE_CHECKING:
    from conf.setup import Setup

PIECES = 2  # of each rank: one from the front and one from the end, so that the causal mask leaves all as much work


def check_context_axis(setup: Setup) -> None:
    """Refuse a size that leaves no equal pieces.

    Raises:
        InfeasiblePlan: the sequence cannot be cut so.
    """
    parallel, model = setup.parallel, setup.model
    size = parallel.context_parallel_size
    if size == 1:
        return
    shared = parallel.tensor_parallel_size if parallel.sequence_parallel else 1
    pieces = PIECES * size * shared
    if model.seq_length % pieces:
        ranks = parallel.world_size // (parallel.tensor_parallel_size * parallel.pipeline_parallel_size)
        fitting = largest_share([model.seq_length // shared // PIECES or 1, ranks], below=size)
        among = " x tensor_parallel_size" if shared > 1 else ""
        raise InfeasiblePlan(
            "parallel.context_parallel_size",
            size,
            f"does not cut model.seq_length = {model.seq_length} into {PIECES} x context_parallel_size{among} ="
            f" {pieces} equal pieces",
            f"Use model.seq_length={next_multiple(model.seq_length, pieces)}, or"
            f" parallel.context_parallel_size={fitting}.",
        )
