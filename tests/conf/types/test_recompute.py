"""The table of recomputation modes, with which the schema, the knob and what trainers run agree."""

from __future__ import annotations

from itertools import chain
from typing import get_args

from conf.plan.knobs import KNOB
from conf.plan.trainer_limits import runs
from conf.types.recompute import MODES, RECOMPUTES, Recompute, Repeated
from conf.types.schema import ParallelPlan
from conf.types.trainer_spec import CostsOf

WHOLE_LAYERS = {"none", "full"}
CORES = {*WHOLE_LAYERS, "selective"}
LOOKED_UP = {
    "trisweep": {*CORES, "pointwise"},
    "megatron-lm": CORES,
    "megatron-deepspeed": CORES,
    "megatron-core": {*CORES, "pointwise"},
    "fsdp": WHOLE_LAYERS,
    "torchtitan": CORES,
    "deepspeed": WHOLE_LAYERS,
}
"""The modes of each trainer where a model is dense and its products are wide, by conf/trainer_limits.yaml."""


def test_the_schema_and_the_knob_have_the_modes_of_the_table() -> None:
    assert get_args(Recompute) == RECOMPUTES == KNOB["recompute"].values
    assert get_args(ParallelPlan.model_fields["recompute"].annotation) == RECOMPUTES


def test_every_mode_but_none_repeats_parts_that_have_a_name_and_says_so() -> None:
    assert {name for name, mode in MODES.items() if not (mode.repeats and mode.meaning)} == {"none"}
    parts = [mode.parts(selects_operators=selects) for mode in MODES.values() for selects in (False, True)]
    assert {*chain(*parts)} == {*get_args(Repeated)}


def test_a_mode_is_run_by_the_trainers_for_which_somebody_looked_it_up() -> None:
    """A list that allows all modes would allow a new one as well."""
    for trainer in get_args(CostsOf):
        assert {name for name in RECOMPUTES if runs(trainer, "parallel.recompute", name)} == LOOKED_UP[trainer]
