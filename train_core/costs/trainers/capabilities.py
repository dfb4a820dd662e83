"""What a trainer can run: the values of each key that it carries out, in every plan or beside another choice.

A search asks `allows` value by value and leaves the others out; a plan that was given is refused by `require_runnable`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from conf.errors import InfeasiblePlan
from conf.knobs import KNOB
from conf.overrides import written
from conf.schema import Frozen, MatmulRecipe, Value
from conf.setup import Setup
from conf.trainer_call import layer_split

Beside: TypeAlias = Literal["any", "pipeline", "tensor"]
LAYER_SPLIT = "layer_split"


class Limit(Frozen):
    """The values of one key that a trainer runs; it runs no others.

    Attributes:
        key: the dotted key, or `layer_split` for how layers are spread (`even`, `ends`, `uneven`).
        values: those that it runs.
        because: what the trainer does or lacks, as the second half of a sentence.
        beside: in which plans this holds: all, those with several stages, those with several tensor ranks.
        recipes: the narrow products beside which alone this holds; null: beside all, and beside none.
    """

    key: str
    values: Annotated[tuple[Value, ...], Field(strict=False)]
    because: str
    beside: Beside = "any"
    recipes: Annotated[tuple[MatmulRecipe, ...] | None, Field(strict=False)] = None

    def refusal(self, value: Value, trainer: str, otherwise: str) -> InfeasiblePlan:
        """The error for a value that the trainer does not run.

        Args:
            otherwise: what can be done instead of taking a value that it runs.
        """
        known = " or ".join(f"{self.key}={written(runs)}" for runs in self.values)
        problem = f"is not run by {trainer}: {self.because}"
        return InfeasiblePlan(self.key, value, problem, f"Use {known}, or {otherwise}.")


class Capabilities(Frozen):
    """What a trainer cannot do of all that a configuration can state; what no limit names, it can.

    Attributes:
        interleaves_unevenly: its interleaved chunks may differ in layers, and there may be any number of micro-batches;
            else chunks are equal, and micro-batches come in groups of as many as there are stages (arXiv 2104.04473,
            section 2.2.2).
    """

    limits: Annotated[tuple[Limit, ...], Field(strict=False)] = ()
    interleaves_unevenly: bool = False

    def allows(
        self,
        knob: str,
        value: Value,
        *,
        pipeline: bool = False,
        tensor: bool = False,
        recipe: MatmulRecipe | None = None,
    ) -> bool:
        """Whether plans with this value of a knob can be run.

        Args:
            knob: its name in `conf.knobs`, a dotted key, or `layer_split`.
            pipeline: ask about plans with several stages.
            tensor: ask about plans with several tensor ranks.
            recipe: of their narrow products.
        """
        key = KNOB[knob].key if knob in KNOB else knob
        return all(value in limit.values for limit in self._holding(pipeline, tensor, recipe) if limit.key == key)

    def broken(self, setup: Setup) -> tuple[Limit, Value] | None:
        """The first limit that a setup does not keep, and the value that breaks it; None where it can be run."""
        parallel = setup.parallel
        has_stages, has_tensor_ranks = parallel.pipeline_parallel_size > 1, parallel.tensor_parallel_size > 1
        for limit in self._holding(has_stages, has_tensor_ranks, setup.precision.matmul_recipe):
            value = _value_at(setup, limit.key)
            if value not in limit.values:
                return limit, value
        return None

    def _holding(self, pipeline: bool, tensor: bool, recipe: MatmulRecipe | None) -> list[Limit]:
        holds = {"any": True, "pipeline": pipeline, "tensor": tensor}
        return [one for one in self.limits if holds[one.beside] and (one.recipes is None or recipe in one.recipes)]


def require_runnable(setup: Setup, trainer: str, capabilities: Capabilities) -> None:
    """Refuse a plan that a trainer cannot run, instead of pricing it.

    Rows that somebody measured are not held against this: that they ran is known.

    Raises:
        InfeasiblePlan: names the key, its value, and what the trainer runs.
    """
    broken = capabilities.broken(setup)
    if broken is None:
        return
    limit, value = broken
    if limit.key == LAYER_SPLIT:
        problem = f"is not run by {trainer}: {limit.because}"
        remedy = "Leave it null, with a number of stages that divides the layers, or choose another trainer."
        raise InfeasiblePlan("parallel.layers_per_stage", list(setup.layers_per_stage), problem, remedy)
    raise limit.refusal(value, trainer, "choose another trainer")


def _value_at(setup: Setup, key: str) -> Value:
    """The value of a key; of a group that may be null, such as `model.experts`, whether it is given."""
    if key == LAYER_SPLIT:
        return layer_split(setup.layers_per_stage)
    found: Any = setup
    for name in key.split("."):
        found = getattr(found, name)
    return "given" if isinstance(found, Frozen) else found
