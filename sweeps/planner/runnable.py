"""The choices of a search that a trainer can run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from conf.knobs import KNOB, KnobValue
from conf.schema import Frozen, MatmulRecipe, Value
from conf.settings import Settings
from conf.trainer_limits import limits_of
from conf.trainer_limits import runs as trainer_runs
from train_core.costs import Implementation


def runs(
    trainer: Implementation,
    knob: str,
    value: KnobValue,
    *,
    pipeline: bool = False,
    tensor: bool = False,
    recipe: MatmulRecipe | None = None,
) -> bool:
    """True if the trainer runs plans in which the knob has this value.

    Args:
        pipeline: in plans with several stages.
        tensor: in plans with several tensor ranks.
        recipe: of their narrow products.
    """
    # How layers are spread is a kind of its own, about which `layouts` asks.
    return isinstance(value, tuple) or _allows(trainer.name, knob, value, pipeline, tensor, recipe)


def require_run(trainer: Implementation, settings: Settings, pinned: Mapping[str, KnobValue]) -> None:
    """Refuse a model, a precision or a pinned knob that the trainer does not run in any plan.

    Raises:
        InfeasiblePlan: names the key, its value, and what the trainer lacks.
    """
    keys = {KNOB[name].key: value for name, value in pinned.items() if not isinstance(value, tuple)}
    for limit in limits_of(trainer.name):
        group, _, name = limit.of.partition(".")
        if group in ("model", "precision"):
            value = getattr(getattr(settings, group), name)
            value = "given" if isinstance(value, Frozen) else value
        elif limit.of in keys:
            value = keys[limit.of]
        else:
            continue
        in_all = limit.holds(pipeline=False, tensor=False, recipe=settings.precision.matmul_recipe)
        if in_all and limit.meets(value):
            raise limit.refusal(value, trainer.name, "another --implementation")


@lru_cache(maxsize=4096)  # asked for every block of a search
def _allows(trainer: str, knob: str, value: Value, pipeline: bool, tensor: bool, recipe: MatmulRecipe | None) -> bool:
    key = KNOB[knob].key if knob in KNOB else knob
    return trainer_runs(trainer, key, value, pipeline=pipeline, tensor=tensor, recipe=recipe)
