"""The ends of `search=bayes` on machines that do not share the cost model's structure: how many of them were wrong.

python -m benchmarks foreign

The seeds were named before the first game on any of them was played; the search was developed on those below 2000.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from benchmarks.replay.foreign_machine import ForeignMachine
from benchmarks.replay.players import NEAR, Game, play
from benchmarks.replay.sites import BF16, SITES, ModelSite, SiteGround
from benchmarks.target import Target, at_least, at_most, figure
from sweeps.search.layouts.bayes import RECORDED_ENDS, UNLIKELY, WRONG_ENDS
from sweeps.search.registry import MIN_GAIN

SEEDS = range(2000, 2025)
SIZES = (1.0, 0.5)  # of the errors
BUDGET = 25  # jobs
FOREIGN_SITES = (
    SITES[0],
    ModelSite(
        "Llama 3.1 70B, 128 A100", ("model=llama-3.1-70b", "cluster=selene", BF16, "batch.global_batch_size=512"), "128"
    ),
    ModelSite(
        "Mixtral 8x7B, 64 H100", ("model=mixtral-8x7b", "cluster=dgx-h100", BF16, "batch.global_batch_size=256"), "64"
    ),
    ModelSite(
        "Llama 2 13B, 16 A100",
        ("model=llama-2-13b", "cluster=mosaicml-a100-40gb", BF16, "batch.global_batch_size=256"),
        "16",
    ),
)


def main() -> list[Target]:
    by_size = {size: [game_on(site, seed, size) for site in FOREIGN_SITES for seed in SEEDS] for size in SIZES}
    games = [game for some in by_size.values() for game in some]
    ends = [game for game in games if game.num_jobs < BUDGET]
    wrong = sum(game.share < NEAR for game in ends)
    recorded = f"{WRONG_ENDS} of {RECORDED_ENDS} are recorded in bayes.py"
    return [
        *(target for size, some in by_size.items() for target in _of_size(size, some)),
        at_most(
            f"search=bayes ends itself with less than {NEAR:.0%} of the best, {len(games)} foreign machines",
            100 * UNLIKELY,
            100 * wrong / max(1, len(ends)),
            " %",
            f"{wrong} of {len(ends)} ends; {recorded}",
        ),
    ]


def game_on(site: ModelSite, seed: int, size: float) -> Game:
    """The jobs of the search until it ends itself, or has had its budget."""
    ground = SiteGround.of(site, ForeignMachine(seed, errors=size))
    return play(ground.bayes(MIN_GAIN), ground, BUDGET, to_the_end=True)


def _of_size(size: float, games: Sequence[Game]) -> list[Target]:
    shares = [game.share for game in games]
    near = sum(share >= NEAR for share in shares)
    what = f"foreign machines, {size:g} x the errors: within 2 % of the best in {BUDGET} jobs"
    ends = [game for game in games if game.num_jobs < BUDGET]
    wrong = sum(game.share < NEAR for game in ends)
    return [
        at_least(what, 75, 100 * near / len(games), " %", f"{near} of {len(games)}"),
        figure("  share of the best, mean", 100 * fmean(shares), " %", f"lowest {min(shares):.1%}"),
        figure(
            "  jobs until it ends", median(game.num_jobs for game in games), "", f"{wrong} of {len(ends)} ends wrong"
        ),
    ]
