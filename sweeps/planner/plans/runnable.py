"""The choices of a search that a trainer can run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from conf.compose.settings import Settings
from conf.plan.expert_axis import require_own_experts
from conf.plan.knobs import KNOB, KnobValue
from conf.plan.trainer_limits import BESIDE_NOTHING, Beside, limits_of
from conf.plan.trainer_limits import runs as trainer_runs
from conf.types.schema import Frozen, Value
from conf.types.trainer_spec import TRISWEEP
from train_core.costs import Implementation


def runs(
    trainer: Implementation,
    knob: str,
    value: KnobValue,
    beside: Beside = BESIDE_NOTHING,
) -> bool:
    """True if the trainer runs plans of this kind in which the knob has this value."""
    # How layers are spread is a kind of its own, about which `layouts` asks.
    return isinstance(value, tuple) or _allows(trainer.name, knob, value, beside)


def require_run(trainer: Implementation, settings: Settings, pinned: Mapping[str, KnobValue]) -> None:
    """Refuse a model, a precision or a pinned knob that the trainer does not run in any plan.

    Raises:
        InfeasiblePlan: names the key, its value, and what the trainer lacks.
    """
    if trainer.name == TRISWEEP.name:
        require_own_experts(settings.model)
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
        experts, latent = settings.model.experts is not None, settings.model.latent_attention is not None
        beside = Beside(experts=experts, latent=latent, recipe=settings.precision.matmul_recipe)
        if limit.holds(beside) and limit.meets(value):
            raise limit.refusal(value, trainer.name, "another --implementation")


@lru_cache(maxsize=4096)  # asked for every block of a search
def _allows(trainer: str, knob: str, value: Value, beside: Beside) -> bool:
    key = KNOB[knob].key if knob in KNOB else knob
    return trainer_runs(trainer, key, value, beside)
