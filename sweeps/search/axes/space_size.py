"""The size of the space of a sweep's axes, without going through it: most spaces are too large for that."""

from __future__ import annotations

import math

import numpy as np

from conf.errors import ConfigError
from conf.tree import Tree
from sweeps.points.axes import Point
from sweeps.points.expansion import spaces_of
from sweeps.points.plan import SweepPart, trial_of
from sweeps.search.axes.draws import RandomChooser, draw_point
from sweeps.trial import Trial

NUM_DRAWN = 200
"""Points of which it is found out whether they can exist and fit, which takes less than a second."""


def space_size(part: SweepPart) -> str:
    """A sentence for people; empty where the sweep has no axes."""
    spaces = spaces_of(part.points, part.tree, part.pinned)
    if not spaces:
        return ""
    number = sum(space.num_combinations for space in spaces)
    size = f"{number:,.0f} combinations" if math.isfinite(number) else "a continuous space"
    chooser = RandomChooser(np.random.default_rng(0))
    points = [draw_point(spaces, chooser) for _ in range(NUM_DRAWN)]
    allowed = [point for point in points if point is not None]
    trials = [trial for point in allowed if (trial := _trial(part.tree, point)) is not None]
    fitting = sum(trial.estimate is not None and trial.estimate.fits for trial in trials)
    kept = f"{len(allowed)} keep the constraints, " if any(space.constraints for space in spaces) else ""
    return f"The axes make {size}. Of {NUM_DRAWN} that were drawn, {kept}{len(trials)} can exist and {fitting} fit."


def _trial(tree: Tree, point: Point) -> Trial | None:
    """The trial of a point that can exist."""
    try:
        trial = trial_of(tree, point, "")
    except ConfigError:
        return None
    return trial if trial.experiment is not None else None
