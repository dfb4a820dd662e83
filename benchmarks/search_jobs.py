"""The number of jobs that a search needs until one of them is within 2 % of the best, beside other searches.

python -m benchmarks search_jobs          nine minutes were seen, on two cores with other work beside it
python -m benchmarks.search_jobs --long   more machines for the slow competitors

Every machine here is made up (`replay`): these are replays, no measurements of a cluster. The search was developed on
other seeds than those that are reported.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from statistics import fmean, median

import numpy as np

from benchmarks.replay.knobs import CboPlayer, KnobSpace
from benchmarks.replay.machine import InventedMachine, SurprisingMachine
from benchmarks.replay.players import Game, Player, RandomPlayer, TpePlayer, play
from benchmarks.replay.published import measured_grounds, sections
from benchmarks.replay.sites import SITES, ModelSite, SiteGround
from benchmarks.target import Target, at_most, figure, print_targets
from sweeps.search.layouts.bayes import Bayes
from sweeps.search.registry import MIN_GAIN

SEEDS = range(20)
SURPRISING_SEEDS = range(18)
MOST_JOBS = 60
MOST_JOBS_OF_CBO = 25  # each takes it about a second
NUM_FINISHED = 1000
MOST_ASKS = 2000  # of TPE for one plan that can be run
MakePlayer = Callable[[SiteGround, int], Player]


def main(*, long: bool = False) -> list[Target]:
    grounds = [SiteGround.of(site, InventedMachine(seed)) for site in SITES for seed in SEEDS]
    few = range(20) if long else range(3)
    slow = [ground for ground in grounds if ground.machine.seed in few and ground.site in SITES[: 5 if long else 2]]
    return [
        *_ours(grounds),
        *_until_it_ends(grounds if long else [ground for ground in grounds if ground.machine.seed in few]),
        _figure_of("at random among plans that fit on paper", grounds, RandomPlayer, MOST_JOBS),
        _figure_of("Optuna TPE, failures told as FAIL", slow, _tpe(constrained=False), MOST_JOBS),
        _figure_of("Optuna TPE with constraints", slow, _tpe(constrained=True), MOST_JOBS),
        _cbo(slow),
        *_on_published_rows(),
        *_early_ends(),
        *_early_ends_where_surprised(),
        *_times_to_ask(),
    ]


def _ours(grounds: Sequence[SiteGround]) -> list[Target]:
    games = [play(ground.bayes(0.0), ground, MOST_JOBS) for ground in grounds]
    by_site = [
        figure(
            f"  {site.name}, {_sizes(grounds, site)} feasible plans",
            _median_jobs(game for game, ground in zip(games, grounds, strict=True) if ground.site is site),
        )
        for site in SITES
    ]
    lost, jobs = sum(game.num_lost for game in games), sum(game.num_jobs for game in games)
    mean = fmean(game.jobs_to_best or game.num_jobs for game in games)
    what = f"search=bayes: median jobs to 98 % of the best, {len(grounds)} replays"
    return [
        at_most(what, 5, _median_jobs(games), "", f"mean {mean:.1f}"),
        *by_site,
        at_most("  jobs out of memory", 5, 100 * lost / jobs, " %", f"{lost} of {jobs}"),
    ]


def _until_it_ends(grounds: Sequence[SiteGround]) -> list[Target]:
    """The jobs and their best where nobody knows the best, and the search has to end itself."""
    games = [play(ground.bayes(MIN_GAIN), ground, MOST_JOBS, to_the_end=True) for ground in grounds]
    lowest = min(game.share for game in games)
    of = f"{len(grounds)} replays"
    return [
        figure(f"  jobs until it ends itself, min_gain={MIN_GAIN:g}, {of}", median(game.num_jobs for game in games)),
        figure("  share of the best by then", 100 * median(game.share for game in games), " %", f"lowest {lowest:.1%}"),
    ]


def _figure_of(name: str, grounds: Sequence[SiteGround], make: MakePlayer, most_jobs: int) -> Target:
    games = [play(make(ground, ground.machine.seed), ground, most_jobs) for ground in grounds]
    lost, jobs = sum(game.num_lost for game in games), sum(game.num_jobs for game in games)
    ours = [play(ground.bayes(0.0), ground, most_jobs) for ground in grounds]
    beside = f"search=bayes there {_median_jobs(ours):g}"
    within = sum(game.jobs_to_best is not None for game in games)
    remark = f"{within} of {len(games)} within {most_jobs} jobs; {lost / jobs:.0%} out of memory; {beside}"
    return figure(name, _median_jobs(games), "", remark)


def _tpe(*, constrained: bool) -> MakePlayer:
    def player(ground: SiteGround, seed: int) -> Player:
        return TpePlayer(ground, seed, KnobSpace(ground.site).draw, MOST_ASKS, ground.excess if constrained else None)

    return player


def _cbo(grounds: Sequence[SiteGround]) -> Target:
    name = "DeepHyper CBO, as in the Frontier study"
    if find_spec("deephyper") is None:
        return figure(f"{name}: not installed (pip install trisweep[bench])", None)
    return _figure_of(
        name, grounds, lambda ground, seed: CboPlayer(ground, seed, KnobSpace(ground.site)), MOST_JOBS_OF_CBO
    )


def _on_published_rows() -> Iterable[Target]:
    for name, ground in sections().items():
        ours = ground.play(ground.bayes())
        random = [ground.play(RandomPlayer(ground, seed)) for seed in range(200)]
        what = f'BLOOM, "{name}", {len(ground.shares)} published rows: jobs to 98 % of the best'
        yield figure(what, ours.jobs_to_best, "", f"at random {_median_jobs(random):g}; {ours.num_lost} out of memory")


def _early_ends() -> list[Target]:
    """The share of games in which the search ends itself too early where all layouts of a job were measured."""
    games = [ground.play(ground.bayes(MIN_GAIN)) for ground in measured_grounds()]
    wrong = sum(game.jobs_to_best is None for game in games)
    what = f"search=bayes ends itself before 98 % of the best, min_gain={MIN_GAIN:g}, {len(games)} published jobs"
    jobs = sum(game.num_jobs for game in games) / len(games)
    return [at_most(what, 5, 100 * wrong / len(games), " %", f"{jobs:.1f} jobs each until it has it, or ends")]


def _early_ends_where_surprised() -> list[Target]:
    """The same on machines with effects that the search's model of the error has no place for."""
    machines = [SurprisingMachine(seed) for seed in SURPRISING_SEEDS]
    grounds = [SiteGround.of(site, machine) for site in SITES[:2] for machine in machines]
    games = [play(ground.bayes(MIN_GAIN), ground, MOST_JOBS) for ground in grounds]
    wrong = sum(game.jobs_to_best is None for game in games)
    what = f"the same on {len(games)} made-up machines that surprise it"
    remark = f"median {_median_jobs(games):g} jobs to 98 %, lowest share {min(game.share for game in games):.1%}"
    return [at_most(what, 10, 100 * wrong / len(games), " %", remark)]


