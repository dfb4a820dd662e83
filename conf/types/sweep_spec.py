"""A sweep as its file states it: a question, the points that answer it, and how they are chosen."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from conf.errors import ConfigError
from conf.types.axes import AxisBlock
from conf.types.durations import PositiveMinutes
from conf.types.schema import Count, Frozen, Name, NonNegative, Value
from conf.types.stage_spec import TRAIN, StageSpec, checked_stages, require_tree


class PointSet(AxisBlock):
    """Points, given as blocks of axes and as a list. Keys are dotted, values plain.

    Attributes:
        spaces: further blocks of axes, whose points come after those of the one before.
        points: single points, which no constraint leaves out.
        baseline: the point that speed-up and scaling efficiency are stated against, which is always measured; null:
            there is none.
    """

    spaces: Annotated[tuple[AxisBlock, ...], Field(strict=False)] = ()
    points: Annotated[tuple[dict[str, Value], ...], Field(strict=False)] = ()
    baseline: dict[str, Value] | None = None

    @property
    def blocks(self) -> tuple[AxisBlock, ...]:
        """Every block that varies something; the constraints of the first bind all of them."""
        further = [
            space.model_copy(update={"constraints": self.constraints + space.constraints}) for space in self.spaces
        ]
        return tuple(block for block in (self, *further) if block.varies)

    @property
    def varied_keys(self) -> frozenset[str]:
        """The keys that have an axis."""
        keys = [key for block in (self, *self.spaces) for key in block.axes]
        return frozenset([*keys, *(key for block in (self, *self.spaces) for group in block.zip for key in group)])

    def listed_values(self) -> Iterator[tuple[str, Value]]:
        """Every pair of a key and a value that any point states."""
        yield from super().listed_values()
        for space in self.spaces:
            yield from space.listed_values()
        for point in (self.baseline or {}, *self.points):
            yield from point.items()

    def is_open(self, key: str, value: Value) -> bool:
        """True if an axis may take a value that it does not list: a range between its ends, an expression any."""
        axes = [block.axes[key] for block in (self, *self.spaces) if key in block.axes]
        return any(axis.follows if axis.values else axis.holds(value) for axis in axes)


class ProxySpec(PointSet):
    """The small stand-in that is measured where there is no cluster.

    Attributes:
        overrides: Hydra overrides that turn the full-size configuration into the proxy's.
        time_limit_minutes: minutes after which a proxy trial is ended.
    """

    overrides: Annotated[tuple[str, ...], Field(strict=False)]
    time_limit_minutes: PositiveMinutes


Named = Literal["throughput", "loss", "step_time", "dollars", "energy"]
FIGURE = re.compile(r"(?P<highest>max:)?(?P<name>[A-Za-z][A-Za-z0-9_-]*\.[^\s].*)", re.ASCII)
Figure = Annotated[str, Field(pattern=FIGURE.pattern)]
Objective = Named | Figure
"""The quantity that a search maximises (throughput: model FLOP/s per device) or minimises (all others).

`STAGE.FIGURE` is one that the program of a stage prints or leaves, the smaller the better, `max:STAGE.FIGURE` the
larger; `train.FIGURE` is one of the sweep's own trials.
"""
RATE: tuple[Objective, ...] = ("throughput",)
"""What a sweep seeks that says nothing else."""


def figure_of(objective: Objective) -> str | None:
    """The figure of a stage that is sought, as `STAGE.FIGURE`; None of any other objective."""
    match = FIGURE.fullmatch(objective)
    return match["name"] if match else None


def own_figure(objective: Objective) -> str | None:
    """The name under which the trials themselves print the figure that is sought; None of any other objective."""
    stage, _, name = (figure_of(objective) or "").partition(".")
    return name if stage == TRAIN else None


def figure_name(objective: Objective) -> str | None:
    """The figure as its program calls it, with the stage that it is of where that is a later one."""
    return own_figure(objective) or figure_of(objective)


def is_of_time(objective: Objective) -> bool:
    """True if the objective follows from the seconds of a step, which vary from run to run; a loss does not."""
    return objective != "loss" and figure_of(objective) is None


def _several(objective: object) -> object:
    """A single objective may be written without brackets; a wrong one is refused here, once and not by each kind."""
    several = (objective,) if isinstance(objective, str) else objective
    for each in several if isinstance(several, list | tuple) else ():
        if isinstance(each, str) and each not in get_args(Named) and figure_of(each) is None:
            names = ", ".join(get_args(Named))
            remedy = (
                f"Use one of {names}, train.{each} for what a program prints (max:train.{each} for the highest), or"
                " STAGE.FIGURE of a stage of the sweep, such as evaluate.rmse."
            )
            raise ConfigError("search.objective", each, "is not an objective", remedy)
    return several


def _whole(number: object) -> object:
    """People write 1e9 for a count, which is a float."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


Sampler = Literal[
    "auto",
    "GPSampler",
    "TPESampler",
    "RandomSampler",
    "QMCSampler",
    "CmaEsSampler",
    "NSGAIISampler",
    "NSGAIIISampler",
]
"""Who draws by what was measured: a sampler of Optuna's, by its class."""
PLANNED = ("grid", "planner")
"""Searches whose points are all known before any trial runs."""


