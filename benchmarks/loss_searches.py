"""How near the best loss a search of learning rates and other keys comes in 25 and 50 jobs, beside Optuna's own.

python -m benchmarks loss_searches            the losses of evaluation
python -m benchmarks.loss_searches --building those that the search was built on, with other seeds

Losses are made up, and nothing is trained. `EVALUATED` and `SEEDS` were set down before the search took these samplers,
which was done by looking at `BUILT_ON` and `BUILDING_SEEDS` alone. The cliffs joined both lists after first looks at
`BUILT_ON`, before any of `EVALUATED` was run.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from statistics import median

import numpy as np

from benchmarks.replay.run import NOWHERE, ReplayedReading, as_measured
from benchmarks.target import Target, print_targets
from conf.compose.load import compose
from conf.overrides import Overrides
from conf.types.schema import Value
from costs.setting import Floats
from sweeps.points.plan import plan_sweep, trial_of
from sweeps.search.registry import search_for

BUDGETS = (25, 50)
BUILDING_SEEDS, SEEDS = range(100, 110), range(10)
NOISE = 0.02
"""The scale of Student's t with four degrees of freedom, which is added to every loss."""
RANGES = {
    "training.learning_rate": "{low: 1e-5, high: 1e-1, log: true}",
    "training.weight_decay": "{low: 0.0, high: 0.5}",
    "training.dropout": "{low: 0.0, high: 0.8}",
    "training.clip_gradient_norm": "{low: 0.1, high: 10.0, log: true}",
    "training.adam_beta2": "{low: 0.5, high: 0.999}",
    "training.adam_epsilon": "{low: 1e-10, high: 1e-4, log: true}",
}
"""The axes of the coordinates, in their order."""
KIND = "parallel.recompute"
"""The axis of what has no order; a made-up loss takes no offence."""
Point = Mapping[str, Value]


@dataclass(frozen=True)
class MadeUpLoss:
    """A loss over the unit cube, whose best value is 0.

    Attributes:
        of: the loss of coordinates between 0 and 1, and of the kind.
        kinds: of the axis without order; none where the loss has no such axis.
        only: the coordinates that exist at one kind alone, by their number.
    """

    name: str
    dimensions: int
    of: Callable[[Floats, str], float]
    kinds: tuple[str, ...] = ()
    only: Mapping[int, str] | None = None

    @property
    def axes(self) -> str:
        axes = [f"{KIND}: [{', '.join(self.kinds)}]"] if self.kinds else []
        for number, (key, axis) in enumerate(list(RANGES.items())[: self.dimensions]):
            kind = (self.only or {}).get(number)
            axes.append(f"{key}: " + (axis[:-1] + f", when: \"{KIND} == '{kind}'\"}}" if kind else axis))
        return f"sweep.axes={{{', '.join(axes)}}}"


def _branin(a: float, b: float) -> float:
    x, y = 15 * a - 5, 15 * b
    return (
        (y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6) ** 2
        + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x)
        + 10
        - 0.397887
    ) / 100


