"""Searches on a replayed study: that of the sweep itself, chance, and what a search without a cost model does."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from sweeps.points.axes import Point
from sweeps.replay.reading import ReplayedReading
from sweeps.replay.study import NEAR, Ground
from sweeps.search.axes.draws import draw_point
from sweeps.search.axes.seen_points import point_key
from sweeps.search.axes.tpe import TpeChooser, quiet
from sweeps.search.searcher import Search
from train_core.measurement import Outcome

MOST_DRAWS = 3000
"""Draws of a study in a row that lead to no new job."""


def rows_until_found(ground: Ground, rows: Iterator[int], most_jobs: int) -> list[int]:
    """The jobs of a search up to the first that is near the best, of which the search itself knows nothing."""
    taken = list[int]()
    for row in islice(rows, most_jobs):
        taken.append(row)
        if ground.share_of_best(row) >= NEAR:
            break
    return taken


def by_search(search: Search, ground: Ground, first: list[int]) -> Iterator[int]:
    """The sweep's own search, one job after another, until it ends itself.

    Args:
        first: the trials that are planned before it is asked, such as the baseline.
    """
    readings = list[ReplayedReading]()
    for row in first:
        yield row
        readings.append(ground.reading_of(row))
    while proposals := search.ask(readings, 1).proposals:
        row = _row(ground, proposals[0].point)
        yield row
        readings.append(ground.reading_of(row))


def at_random(ground: Ground, seed: int) -> Iterator[int]:
    """Points that fit by the cost model, each as likely, none twice."""
    yield from np.random.default_rng(seed).permutation(np.flatnonzero(ground.study.fits_on_paper)).tolist()


def by_tpe(ground: Ground, seed: int) -> Iterator[int]:
    """Optuna's TPE, which knows no cost model: an out-of-memory is a job that failed, as in the study.

    It stands for DeepHyper, whose optimizer is another one (a forest with an upper confidence bound). Values that are
    no layout at all cost it no job.
    """
    import optuna

    with quiet():
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    tried, fruitless = set[int](), 0
    while fruitless < MOST_DRAWS:
        trial = study.ask()
        point = draw_point(ground.study.spaces, TpeChooser(trial))
        row = None if point is None else _known_row(ground, point)
        if row is None or row in tried:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            fruitless += 1
            continue
        fruitless = 0
        tried.add(row)
        yield row
        reading = ground.reading_of(row)
        if reading.outcome is Outcome.COMPLETED and reading.performance is not None:
            study.tell(trial, reading.performance.model_flops_per_second_per_device)
        else:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)


def _row(ground: Ground, point: Point) -> int:
    row = _known_row(ground, point)
    assert row is not None, f"{point} is no point of the study"
    return row


def _known_row(ground: Ground, point: Point) -> int | None:
    return ground.study.rows_of_points.get(point_key(point))