class SearchPlan(Frozen):
    """The way in which a sweep comes to its points.

    Attributes:
        kind: `grid` takes the points that the sweep lists, `planner` those that the search of all plans chooses;
            `random` draws from the axes, `bayes` learns from what was measured, and `pareto` does so for several
            objectives.
        top_k: number of plans that the planner takes for their predicted speed.
        num_probes: number of further plans, each of which tests an assumption of the prediction.
        max_concurrent_trials: the most trials that are queued or running at once; null sets no limit.
        space: what an adaptive search of layouts chooses among: all plans that fit or nearly do, or the points that the
            sweep lists.
        min_gain: `bayes` of layouts ends once another plan is unlikely to better the best by this share; a search of
            other keys once none of its last points (10, or twice its axes) bettered the best by this
            share of its lead over the median of all points. 0 never ends it so; null: 0.02 for layouts, 0 for others.
        sampler: who draws other keys than layouts by what was measured, a sampler of Optuna's; `auto`: GPSampler where
            every point has the same few axes and one objective is sought, else TPESampler.
        objective: what is sought; several make a front.
        tokens: every trial trains on so many tokens, to whole steps, so that losses at different batch sizes can be
            compared; null keeps training.num_steps.
        num_seeds: trials of each point, which differ in training.seed; a point counts by their mean.
        pruner: which running trials of objective=loss end early: `median` those worse than half of the others after as
            many tokens, `halving` all but the best third at each of three marks.
        seed: of the draws; the same seed and the same results lead to the same points.
        max_rounds: how often points are measured at most: disturbed ones, then the leaders and the baseline until their
            intervals part; null: 3 for a stand-in on this machine, else 1.
    """

    kind: Literal["grid", "planner", "bayes", "random", "pareto"]
    top_k: Annotated[int, Field(ge=0)]
    num_probes: Annotated[int, Field(ge=0)]
    max_concurrent_trials: Count | None
    min_gain: NonNegative | None
    sampler: Sampler = "auto"
    space: Literal["plans", "listed"] = "plans"
    objective: Annotated[tuple[Objective, ...], Field(strict=False, min_length=1), BeforeValidator(_several)]
    tokens: Annotated[Count, BeforeValidator(_whole)] | None
    num_seeds: Count
    pruner: Literal["none", "median", "halving"]
    seed: Annotated[int, Field(ge=0)]
    max_rounds: Count | None = None

    @property
    def proposes(self) -> bool:
        """True if the search proposes points one after another, beside those that are listed or planned beforehand."""
        return self.kind not in PLANNED

    @property
    def asks_later(self) -> bool:
        """True if points or seeds are chosen only after others have ended."""
        return self.proposes or self.num_seeds > 1

    @model_validator(mode="after")
    def _planner_takes_some(self) -> SearchPlan:
        if self.kind == "planner" and not self.top_k:
            raise ConfigError("search.top_k", self.top_k, "leaves the planner no plan to take", "Use 1 or more.")
        return self

    @model_validator(mode="after")
    def _objectives_suit_the_search(self) -> SearchPlan:
        objectives = list(self.objective)
        if len(set(objectives)) < len(objectives):
            raise ConfigError("search.objective", objectives, "names one of them twice", "Name each objective once.")
        if self.kind == "pareto" and len(objectives) < 2:
            remedy = "Name two or more, as in search.objective=[step_time,dollars], or use search=bayes."
            raise ConfigError("search.objective", objectives, "is one objective, and search=pareto needs two", remedy)
        if self.pruner != "none" and objectives != ["loss"]:
            problem = f"judges trials by their loss, and search.objective = {objectives}"
            remedy = "Use search.objective=loss, or search.pruner=none."
            raise ConfigError("search.pruner", self.pruner, problem, remedy)
        return self


class ReplaySpec(Frozen):
    """The replay of a sweep in a checkout: against the cost model as the machine, without a cluster and without a job.

    Attributes:
        num_machines: made-up machines, each of which differs from the cost model in its own way.
        most_jobs: after so many a search counts as not having found a point near the best.
    """

    num_machines: Count
    most_jobs: Count


class SweepSpec(PointSet):
    """A question, the points that answer it, and how many of them to measure.

    Attributes:
        name: the name of its file, and of its folder.
        question: what it is to answer, in one sentence; made of the names of its axes where it is left out.
        max_trials: the most points to measure of those that fit, the best predicted first (the baseline always).
        published: rows of `results/published.csv` (its `id` column) to show beside the measurements.
        proxy: what is measured where there is no cluster; null where nothing is.
        replay: how a checkout replays the sweep on paper.
        scaling: the sweep is a scaling study over numbers of devices: `strong` holds the global batch constant, `weak`
            the batch of a replica.
        stages: what follows every trial, by name, such as an evaluation; each starts once the one before it completed.
    """

    name: Name
    question: str = ""
    max_trials: Count = 100
    published: Annotated[tuple[str, ...], Field(strict=False)] = ()
    proxy: ProxySpec | None = None
    replay: ReplaySpec | None = None
    scaling: Literal["weak", "strong"] | None = None
    stages: Annotated[dict[str, StageSpec], BeforeValidator(checked_stages)] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _stages_begin(self) -> SweepSpec:
        require_tree(self.stages)
        return self

    @model_validator(mode="after")
    def _scales_from_something(self) -> SweepSpec:
        if self.scaling is not None and self.baseline is None:
            remedy = "Give the point that efficiency is stated against; {} is the configuration itself."
            raise ConfigError("sweep.baseline", None, f"is left out, and sweep.scaling = {self.scaling}", remedy)
        return self

    @model_validator(mode="after")
    def _asks_something(self) -> SweepSpec:
        if not self.question:
            names = [key.rsplit(".", 1)[-1] for key in sorted(self.varied_keys)]
            which = " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
            object.__setattr__(
                self,
                "question",
                f"Which {which} {'is' if len(names) == 1 else 'are'} best?" if names else "What does it come to?",
            )
        return self
