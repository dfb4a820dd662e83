"""Whether the layers of a row were compiled, where a trainer runs them either way."""

from __future__ import annotations

from sweeps.table.cells import Row, flag_of, text_of
from sweeps.table.precision import is_narrow
from sweeps.table.remarks import said
from train_core.costs import Implementation
from train_core.costs.trainers.torchtitan import TORCHTITAN, TORCHTITAN_EAGER


def compiled_or_not(row: Row, trainer: Implementation) -> Implementation:
    """The trainer with its layers compiled or not, as the row says."""
    if trainer.name != TORCHTITAN.name or is_compiled(row):
        return trainer
    eager = {name: value for name, value in TORCHTITAN_EAGER if value != getattr(TORCHTITAN, name)}
    return trainer.model_copy(update=eager)


def is_compiled(row: Row) -> bool:
    """Whether a row of torchtitan says that it compiles, which it does not by itself.

    Narrow products and tensor-parallel collectives in pieces need it, and what the latter are compared with has it too.
    """
    if text_of(row, "compile"):
        return flag_of(row, "compile", default=False)
    words = said(row, r"compile|async ?-?tp|vanilla tp", ("model", "table")) or said(
        row, r"torch\.compile|async ?-?tp", ("notes",)
    )
    return is_narrow(row) or words is not None