HARTMANN = np.array([1.0, 1.2, 3.0, 3.2])
HARTMANN_3 = (
    np.array([[3, 10, 30], [0.1, 10, 35], [3, 10, 30], [0.1, 10, 35]]),
    np.array([[3689, 1170, 2673], [4699, 4387, 7470], [1091, 8732, 5547], [381, 5743, 8828]]) / 1e4,
    3.86278,
)
HARTMANN_6 = (
    np.array(
        [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
    ),
    np.array(
        [
            [1312, 1696, 5569, 124, 8283, 5886],
            [2329, 4135, 8307, 3736, 1004, 9991],
            [2348, 1451, 3522, 2883, 3047, 6650],
            [4047, 8828, 8732, 5743, 1091, 381],
        ]
    )
    / 1e4,
    3.32237,
)


def _hartmann(of: tuple[Floats, Floats, float], u: Floats) -> float:
    a, p, best = of
    return best - float(HARTMANN @ np.exp(-(a * (u - p) ** 2).sum(axis=1)))


def _ackley(u: Floats) -> float:
    """Of coordinates from -2 to 2, about a centre of its own, as some searches try the middle of every axis."""
    x = 4 * (u - np.array([0.3, 0.62, 0.45, 0.71, 0.2, 0.55])[: len(u)])
    return (
        20
        - 20 * math.exp(-0.2 * math.sqrt(float((x**2).mean())))
        + math.e
        - math.exp(float(np.cos(2 * math.pi * x).mean()))
    )


def _rosenbrock(u: Floats) -> float:
    x = 3 * u - 1
    return math.log1p(float((100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum())) / 2


def _michalewicz(u: Floats) -> float:
    x, number = math.pi * u, np.arange(1, len(u) + 1)
    return {3: 2.760395, 5: 4.687658}[len(u)] - float((np.sin(x) * np.sin(number * x**2 / math.pi) ** 20).sum())


def _bowl(u: Floats, best: float) -> float:
    return float(((u - best) ** 2).sum())


def _cliff(place: float, edge: float) -> float:
    """Nothing up to an edge, then losses as of a training that breaks down, and soon no number any more."""
    return 0.0 if place < edge else 6.0 if place < edge + 0.2 else math.inf


KINDS = ("none", "selective", "full")
BUILT_ON = (
    MadeUpLoss("Branin and a bowl, 3", 3, lambda u, _: _branin(u[0], u[1]) + _bowl(u[2:], 0.3)),
    MadeUpLoss("Hartmann, 3", 3, lambda u, _: _hartmann(HARTMANN_3, u)),
    MadeUpLoss(
        "Hartmann and a bowl, 4 and a kind",
        4,
        lambda u, kind: _hartmann(HARTMANN_3, u[:3]) + _bowl(u[3:], 0.6) + 0.3 * KINDS.index(kind),
        KINDS,
    ),
    MadeUpLoss(
        "bowls on conditions, 4 and a kind",
        4,
        lambda u, kind: _bowl(u[:2], 0.4) + (_bowl(u[2:3], 0.7) if kind == "full" else 0.1 + _bowl(u[3:], 0.2)),
        KINDS[1:],
        {2: "full", 3: "selective"},
    ),
    MadeUpLoss("bowl beside a cliff, 3", 3, lambda u, _: _bowl(u, 0.7) + _cliff(u[0] + u[1] / 2, 1.2)),
)
EVALUATED = (
    MadeUpLoss("valley of Rosenbrock, 3", 3, lambda u, _: _rosenbrock(u)),
    MadeUpLoss("Ackley, 4", 4, lambda u, _: _ackley(u)),
    MadeUpLoss("Hartmann, 6", 6, lambda u, _: _hartmann(HARTMANN_6, u)),
    MadeUpLoss("Michalewicz, 3", 3, lambda u, _: _michalewicz(u)),
    MadeUpLoss("Ackley, 4 and a kind", 4, lambda u, kind: _ackley(u) + 0.4 * KINDS.index(kind), KINDS),
    MadeUpLoss(
        "Ackley on conditions, 5 and a kind",
        5,
        lambda u, kind: _ackley(u[:3] if kind == "none" else u[[0, 1, 3, 4]]) + (0.5 if kind == "none" else 0.0),
        ("none", "full"),
        {2: "none", 3: "full", 4: "full"},
    ),
    MadeUpLoss("Hartmann beside a cliff, 6", 6, lambda u, _: _hartmann(HARTMANN_6, u) + _cliff(u[4] + u[5] / 2, 0.75)),
)

Chances = Callable[[], float]
Losses = list[float]
"""The true losses of the jobs of one search, in their order."""
Play = Callable[[MadeUpLoss, int, int], Losses]
"""Of a loss, a seed, and the most jobs."""


def chances(seed: int) -> Chances:
    """The noise of one job after another."""
    rng = np.random.default_rng([seed, 4])
    return lambda: float(NOISE * rng.standard_t(4))


def play_ours(loss: MadeUpLoss, seed: int, most: int, *words: str) -> Losses:
    """Let the search of a sweep choose, whose baseline is its first job."""
    sought = ("search=bayes", "search.objective=loss", f"search.seed={seed}", *words)
    fixed = ("sweep=smoke", "sweep.points=[]", f"sweep.max_trials={most}", "search.max_concurrent_trials=1")
    asked = compose(Overrides.parse([*fixed, loss.axes, *sought]))
    record = plan_sweep(asked, proxy=False, git_sha="")
    search, noise, found = search_for(asked, record), chances(seed), Losses()
    readings: list[ReplayedReading] = []
    trial = record.trials[0]
    while True:
        training = trial.planned.training
        values = {key: getattr(training, key.partition(".")[2]) for key in list(RANGES)[: loss.dimensions]}
        found.append(loss.of(coordinates(values), trial.planned.parallel.recompute))
        left = as_measured(trial.planned, 1.0, 0.0)
        assert left.performance is not None
        learned = left.performance.model_copy(update={"losses": (), "final_loss": 2.5 + found[-1] + noise()})
        left = left.model_copy(update={"performance": learned})
        readings.append(ReplayedReading(folder=NOWHERE, experiment=trial.experiment, trial=trial, left=left))
        answer = search.ask(readings, 1)
        if not answer.proposals:
            return found
        trial = trial_of(asked.tree, answer.proposals[0].point, "")


def coordinates(values: Mapping[str, float]) -> Floats:
    return np.array([_share(key, value) for key, value in values.items()])


def _ends(key: str) -> tuple[float, float, bool]:
    low, high, *log = (part.partition(": ")[2] for part in RANGES[key].strip("{}").split(", "))
    return float(low), float(high), bool(log)


def _share(key: str, value: float) -> float:
    low, high, is_log = _ends(key)
    return math.log(value / low) / math.log(high / low) if is_log else (value - low) / (high - low)


def play_optuna(loss: MadeUpLoss, seed: int, most: int, name: str) -> Losses:
    """Let a sampler of Optuna choose, with its own defaults."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    noise, found = chances(seed), Losses()

    def run(trial: optuna.Trial) -> float:
        kind = str(trial.suggest_categorical(KIND, loss.kinds)) if loss.kinds else ""
        values = {}
        for number, key in enumerate(list(RANGES)[: loss.dimensions]):
            low, high, is_log = _ends(key)
            exists = (loss.only or {}).get(number, kind) == kind
            values[key] = trial.suggest_float(key, low, high, log=is_log) if exists else low
        found.append(loss.of(coordinates(values), kind))
        return 2.5 + found[-1] + noise()

    sampler = getattr(optuna.samplers, name)(seed=seed)
    optuna.create_study(sampler=sampler).optimize(run, n_trials=most)
    return found


def main(*, building: bool = False) -> list[Target]:
    losses, seeds = (BUILT_ON, BUILDING_SEEDS) if building else (EVALUATED, SEEDS)
    players: dict[str, Play] = {
        "search=bayes": play_ours,
        **{
            f"Optuna's {name}": partial(play_optuna, name=name) for name in ("GPSampler", "TPESampler", "RandomSampler")
        },
    }
    return list(chain(*(_targets(loss, who, play, seeds) for loss in losses for who, play in players.items())))


def _targets(loss: MadeUpLoss, who: str, play: Play, seeds: Sequence[int]) -> Iterator[Target]:
    """Yield the median over seeds of what the best point seen lacks, without noise, and the time of a question."""
    start = time.process_time()
    played = [play(loss, seed, BUDGETS[-1]) for seed in seeds]
    seconds = (time.process_time() - start) / sum(map(len, played))
    for budget in BUDGETS:
        lacks = median(min(found[:budget]) for found in played)
        jobs = f", {median(map(len, played)):g} jobs, {seconds:.2f} CPU s each" if budget == BUDGETS[-1] else ""
        yield Target(f"{loss.name}: {who}, above the best after {budget} jobs{jobs}", "", f"{lacks:.3f}", None)


if __name__ == "__main__":
    print_targets(main(building="--building" in sys.argv[1:]))
