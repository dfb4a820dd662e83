"""Which search chooses the points of a sweep."""

from __future__ import annotations

from conf.errors import InfeasiblePlan
from conf.load import Composition, value_at
from conf.schema import Value
from conf.sweep_spec import PointSet
from sweeps.plan import make_trials, proxy_composition
from sweeps.planner.request import request
from sweeps.search.bayes import Bayes
from sweeps.search.candidates import Candidates, ListedPoints, PlansOfSpaces
from sweeps.search.listed import Listed
from sweeps.search.objective import require_layouts_decide
from sweeps.search.searcher import Search
from sweeps.trial import SweepRecord

DEVICES = "parallel.world_size"


def search_for(asked: Composition, record: SweepRecord) -> Search:
    """The search of a sweep.

    Args:
        asked: the configuration with which the sweep was planned.
        record: the sweep; where it measures the stand-in, so does the search.

    Raises:
        ConfigError: the search cannot seek what it is told to.
        InfeasiblePlan: there is no plan to choose.
    """
    points: PointSet = record.spec
    if record.mode == "proxy":
        assert record.spec.proxy is not None
        asked, points = proxy_composition(record.spec.proxy, asked), record.spec.proxy
    if asked.settings.search.kind == "bayes":
        return _bayes(asked, points, record)
    return Listed()


def _bayes(asked: Composition, points: PointSet, record: SweepRecord) -> Bayes:
    search = asked.settings.search
    objective = require_layouts_decide(search.objective)
    candidates: Candidates = _listed(asked, points) if search.space == "listed" else _plans(asked, points)
    if not len(candidates.priced):
        problem = f"finds no plan of {asked.settings.model.name} that fits and that this trainer runs"
        remedy = "Use more devices or a smaller model, or pin fewer knobs."
        raise InfeasiblePlan("search.kind", search.kind, problem, remedy)
    return Bayes(candidates, objective, search.min_gain, record.spec.max_trials)


def _listed(asked: Composition, points: PointSet) -> ListedPoints:
    return ListedPoints(make_trials(asked.tree, points, _restricting(asked, points)))


def _plans(asked: Composition, points: PointSet) -> PlansOfSpaces:
    """Every plan on each number of devices that the sweep varies, else on the most that any of its points uses."""
    sizes = () if DEVICES in asked.overrides.pinned() else _listed_sizes(points)
    wanted = request(asked, devices=",".join(map(str, sizes)) or None)
    return PlansOfSpaces(wanted.spaces, wanted.settings)


def _listed_sizes(points: PointSet) -> list[int]:
    """The numbers of devices that an axis takes; single points of other sizes answer other questions."""
    axes = [block.axes[DEVICES] for block in points.blocks if DEVICES in block.axes]
    return sorted({value for axis in axes for value in axis.values or () if isinstance(value, int)})


def _restricting(asked: Composition, points: PointSet) -> dict[str, Value]:
    """What the user overrode of the keys that the sweep varies."""
    varied = {key for key, _ in points.listed_values()}
    return {key: value_at(asked.tree, key) for key in asked.overrides.pinned() if key in varied}
