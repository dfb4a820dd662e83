"""A `Setup` is what the cost model prices: a plan for a model on a cluster, in one precision."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from conf.plan.plan_checks import CHECKS
from conf.plan.setup_parts import SetupParts


class Setup(SetupParts):
    """A plan that can exist, with the model, the cluster and the precision that it is for.

    Raises:
        InfeasiblePlan: the parts cannot exist together; names the dotted key, its value and what would fit.
    """

    @model_validator(mode="after")
    def _exists(self) -> Self:
        for check in CHECKS:
            check(self)
        return self
