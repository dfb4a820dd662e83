"""How many jobs a search needs until one of them is within 2 % of the best, beside other searches.

python -m benchmarks search_jobs          about a minute on a quiet machine
python -m benchmarks.search_jobs --long   more machines for the slow competitors

Every machine here is made up (sweeps/replay): these are replays, no measurements of a cluster. The search was developed
on other seeds than those that are reported.

grounds     the plans, and what each really takes
contest     a search on a ground
ours        search=bayes
players     the others
published   published sweeps replayed
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from statistics import median

import numpy as np

from benchmarks.search_jobs.contest import Played, Player, play
from benchmarks.search_jobs.grounds import SITES, Ground, Site
from benchmarks.search_jobs.ours import Ours, finished
from benchmarks.search_jobs.players import Cbo, Random, Tpe, is_installed, median_of
from benchmarks.search_jobs.published import measured_grounds, play_rows, sections
from benchmarks.target import Target, at_most, figure
from sweeps.replay.machine import InventedMachine
from sweeps.search.layouts.bayes import Bayes

SEEDS = range(20)
MIN_GAIN = 0.02  # of conf/search/bayes.yaml
MOST_JOBS = 60
MOST_JOBS_OF_CBO = 25  # each takes it about a second
NUM_FINISHED = 1000
Make = Callable[[Ground, int], Player]


def main(*, long: bool = False) -> list[Target]:
    grounds = [Ground.of(site, InventedMachine(seed)) for site in SITES for seed in SEEDS]
    few = range(20) if long else range(3)
    slow = [ground for ground in grounds if ground.machine.seed in few and ground.site in SITES[: 5 if long else 2]]
    return [
        *_ours(grounds),
        *_to_the_end(grounds if long else [ground for ground in grounds if ground.machine.seed in few]),
        _others("at random among plans that fit on paper", grounds, Random, MOST_JOBS),
        _others("Optuna TPE, failures told as FAIL", slow, _tpe(constrained=False), MOST_JOBS),
        _others("Optuna TPE with constraints", slow, _tpe(constrained=True), MOST_JOBS),
        _cbo(slow),
        *_published(),
        *_stops(),
        *_times(),
    ]


def _ours(grounds: Sequence[Ground]) -> list[Target]:
    played = [play(Ours(ground, 0.0), ground, MOST_JOBS) for ground in grounds]
    by_site = [
        figure(
            f"  {site.name}, {_sizes(grounds, site)} feasible plans",
            median_of(one.jobs for one, ground in zip(played, grounds, strict=True) if ground.site is site),
        )
        for site in SITES
    ]
    lost, jobs = sum(one.num_lost for one in played), sum(one.num_jobs for one in played)
    what = f"search=bayes: median jobs to 98 % of the best, {len(grounds)} replays"
    return [
        at_most(what, 5, median_of(one.jobs for one in played), "", f"mean {_mean(played):.1f}"),
        *by_site,
        at_most("  jobs out of memory", 5, 100 * lost / jobs, " %", f"{lost} of {jobs}"),
    ]


def _to_the_end(grounds: Sequence[Ground]) -> list[Target]:
    """What comes of it where nobody knows the best, and the search has to end itself."""
    played = [play(Ours(ground, MIN_GAIN), ground, MOST_JOBS, to_the_end=True) for ground in grounds]
    lowest = min(one.share for one in played)
    of = f"{len(grounds)} replays"
    return [
        figure(f"  jobs until it ends itself, min_gain={MIN_GAIN:g}, {of}", median(one.num_jobs for one in played)),
        figure("  share of the best by then", 100 * median(one.share for one in played), " %", f"lowest {lowest:.1%}"),
    ]


def _others(name: str, grounds: Sequence[Ground], make: Make, most_jobs: int) -> Target:
    played = [play(make(ground, ground.machine.seed), ground, most_jobs) for ground in grounds]
    lost, jobs = sum(one.num_lost for one in played), sum(one.num_jobs for one in played)
    ours = [play(Ours(ground, 0.0), ground, most_jobs) for ground in grounds]
    beside = f"search=bayes there {median_of(one.jobs for one in ours):g}"
    within = sum(one.jobs is not None for one in played)
    remark = f"{within} of {len(played)} within {most_jobs} jobs; {lost / jobs:.0%} out of memory; {beside}"
    return figure(name, median_of(one.jobs for one in played), "", remark)


def _tpe(*, constrained: bool) -> Make:
    return lambda ground, seed: Tpe(ground, seed, constrained=constrained)


def _cbo(grounds: Sequence[Ground]) -> Target:
    name = "DeepHyper CBO, as in the Frontier study"
    if not is_installed("deephyper"):
        return figure(f"{name}: not installed (pip install trisweep[bench])", None)
    return _others(name, grounds, Cbo, MOST_JOBS_OF_CBO)


def _published() -> Iterable[Target]:
    for name, rows in sections().items():
        ours = play_rows(rows)
        random = [play_rows(rows, np.random.default_rng(seed)).jobs for seed in range(200)]
        what = f'BLOOM, "{name}", {len(rows.rows)} published rows: jobs to 98 % of the best'
        yield figure(what, ours.jobs, "", f"at random {median_of(random):g}; {ours.num_lost} out of memory")


def _stops() -> list[Target]:
    """How often the search ends itself too early where all layouts of a job were measured."""
    played = [play_rows(ground, min_gain=MIN_GAIN) for ground in measured_grounds()]
    wrong = sum(one.jobs is None for one in played)
    what = f"search=bayes ends itself before 98 % of the best, min_gain={MIN_GAIN:g}, {len(played)} published jobs"
    jobs = sum(one.num_jobs for one in played) / len(played)
    return [at_most(what, 5, 100 * wrong / len(played), " %", f"{jobs:.1f} jobs each until it has it, or ends")]


def _times() -> list[Target]:
    """How long the next point takes to find, at 1,000 finished trials."""
    ground = Ground.of(SITES[1], InventedMachine(0))
    chosen = np.random.default_rng(0).permutation(np.flatnonzero(ground.fits & (ground.site.predicted_bytes_over <= 0)))
    trials = [finished(ground, int(row), ground.measured(int(row))) for row in chosen[:NUM_FINISHED]]
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


def _sizes(grounds: Sequence[Ground], site: Site) -> str:
    sizes = [ground.num_feasible for ground in grounds if ground.site is site]
    return f"{min(sizes):,} to {max(sizes):,}"


def _mean(played: Sequence[Played]) -> float:
    return sum(one.jobs or one.num_jobs for one in played) / len(played)
