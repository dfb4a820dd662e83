"""The choice of the search for the points of a sweep: `SEARCHES` has an entry for each `search.kind`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from conf.compose.load import Composition
from conf.compose.tree import value_at
from conf.errors import ConfigError, InfeasiblePlan
from conf.types.sweep_spec import PointSet
from sweeps.planner.request import search_request
from sweeps.points.plan import SweepPart, chooses_layouts, make_trials, nearly_fits, part_of
from sweeps.search.axes.axis_search import AxisSearch, search_of_axes
from sweeps.search.layouts.bayes import Bayes
from sweeps.search.layouts.candidates import Candidates, ListedPoints, PlansOfSpaces, priced_experiment
from sweeps.search.layouts.priced import join_plans, require_layouts_decide
from sweeps.search.searcher import Listed, Search
from sweeps.trial import SweepRecord

BATCH = "batch.global_batch_size"
DEVICES = "parallel.world_size"
MIN_GAIN = 0.02
"""Of a search of layouts, as a share of the best, where the configuration has no `search.min_gain`."""


def search_for(asked: Composition, record: SweepRecord) -> Search:
    """The search of a sweep, by the configuration that it was planned with; of its stand-in where that is measured.

    Raises:
        ConfigError: the search cannot seek what it is told to.
        InfeasiblePlan: there is no plan to choose.
    """
    part = part_of(asked, record.spec, proxy=record.mode == "proxy")
    return SEARCHES[part.composition.settings.search.kind](part, record)


def _search_listed(part: SweepPart, record: SweepRecord) -> Search:
    search = part.composition.settings.search
    if search.num_seeds > 1 or search.pruner != "none":
        # Of points that are all listed it asks for further seeds alone.
        return AxisSearch(part.tree, (), (), search, record.spec.max_trials)
    return Listed()


def _search_by_learning(part: SweepPart, record: SweepRecord) -> Search:
    """Make the search that learns: of layouts from the cost model on, of other axes from the first trials on."""
    asked, points = part.composition, part.points
    if not chooses_layouts(asked.settings, points):
        return search_of_axes(part, record)
    search = asked.settings.search
    if search.sampler != "auto":
        remedy = "Leave it out: layouts are chosen from what the cost model says of them."
        raise ConfigError("search.sampler", search.sampler, "draws keys other than layouts, and none varies", remedy)
    objective = require_layouts_decide(search.objective)
    # All plans are of one batch, so that where the sweep varies it the points are those that it lists.
    lists = search.space == "listed" or BATCH in points.varied_keys
    sizes = _sizes(asked, points, of_stand_in=record.mode == "proxy")
    candidates: Candidates = _listed_candidates(asked, points) if lists else _plans(asked, sizes)
    if not len(candidates.prices):
        problem = f"finds no plan of {asked.settings.model.name} that fits and that this trainer runs"
        remedy = "Use more devices or a smaller model, or pin fewer knobs."
        raise InfeasiblePlan("search.kind", search.kind, problem, remedy)
    min_gain = MIN_GAIN if search.min_gain is None else search.min_gain
    return Bayes(candidates, objective, min_gain, record.spec.max_trials)


SEARCHES: Mapping[str, Callable[[SweepPart, SweepRecord], Search]] = {
    "grid": _search_listed,
    "planner": _search_listed,
    "random": search_of_axes,
    "bayes": _search_by_learning,
    "pareto": search_of_axes,
}


def _listed_candidates(asked: Composition, points: PointSet) -> ListedPoints:
    varied = {key for key, _ in points.listed_values()}
    pinned = {key: value_at(asked.tree, key) for key in asked.overrides.pinned_keys() if key in varied}
    trials = make_trials(asked.tree, points, pinned)
    fitting = [trial for trial in trials if nearly_fits(trial)]
    prices = join_plans([priced_experiment(trial.planned) for trial in fitting])
    return ListedPoints([trial.planned for trial in fitting], [trial.point for trial in fitting], prices)


def _plans(asked: Composition, sizes: list[int]) -> PlansOfSpaces:
    """Every plan on each of these numbers of devices, else on as many as the sweep takes."""
    # What is measured tells how much memory plans need, so that none is ruled out for what it would leave free.
    wanted = search_request(asked, devices=",".join(map(str, sizes)) or None, headroom="0")
    return PlansOfSpaces(wanted.spaces, wanted.settings, shared=wanted.padding)


def _sizes(asked: Composition, points: PointSet, *, of_stand_in: bool) -> list[int]:
    """The numbers of devices that an axis takes; none where the user says how many, or no axis does.

    At full size, single points of other sizes answer other questions, such as how far a plan scales. A stand-in is
    there to try layouts out, whatever number of ranks they take.
    """
    if DEVICES in asked.overrides.pinned_keys():
        return []
    alone = [block.axes[DEVICES].grid_values or () for block in points.blocks if DEVICES in block.axes]
    with_others = [group[DEVICES] for block in points.blocks for group in block.zip if DEVICES in group]
    values = [value for listed in (*alone, *with_others) for value in listed]
    if of_stand_in and not values:
        values = [value_at(asked.tree, DEVICES), *(value for key, value in points.listed_values() if key == DEVICES)]
    return sorted({value for value in values if isinstance(value, int)})
