"""The searches of a replay side by side: the same points, the same machines, the same count of jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from conf.compose.load import Composition
from conf.types.sweep_spec import ReplaySpec
from sweeps.points.plan import part_of
from sweeps.replay.machine import InventedMachine
from sweeps.replay.players import at_random, by_search, by_tpe, rows_until_found
from sweeps.replay.study import Ground, Played, Study, score
from sweeps.search.choice import search_for
from sweeps.trial import SweepRecord

Player = Callable[[Ground, int], Iterator[int]]


@dataclass(frozen=True, slots=True)
class SearchStanding:
    """The games of one search on all machines."""

    name: str
    games: tuple[Played, ...]

    @property
    def median_jobs(self) -> float:
        """The median of jobs until one was near the best; a search that found none counts as infinitely many."""
        return median(self._jobs)

    @property
    def most_jobs(self) -> float:
        return max(self._jobs)

    @property
    def share_lost(self) -> float:
        """The share of all jobs that ran out of memory."""
        return sum(game.num_lost for game in self.games) / max(1, sum(game.num_jobs for game in self.games))

    @property
    def worst_share(self) -> float:
        """The least that the best job of a machine reached of the best rate."""
        return min(game.share for game in self.games)

    @property
    def _jobs(self) -> list[float]:
        return [float("inf") if game.found_at is None else game.found_at for game in self.games]


@dataclass(frozen=True, slots=True)
class Contest:
    """The result of a replay."""

    study: Study
    standings: tuple[SearchStanding, ...]


def contest(asked: Composition, record: SweepRecord, spec: ReplaySpec) -> Contest:
    """Replay the sweep's own search beside others on each machine.

    Raises:
        ConfigError: the sweep cannot be searched as it is told to, or has no point that can exist.
    """
    study = Study(part_of(asked, record.spec, proxy=False))
    search = search_for(asked, record)
    first = study.rows_of(record.trials)
    players: dict[str, Player] = {
        f"search={asked.settings.search.kind}": lambda ground, seed: by_search(search, ground, first),
        "random among what fits on paper": at_random,
        "Optuna's TPE, told FAIL": by_tpe,
    }
    grounds = [study.on(InventedMachine(seed)) for seed in range(spec.num_machines)]
    return Contest(study, tuple(_standing(name, player, grounds, spec) for name, player in players.items()))


def _standing(name: str, player: Player, grounds: Sequence[Ground], spec: ReplaySpec) -> SearchStanding:
    jobs = [rows_until_found(ground, player(ground, seed), spec.most_jobs) for seed, ground in enumerate(grounds)]
    return SearchStanding(name, tuple(score(ground, rows) for ground, rows in zip(grounds, jobs, strict=True)))
