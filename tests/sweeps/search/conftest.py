"""A sweep that is searched on a made-up machine, with everything in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from benchmarks.replay.machine import InventedMachine
from benchmarks.replay.run import ReplayedReading, replay_trial, replayed_reading
from conf.compose.load import settings_of
from conf.compose.tree import with_values
from costs import estimate
from sweeps.points.plan import plan_sweep
from sweeps.search.layouts.bayes import Bayes
from sweeps.search.registry import search_for
from sweeps.search.searcher import Proposal
from sweeps.trial import Trial
from tests.composed import composed
from train_core.trial.measurement import Measurement

# Without context ranks, which sequences of 2,048 tokens have no use for: the search would first learn that. With more
# trials than it asks for, so that the search itself says when to end.
SWEEP = ("sweep=175b", "search=bayes", "parallel.context_parallel_size=1", "sweep.max_trials=40")


class Replay:
    """A sweep and the machine on which it is replayed."""

    def __init__(self, overrides: Sequence[str] = SWEEP, seed: int = 7) -> None:
        self.composition = composed(overrides)
        self.record = plan_sweep(self.composition, proxy=False, git_sha="abc")
        search = search_for(self.composition, self.record)
        assert isinstance(search, Bayes)
        self.search = search
        self.machine = InventedMachine(seed)

    @property
    def baseline(self) -> Trial:
        return self.record.trials[0]

    def trial(self, proposal: Proposal) -> Trial:
        experiment = settings_of(with_values(self.composition.tree, proposal.point)).experiment()
        return Trial(
            trial_id=f"{experiment.label}-{experiment.fingerprint[:6]}",
            point=proposal.point,
            experiment=experiment,
            estimate=estimate(experiment),
            selected=True,
            chosen_because=proposal.because,
        )

    def running(self, trial: Trial) -> ReplayedReading:
        return replayed_reading(trial, None)

    def ended(self, trial: Trial, changed: Callable[[Measurement], Measurement] | None = None) -> ReplayedReading:
        assert trial.experiment is not None
        measured = replay_trial(self.machine, trial.experiment)
        return replayed_reading(trial, measured if changed is None else changed(measured))


@pytest.fixture(scope="session")
def replay() -> Replay:
    return Replay()
