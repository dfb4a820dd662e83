"""Other searches over the same plans: at random among those that fit on paper, Optuna's TPE, and DeepHyper's CBO.

None of them pays for a plan that is illegal or, where it is told so, does not fit on paper: only jobs count.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.search_jobs.grounds import Ground
from conf.plan.knobs import SEARCHED_KNOBS
from conf.units import GIBIBYTE
from sweeps.planner.plans.space import Placing
from train_core.costs.setting import Booleans, Integers

MOST_ASKS = 2000  # of a study for one plan that can be run
LEFT_OUT = ("layers_per_stage", "data_parallel_size", *Placing._fields)
"""Even on all grounds; follows from the others; plain on all grounds."""
Config = dict[str, int]


class Knobs:
    """The plans of a ground as values of knobs, which these searches choose one by one."""

    def __init__(self, ground: Ground) -> None:
        columns: dict[str, list[int]] = {}
        for _, plans in ground.site.legal.by_kind:
            by_name = {name: getattr(plans, name) for name in SEARCHED_KNOBS if name not in LEFT_OUT}
            for name, column in {**by_name, "world_size": plans.world_size}.items():
                columns.setdefault(name, []).extend(int(value) for value in column)
        self.values = {name: sorted(set(column)) for name, column in columns.items()}
        self._rows = {key: row for row, key in enumerate(zip(*columns.values(), strict=True))}
        self._codes = np.unique(self._coded({name: np.array(column) for name, column in columns.items()}))

    def row_of(self, config: Config) -> int | None:
        """The plan with these values; None if it is illegal."""
        return self._rows.get(tuple(config[name] for name in self.values))

    def are_legal(self, columns: Mapping[str, Integers]) -> Booleans:
        """Which of many configurations are legal, (n,)."""
        return np.isin(self._coded(columns), self._codes)

    def _coded(self, columns: Mapping[str, Integers]) -> Integers:
        """Each configuration as one number."""
        code = np.zeros(len(next(iter(columns.values()))), dtype=np.int64)
        for name, values in self.values.items():
            code = code * (len(values) + 1) + np.searchsorted(values, columns[name])
        return code


class Random:
    """Any plan that fits by the cost model, each as likely."""

    def __init__(self, ground: Ground, seed: int) -> None:
        feasible = np.flatnonzero(ground.site.predicted_bytes_over <= 0)
        self._rows = iter(np.random.default_rng(seed).permutation(feasible).tolist())

    def next_row(self) -> int | None:
        return next(self._rows, None)

    def tell(self, row: int, log_cost: float | None) -> None:
        """It learns nothing."""


class Tpe:
    """Optuna's TPE over the knobs.

    Where it is constrained, it is told by how many GiB a plan exceeds the device: on paper, or as a job showed.
    Otherwise a plan that is illegal or runs out of memory is told as FAIL, and nothing is known on paper.
    """

    def __init__(self, ground: Ground, seed: int, *, constrained: bool) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.ground, self.knobs, self.constrained = ground, Knobs(ground), constrained
        self.states = optuna.trial.TrialState
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            over = _over if constrained else None
            self.study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, constraints_func=over))
        self.tried: set[int] = set()

    def next_row(self) -> int | None:
        for _ in range(MOST_ASKS):
            self.trial = self.study.ask()
            row = self.knobs.row_of(
                {name: self.trial.suggest_categorical(name, values) for name, values in self.knobs.values.items()}
            )
            over = None if row is None else float(self.ground.site.predicted_bytes_over[row]) / GIBIBYTE
            if over is None or (self.constrained and over > 0):
                self._refuse(100.0 if over is None else over)
            elif row in self.tried:
                self.study.tell(self.trial, state=self.states.FAIL)
            else:
                assert row is not None
                self.tried.add(row)
                return row
        return None

    def tell(self, row: int, log_cost: float | None) -> None:
        if log_cost is None:
            self._refuse(float(self.ground.over_bytes[row]) / GIBIBYTE)
            return
        self.trial.set_user_attr("over", (0.0,))
        self.study.tell(self.trial, log_cost)

    def _refuse(self, over: float) -> None:
        if not self.constrained:
            self.study.tell(self.trial, state=self.states.FAIL)
            return
        # A value is asked of a trial that is to count as beyond the constraint; it is compared with no other.
        self.trial.set_user_attr("over", (over,))
        self.study.tell(self.trial, 0.0)


class Cbo:
    """DeepHyper's centralised Bayesian optimisation, as the Frontier study used it: UCB, cl_min, failures told as "F".

    It is told which plans are legal, so that it asks for no others. Its own search of the acquisition's best is by
    sampling: the genetic one that its version 0.13 uses by default takes tens of seconds for every plan here.

    Raises:
        ImportError: DeepHyper is not installed.
    """

    def __init__(self, ground: Ground, seed: int) -> None:
        from deephyper.hpo import CBO, HpProblem

        self.knobs = Knobs(ground)
        problem = HpProblem()
        for name, values in self.knobs.values.items():
            problem.add_hyperparameter(values if len(values) > 1 else [*values, values[0] + 1], name)
        problem.set_constraint_fn(self._legal)
        self._folder = tempfile.TemporaryDirectory()
        options = {"acq_func": "UCB", "acq_optimizer": "sampling", "multi_point_strategy": "cl_min"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.search = CBO(problem, random_state=seed, log_dir=self._folder.name, n_initial_points=10, **options)

    def next_row(self) -> int | None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (self.config,) = self.search.ask(1)
        row = self.knobs.row_of(_counts(self.config))
        assert row is not None, "CBO asks for legal plans alone"
        return row

    def tell(self, row: int, log_cost: float | None) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.search.tell([(self.config, "F" if log_cost is None else -log_cost)])

    def _legal(self, table: Any) -> Any:
        legal = self.knobs.are_legal({name: table[name].to_numpy(dtype=np.int64) for name in self.knobs.values})
        return pd.Series(legal, index=table.index)


def _over(trial: Any) -> tuple[float, ...]:
    """GiB beyond the device, 0 where the plan fits."""
    over: tuple[float, ...] = tuple(trial.user_attrs["over"])
    return over


def _counts(config: dict[str, Any]) -> Config:
    return {name: int(value) for name, value in config.items()}


def is_installed(package: str) -> bool:
    return find_spec(package) is not None


def median_of(jobs: Iterable[int | None]) -> float:
    """The median, in which a search that found nothing counts as infinitely many jobs."""
    return float(np.median([np.inf if number is None else number for number in jobs]))
