"""A forest of regression trees over the points, and what SHAP and fANOVA read from such trees.

Importing SHAP takes seconds, so that only a report on enough trials imports this module.

Sources: SHAP values of trees, arXiv 1802.03888; fANOVA, Hutter et al. 2014 (proceedings.mlr.press/v32/hutter14).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import optuna
from optuna.distributions import IntDistribution
from optuna.importance import FanovaImportanceEvaluator
from sklearn.ensemble import RandomForestRegressor

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # SHAP imports plots that it calls deprecated, and nothing here draws any
    import shap

Floats = npt.NDArray[np.float64]
POINTS_PER_LEAF = 60
"""A leaf of a tree may hold one of so many points."""


class Forest:
    """A forest that tells a point's value from the codes of its knobs."""

    def __init__(self, codes: Floats, values: Floats, num_trees: int, seed: int, *, judged: bool = False) -> None:
        """Grow the trees; if `judged`, also predict every point by the trees that did not see it."""
        # A leaf of one point would learn the noise of one measurement. With many points, larger leaves save time.
        leaf = max(2, len(values) // POINTS_PER_LEAF)
        self._trees = RandomForestRegressor(num_trees, min_samples_leaf=leaf, oob_score=judged, random_state=seed)
        self._trees.fit(codes, values)

    @property
    def explained_share(self) -> float:
        """The share of the variance that trees explain of points that they did not see (out-of-bag R2)."""
        return float(self._trees.oob_score_)

    def predict(self, codes: Floats) -> Floats:
        return self._trees.predict(codes)

    def shap_values(self, codes: Floats) -> Floats:
        """The part of each knob in the distance of each point from the mean: (points, knobs)."""
        # SHAP's check of its own sums would stop a report over mere rounding.
        return shap.TreeExplainer(self._trees).shap_values(codes, check_additivity=False)

    def shap_interactions(self, codes: Floats) -> Floats:
        """The same for pairs of knobs, each pair's effect halved over two cells: (points, knobs, knobs)."""
        return shap.TreeExplainer(self._trees).shap_interaction_values(codes)


def fanova_shares(codes: Floats, values: Floats, num_values: Sequence[int], seed: int) -> list[float]:
    """The share of each knob alone in the variance over all combinations of values, tried or not."""
    names = [str(number) for number in range(len(num_values))]
    distributions: dict[str, Any] = {
        # Codes have an order, so that trees may split between any two of them.
        name: IntDistribution(0, count - 1)
        for name, count in zip(names, num_values, strict=True)
    }
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(logging.ERROR)
    study = optuna.create_study()
    for row, value in zip(codes, values, strict=True):
        params = {name: int(code) for name, code in zip(names, row, strict=True)}
        study.add_trial(optuna.create_trial(params=params, distributions=distributions, value=float(value)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # optuna calls parts of itself experimental
        shares = FanovaImportanceEvaluator(n_trees=32, seed=seed).evaluate(study)
    optuna.logging.set_verbosity(level)
    return [shares[name] for name in names]
