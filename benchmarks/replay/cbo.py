"""DeepHyper's search as a player on the plans of a site."""

from __future__ import annotations

import tempfile
import warnings
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.replay.ground import Ground
from benchmarks.replay.knobs import KnobSpace


class CboPlayer:
    """DeepHyper's centralised Bayesian optimisation, as the Frontier study used it: UCB, cl_min, failures told as "F".

    It is told which plans are legal, so that it asks for no others. Its own search of the acquisition's best is by
    sampling: the genetic one that its version 0.13 uses by default takes tens of seconds for every plan here.

    Raises:
        ImportError: DeepHyper is not installed.
    """

    def __init__(self, ground: Ground, seed: int, knobs: KnobSpace) -> None:
        from deephyper.hpo import CBO, HpProblem

        self.ground, self.knobs = ground, knobs
        problem = HpProblem()
        for name, values in knobs.values.items():
            problem.add_hyperparameter(values if len(values) > 1 else [*values, values[0] + 1], name)
        problem.set_constraint_fn(self._legal_rows)
        self._folder = tempfile.TemporaryDirectory()
        options = {"acq_func": "UCB", "acq_optimizer": "sampling", "multi_point_strategy": "cl_min"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.search = CBO(problem, random_state=seed, log_dir=self._folder.name, n_initial_points=10, **options)

    def next_row(self) -> int | None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (self.config,) = self.search.ask(1)
        row = self.knobs.row_of({name: int(value) for name, value in self.config.items()})
        assert row is not None, "CBO asks for legal plans alone"
        return row

    def tell(self, row: int) -> None:
        cost = self.ground.log_cost(row)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.search.tell([(self.config, "F" if cost is None else -cost)])

    def _legal_rows(self, table: Any) -> Any:
        legal = self.knobs.are_legal({name: table[name].to_numpy(dtype=np.int64) for name in self.knobs.values})
        return pd.Series(legal, index=table.index)


def is_installed(package: str) -> bool:
    """True if Python finds the package."""
    return find_spec(package) is not None
