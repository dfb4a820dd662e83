"""Whether the layers and the loss of a row were compiled, where a trainer runs them either way."""

from __future__ import annotations

from sweeps.table.cells import Row, flag_of, text_of
from sweeps.table.precision import is_narrow
from sweeps.table.remarks import said
from train_core.costs import Implementation
from train_core.costs.trainers.torchtitan import TORCHTITAN, TORCHTITAN_COMPILED_LOSS, TORCHTITAN_EAGER

SINCE_APRIL_2025 = r"(?<!\d)20(?:25[-_]?(?:0[4-9]|1[0-2])|2[6-9])"


def compiled_or_not(row: Row, trainer: Implementation) -> Implementation:
    """The trainer with its layers and its loss compiled or not, as the row says."""
    if trainer.name != TORCHTITAN.name:
        return trainer
    kind = TORCHTITAN_EAGER
    if is_compiled(row):
        kind = TORCHTITAN_COMPILED_LOSS if said(row, SINCE_APRIL_2025, ("source", "table")) else TORCHTITAN
    differs = {name: value for name, value in kind if value != getattr(TORCHTITAN, name)}
    return trainer.model_copy(update=differs)


def is_compiled(row: Row) -> bool:
    """Whether a row of torchtitan says that it compiles its layers, which it does not by itself.

    Narrow products and tensor-parallel collectives in pieces need it, and what the latter are compared with has it too.
    """
    if text_of(row, "compile"):
        return flag_of(row, "compile", default=False)
    names = said(row, r"compile|async ?-?tp|vanilla tp", ("model", "table"))
    return is_narrow(row) or bool(names or said(row, r"torch\.compile|async ?-?tp", ("notes",)))
