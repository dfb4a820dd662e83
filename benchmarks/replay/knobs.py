"""The legal plans of a site as values of knobs, and DeepHyper's search, which chooses knob by knob."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.replay.players import Ground
from benchmarks.replay.sites import ModelSite
from conf.plan.knobs import SEARCHED_KNOBS
from costs.setting import Booleans, Integers
from sweeps.planner.plans.space import Placing

FIXED_KNOBS = ("layers_per_stage", "data_parallel_size", *Placing._fields)
"""Even on all grounds; follows from the others; plain on all grounds."""
KnobValues = dict[str, int]


class KnobSpace:
    """The values of each knob, and the legal plan, if any, that values of all knobs make."""

    def __init__(self, site: ModelSite) -> None:
        columns: dict[str, list[int]] = {}
        for _, plans in site.legal.by_kind:
            by_name = {name: getattr(plans, name) for name in SEARCHED_KNOBS if name not in FIXED_KNOBS}
            for name, column in {**by_name, "world_size": plans.world_size}.items():
                columns.setdefault(name, []).extend(int(value) for value in column)
        self.values = {name: sorted(set(column)) for name, column in columns.items()}
        self._rows = {key: row for row, key in enumerate(zip(*columns.values(), strict=True))}
        self._codes = np.unique(self._codes_of({name: np.array(column) for name, column in columns.items()}))

    def row_of(self, values: KnobValues) -> int | None:
        """The number of the plan with these values; None if it is illegal."""
        return self._rows.get(tuple(values[name] for name in self.values))

    def draw(self, trial: Any) -> int | None:
        """The number of the plan on whose values a trial of Optuna's decides; None if it is illegal."""
        return self.row_of({name: trial.suggest_categorical(name, values) for name, values in self.values.items()})

    def are_legal(self, columns: Mapping[str, Integers]) -> Booleans:
        """The mask of legal ones among many plans, (n,)."""
        return np.isin(self._codes_of(columns), self._codes)

    def _codes_of(self, columns: Mapping[str, Integers]) -> Integers:
        code = np.zeros(len(next(iter(columns.values()))), dtype=np.int64)
        for name, values in self.values.items():
            code = code * (len(values) + 1) + np.searchsorted(values, columns[name])
        return code


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
