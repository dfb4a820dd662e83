"""The legal plans of a site as values of knobs, for searches that choose knob by knob."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.replay.sites import ModelSite
from conf.plan.knobs import SEARCHED_KNOBS
from sweeps.planner.plans.space import Placing
from train_core.costs.setting import Booleans, Integers

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
        """Each plan as one number."""
        code = np.zeros(len(next(iter(columns.values()))), dtype=np.int64)
        for name, values in self.values.items():
            code = code * (len(values) + 1) + np.searchsorted(values, columns[name])
        return code
