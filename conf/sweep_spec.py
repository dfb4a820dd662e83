"""A sweep as its file states it: a question, the points that answer it, and how they are chosen."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from conf.errors import ConfigError
from conf.schema import Count, Frozen, Name, NonNegative, Positive, Value


class PointSet(Frozen):
    """Points, given as a rectangular grid (`axes`) and as a list (`points`). Keys are dotted, values plain."""

    axes: dict[str, Annotated[tuple[Value, ...], Field(strict=False, min_length=1)]]
    points: Annotated[tuple[dict[str, Value], ...], Field(strict=False)]
    baseline: dict[str, Value]


class ProxySpec(PointSet):
    """The small stand-in that is measured where there is no cluster.

    Attributes:
        overrides: Hydra overrides that turn the full-size configuration into the proxy's.
        time_limit_minutes: minutes after which a proxy trial is ended.
    """

    overrides: Annotated[tuple[str, ...], Field(strict=False)]
    time_limit_minutes: Positive


Objective = Literal["throughput", "loss", "step_time", "dollars", "energy"]
"""What a search maximises (throughput: model FLOP/s per device) or minimises (all others)."""


class SearchPlan(Frozen):
    """How a sweep comes to its points.

    Attributes:
        kind: `grid` takes the points that the sweep lists, `planner` those that the search of all plans chooses.
        top_k: number of plans that the planner takes for their predicted speed.
        num_probes: number of further plans, each of which tests an assumption of the prediction.
        max_concurrent_trials: the most trials that are queued or running at once; null sets no limit.
        space: what an adaptive search of layouts chooses among: all plans that fit on paper, or the points that the
            sweep lists.
        min_gain: the search ends once it expects to better the best by less than this share of it.
        objective: what is sought; several make a front.
    """

    kind: Literal["grid", "planner", "bayes"]
    top_k: Annotated[int, Field(ge=0)]
    num_probes: Annotated[int, Field(ge=0)]
    max_concurrent_trials: Count | None
    min_gain: NonNegative
    space: Literal["plans", "listed"] = "plans"
    objective: Annotated[tuple[Objective, ...], Field(strict=False, min_length=1)]

    @model_validator(mode="after")
    def _planner_takes_some(self) -> SearchPlan:
        if self.kind == "planner" and not self.top_k:
            raise ConfigError("search.top_k", self.top_k, "leaves the planner no plan to take", "Use 1 or more.")
        return self


class SweepSpec(PointSet):
    """A question, the points that answer it, and how many of them to measure.

    Attributes:
        max_trials: the most points to measure of those that fit, the best predicted first (the baseline always).
        published: rows of `results/published.csv` (its `id` column) to show beside the measurements.
    """

    name: Name
    question: str
    max_trials: Count
    published: Annotated[tuple[str, ...], Field(strict=False)]
    proxy: ProxySpec | None