def _times_to_ask() -> list[Target]:
    """The time that it takes to find the next point, at 1,000 finished trials."""
    ground = SiteGround.of(SITES[1], InventedMachine(0))
    chosen = np.random.default_rng(0).permutation(np.flatnonzero(ground.fits & ground.fits_on_paper))
    trials = [ground.reading_of(int(row)) for row in chosen[:NUM_FINISHED]]
    search = Bayes(ground.site.candidates, "throughput", 0.0, 10 * NUM_FINISHED)
    first = _seconds(lambda: search.ask(trials[:-1], 1))
    warm = min(_seconds(lambda: search.ask(trials, 1)) for _ in range(5))
    return [
        at_most(f"ask of the next point at {NUM_FINISHED:,} finished trials", 50, 1e3 * warm, " ms"),
        figure("  the first ask of a process, with its plans priced", 1e3 * first, " ms"),
    ]


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _sizes(grounds: Sequence[SiteGround], site: ModelSite) -> str:
    sizes = [ground.num_feasible for ground in grounds if ground.site is site]
    return f"{min(sizes):,} to {max(sizes):,}"


def _median_jobs(games: Iterable[Game]) -> float:
    return float(median(game.counted_jobs for game in games))


if __name__ == "__main__":
    if unknown := set(sys.argv[1:]) - {"--long"}:
        sys.exit(f"no option {', '.join(sorted(unknown))}. Known: --long.")
    print_targets(main(long="--long" in sys.argv))
