"""The modes of recomputation: one table, which costs, searches, the trainer and tables of configurations read.

A new mode is a name in `Recompute` and a line in `MODES`; a part of a layer that no mode repeats yet is also written in
`costs` and `train_core.parallel.layers`. Which trainers run a mode stands in conf/trainer_limits.yaml.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Recompute: TypeAlias = Literal["none", "selective", "full", "pointwise"]
Repeated: TypeAlias = Literal["core", "operators", "layer", "outputs"]
"""A part of a layer whose results are not kept, as backward makes them again: the `core` of attention; every second
product and all between products (`operators`: what trainers that select operators do for `core`); the `layer` from its
input, which alone is kept, with its collectives and gathers of weights; or `outputs` of norms and of the activation,
each just before the product that takes it, from its operation's own input, as Megatron-Core's recompute modules do."""


class RecomputeMode(NamedTuple):
    """What is repeated in the layers that recompute; all other results are kept.

    Attributes:
        repeats: what is made again by trainers that do not select operators.
        spellings: what tables of configurations call it beside its name.
        meaning: what is recomputed, in a label's legend.
        compiles: torch's compiler traces nothing away that the own trainer notes in a layer.
    """

    repeats: tuple[Repeated, ...]
    spellings: str
    meaning: str = ""
    compiles: bool = True

    def parts(self, *, selects_operators: bool) -> tuple[Repeated, ...]:
        return tuple("operators" if selects_operators and part == "core" else part for part in self.repeats)


MODES: dict[Recompute, RecomputeMode] = {
    "none": RecomputeMode((), "no false 0"),
    "selective": RecomputeMode(("core",), "core_attn", "the attention core"),
    "full": RecomputeMode(("layer",), "yes true full/uniform", "whole layers"),
    "pointwise": RecomputeMode(
        ("outputs",), "norm layernorm norm/activation mlp_act moe_act", "norms and activation functions", compiles=False
    ),
}
RECOMPUTES: tuple[Recompute, ...] = tuple(MODES)  # columns of plans hold positions in it
UNCOMPILED = {name for name, mode in MODES.items() if not mode.compiles}
