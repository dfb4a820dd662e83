"""The searches of a replayed sweep side by side: the same points, the same machines, the same count of jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.replay.game import Game, play
from benchmarks.replay.machine import InventedMachine
from benchmarks.replay.players import Player, RandomPlayer, SearchPlayer, TpePlayer, TpeSpace
from benchmarks.replay.study import Study, StudyGround
from conf.compose.load import Composition
from conf.types.sweep_spec import ReplaySpec
from sweeps.points.plan import part_of
from sweeps.search.choice import search_for
from sweeps.trial import SweepRecord

MOST_DRAWS = 3000
MakePlayer = Callable[[StudyGround, int], Player]


@dataclass(frozen=True, slots=True)
class SearchStanding:
    """The games of one search on all machines."""

    name: str
    games: tuple[Game, ...]

    @property
    def median_jobs(self) -> float:
        """The median of jobs until one was near the best, over the machines."""
        return median(game.counted_jobs for game in self.games)

    @property
    def most_jobs(self) -> float:
        return max(game.counted_jobs for game in self.games)

    @property
    def share_lost(self) -> float:
        """The share of all jobs that ran out of memory."""
        return sum(game.num_lost for game in self.games) / max(1, sum(game.num_jobs for game in self.games))

    @property
    def worst_share(self) -> float:
        """The least that the best job of a machine reached of the best rate."""
        return min(game.share for game in self.games)


@dataclass(frozen=True, slots=True)
class Contest:
    """The standings of all searches on the points of one sweep."""

    study: Study
    standings: tuple[SearchStanding, ...]


def contest_of(asked: Composition, record: SweepRecord, spec: ReplaySpec) -> Contest:
    """Replay the sweep's own search beside others on each machine.

    TPE knows no cost model: an out-of-memory is a job that failed, as in the Frontier study. It stands for DeepHyper,
    whose optimizer is another one (a forest with an upper confidence bound).

    Raises:
        ConfigError: the sweep cannot be searched as it is told to, or has no point that can exist.
    """
    study = Study(part_of(asked, record.spec, proxy=False))
    search = search_for(asked, record)
    first = study.rows_of(record.trials)
    players: dict[str, MakePlayer] = {
        f"search={asked.settings.search.kind}": lambda ground, seed: SearchPlayer(search, ground, first),
        "random among what fits on paper": RandomPlayer,
        "Optuna's TPE, told FAIL": lambda ground, seed: TpePlayer(ground, seed, TpeSpace(study.draw, MOST_DRAWS)),
    }
    grounds = [study.on(InventedMachine(seed)) for seed in range(spec.num_machines)]
    return Contest(study, tuple(_standing_of(name, make, grounds, spec) for name, make in players.items()))


def _standing_of(name: str, make: MakePlayer, grounds: Sequence[StudyGround], spec: ReplaySpec) -> SearchStanding:
    games = [play(make(ground, seed), ground, spec.most_jobs) for seed, ground in enumerate(grounds)]
    return SearchStanding(name, tuple(games))
