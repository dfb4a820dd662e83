"""What the user fixes is in every plan that is found, or refused by its key: nothing is ignored."""

from __future__ import annotations

import pytest

from conf.errors import ConfigError, InfeasiblePlan
from conf.overrides import value_text
from conf.plan.knobs import KNOBS, KnobValue
from sweeps.planner.choosing.choice import choose_plans
from sweeps.planner.choosing.objectives import Training
from sweeps.planner.request import search_request
from tests.composed import composed
from tests.messages import refused

LLAMA = [
    *("model=llama-3.1-8b", "model.num_layers=12", "cluster=dgx-h100", "precision=bf16"),
    *("batch.global_batch_size=16", "parallel.world_size=8"),
]
TRAINERS = ("trisweep", "megatron-core", "torchtitan")
VALUES: dict[str, tuple[KnobValue, ...]] = {
    "world_size": (4,),
    "tensor_parallel_size": (1, 4),
    "pipeline_parallel_size": (1, 4),
    "virtual_pipeline_size": (1, 3),
    "schedule": ("1f1b", "interleaved", "zero-bubble", "gpipe"),
    "layers_per_stage": (None, (2, 4, 4, 2)),
    "sequence_parallel": (False, True),
    "zero_stage": (0, 1, 2, 3),
    "recompute": ("none", "selective", "full", "pointwise"),
    "recompute_every": (1, 3, 5),
    "context_parallel_size": (1, 2),
    "context_exchange": ("ring", "gather"),
    "expert_parallel_size": (1, 2),
    "expert_tensor_parallel_size": (None, 2),
    "zero_group_size": (None, 2),
    "offload_optimizer": (False, True),
    "offload_activations": (False, True),
    "pipeline_before_data": (False, True),
    "expert_dispatcher": ("alltoall", "deepep", "hybridep"),
    "micro_batch_size": (1, 2),
    "global_batch_size": (8,),
    "tensor_parallel_across_nodes": (False, True),
}
PINS = [(knob.name, value) for knob in KNOBS if knob.group for value in VALUES[knob.name]]
CASES = [
    pytest.param(trainer, *pin, marks=[] if (number + place) % 3 == 0 else pytest.mark.thorough)
    for number, pin in enumerate(PINS)
    for place, trainer in enumerate(TRAINERS)
]
"""`make test` runs each value with one of the trainers."""


@pytest.mark.parametrize(("trainer", "knob", "value"), CASES)
def test_a_pinned_knob_is_in_every_plan_or_refused_by_its_key(trainer: str, knob: str, value: KnobValue) -> None:
    key = next(each.key for each in KNOBS if each.name == knob)
    overrides = [*LLAMA, f"{key}={value_text(value)}"]
    answer = found_values(overrides, trainer, knob)
    assert answer == {value} if isinstance(answer, set) else knob in answer


def found_values(overrides: list[str], trainer: str, knob: str) -> set[KnobValue] | str:
    """The values of a knob in the best plans, or why there are none."""
    try:
        spaces = search_request(composed(overrides), implementation=trainer).spaces
        choice = choose_plans(spaces, "time", Training(), top=20)
    except ConfigError as refused:
        return str(refused)
    return {candidate.strategy.knob_value(knob) for candidate in (*choice.best, *choice.families)}


def test_every_knob_that_a_user_can_state_is_tried_here() -> None:
    assert {knob.name for knob in KNOBS if knob.group} == set(VALUES)


def test_narrow_products_and_the_width_of_gradients_are_priced_or_refused() -> None:
    recipe = [*LLAMA, "precision.matmul_recipe=fp8-delayed"]
    (space,) = search_request(composed(recipe), implementation="megatron-core").spaces
    assert space.setting.matmul_recipe == "fp8-delayed"
    with refused(ConfigError, "precision.matmul_recipe"):
        search_request(composed(recipe))


@pytest.mark.parametrize(
    ("trainer", "pinned", "key"),
    [
        ("megatron-lm", ["layers_per_stage=[2,4,4,2]"], "parallel.layers_per_stage"),
        ("trisweep", ["zero_stage=3", "pipeline_parallel_size=4"], "parallel.zero_stage"),
    ],
    ids=["uneven stages", "ZeRO-3 beside a pipeline"],
)
def test_pins_without_a_plan_on_any_devices_are_refused_by_their_reason(
    trainer: str, pinned: list[str], key: str
) -> None:
    overrides = [*LLAMA, *(f"parallel.{override}" for override in pinned)]
    with refused(InfeasiblePlan, key):
        search_request(composed(overrides), implementation=trainer)
