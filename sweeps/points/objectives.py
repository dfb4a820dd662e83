"""The objectives as values of a trial: measured where it ran, predicted on paper. The two are never mixed.

throughput   model FLOP/s per device                                                          the more, the better
loss         held-out loss after the last step; without evaluations the mean of the finite losses of the last tenth
step_time    seconds of a step
dollars      for a trillion tokens, at the price in the cluster's file
energy       joules for a token, at the declared power of the devices
STAGE.FIGURE what the program of a later stage measured of the trial; of `train`, what its own program printed last
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from statistics import fmean

from conf.compose.tree import Tree, part_at
from conf.errors import ConfigError
from conf.nearest import nearest
from conf.plan.experiment import Experiment
from conf.types.sweep_spec import Objective, PointSet, figure_of, is_of_time, own_figure
from conf.units import SECONDS_PER_HOUR, TRILLION
from costs import Estimate
from sweeps.reading import Reading, TrialReading
from train_core.trial.measurement import LOSS, SET_LOSS, Performance, StepMetrics

LAST_PART = 10
"""Where the held-out loss is not evaluated, the loss is the mean over this part of the steps, at the end as on the way,
because that of a single batch says little."""
UNITS: Mapping[str, str] = {
    "throughput": "FLOP/s per device",
    "loss": "nats per token",
    "step_time": "s",
    "dollars": "dollars per trillion tokens",
    "energy": "J per token",
}
STEP_KEYS = frozenset({"batch.global_batch_size", "model.seq_length"})
"""What decides how many tokens a step trains on."""
MIXTURE = "data.mixture."
"""Keys on which the loss of a set of its own does not depend but by what was learnt."""
OTHER_LOSSES = ("data.", "model.vocab_size", "model.seq_length")
"""Keys whose values each have a loss of their own kind: other text, other tokens, other contexts."""


def is_better_when_larger(objective: Objective) -> bool:
    return objective == "throughput" or objective.startswith("max:")


def unit_of(objective: Objective, readings: Sequence[Reading]) -> str:
    """The unit of the trials' values; empty of a stage's figure and of another program's loss, which have their own."""
    is_own = all(each.experiment is None or each.experiment.trainer.is_own for each in readings)
    return "" if objective == "loss" and not is_own else UNITS.get(objective, "")


def cost(objective: Objective, value: float) -> float:
    """The value with its sign turned where more is better, so that the best is always the smallest."""
    return -value if is_better_when_larger(objective) else value


def measured_value(objective: Objective, reading: Reading) -> float | None:
    """The value that a completed trial measured; None where it has not completed, or told of no time that is sought."""
    performance, experiment = reading.performance, reading.experiment
    if performance is None or experiment is None:
        return None
    if (own := own_figure(objective)) is not None:
        return reading.metrics.get(own)
    if (figure := figure_of(objective)) is not None:
        return reading.figures.get(figure) if isinstance(reading, TrialReading) else None
    if objective == "loss":
        if experiment.trainer.log.figures and LOSS not in reading.metrics:
            return None
        return final_loss(experiment, performance, reading.steps)
    return _of_step(objective, experiment, performance) if performance.is_timed else None


def predicted_value(objective: Objective, experiment: Experiment, estimate: Estimate) -> float | None:
    """The value on paper; None of a loss and of a later stage's figure, which no cost model knows."""
    return None if not is_of_time(objective) else _of_step(objective, experiment, estimate)


def final_loss(experiment: Experiment, performance: Performance, steps: Sequence[StepMetrics]) -> float | None:
    """The loss by which a training is judged; None where its evaluation after the last step is not on record.

    Another program evaluates when it likes: of it the last evaluation counts, and none is no number.
    """
    if not experiment.has_held_out_loss:
        _, last = finite_ends(performance.losses)
        # A step that fp16 skipped says nothing of the training; one that ended so may have diverged.
        return fmean(last) if last and math.isfinite(performance.final_loss) else performance.final_loss
    if experiment.trainer.is_own:
        return steps[-1].held_out_loss if steps else None
    told = [step.held_out_loss for step in steps if step.held_out_loss is not None]
    return told[-1] if told else math.nan


def finite_ends(losses: Sequence[float]) -> tuple[list[float], list[float]]:
    """The finite losses of the first and of the last part of the steps, which is one step at least."""
    number = max(1, len(losses) // LAST_PART)
    first, last = ([loss for loss in part if math.isfinite(loss)] for part in (losses[:number], losses[-number:]))
    return first, last


def front(values: Sequence[Sequence[float]]) -> list[int]:
    """Numbers of the rows that no other row beats; rows are costs, the smaller the better, and equal rows all stay."""
    kept: list[int] = []
    # A row that beats another comes before it in this order, so that each is held against the front so far alone.
    for number in sorted(range(len(values)), key=lambda number: tuple(values[number])):
        row = values[number]
        rivals = (values[other] for other in kept)
        if not any(rival != row and all(a <= b for a, b in zip(rival, row, strict=True)) for rival in rivals):
            kept.append(number)
    return sorted(kept)


def _of_step(objective: Objective, experiment: Experiment, step: Performance | Estimate) -> float:
    devices = experiment.parallel.world_size
    match objective:
        case "throughput":
            return step.model_flops_per_second_per_device
        case "dollars":
            price = experiment.price_per_hour
            assert price is not None, "a sweep for money is planned only where there is a price"
            return price * devices / SECONDS_PER_HOUR / step.tokens_per_second * TRILLION
        case "energy":
            return experiment.watts * devices / step.tokens_per_second
    return step.step_seconds


def require_comparable(objectives: Sequence[Objective], point_set: PointSet, pinned: Sequence[str], tree: Tree) -> None:
    """Refuse a sweep whose points cannot be compared by what it seeks.

    Args:
        pinned: the keys that the command itself gives values.
        tree: the configuration that the points change.

    Raises:
        ConfigError: names the key that makes the difference, or that has no value.
    """
    keys = {key for key, _ in point_set.listed_values()}
    tokens = part_at(tree, "search.tokens")
    if tokens is not None and "training.num_steps" in keys.union(pinned):
        problem = "decides the number of steps, and training.num_steps is given as well"
        remedy = "Give only one of search.tokens and training.num_steps."
        raise ConfigError("search.tokens", int(tokens), problem, remedy)
    if "dollars" in objectives:
        _require_prices(tree)
    prints_figures = part_at(tree, "trainer.log.figures")
    for objective in objectives:
        figure = figure_of(objective)
        if SET_LOSS.fullmatch(own_figure(objective) or "") and not prints_figures:
            _require_held_out(own_figure(objective) or "", tree)
            _require_comparable_losses({key for key in keys if not key.startswith(MIXTURE)}, tokens, objective)
        elif figure is not None and not (own_figure(objective) and prints_figures):
            _require_measured(figure, tree)
    if "loss" in objectives and not prints_figures:  # a script's own values say how long it trains, and on what
        _require_comparable_losses(keys, tokens, "loss")
    if "step_time" in objectives and (varied := sorted(keys & STEP_KEYS)):
        problem = f"would favour small steps: the sweep varies {varied[0]}"
        remedy = "Seek throughput, dollars or energy, which are per token, or leave that key alone."
        raise ConfigError("search.objective", "step_time", problem, remedy)


def _require_prices(tree: Tree) -> None:
    from conf.compose.load import settings_of  # here, as it takes Hydra along, and reports measure without it

    settings = settings_of(tree)
    others = [block.cluster for block in settings.mixed or () if block.cluster.name != settings.cluster.name]
    problem, remedy = "is not known, and money is sought", "Set cluster.device.price_per_hour=DOLLARS."
    for cluster in (settings.cluster, *others):
        if cluster.device.price_per_hour is None:
            if cluster is not settings.cluster:
                problem = f"is not known of {cluster.name}, a part of the mixed job, and money is sought"
                remedy = f"Set device.price_per_hour in the file of cluster {cluster.name}."
            raise ConfigError("cluster.device.price_per_hour", None, problem, remedy)


def _require_measured(figure: str, tree: Tree) -> None:
    stages = part_at(tree, "sweep.stages") or {}
    with_metrics = [name for name, stage in stages.items() if stage.get("metrics")]
    if figure.partition(".")[0] not in with_metrics:
        known = f"Seek a figure of {', '.join(with_metrics)}." if with_metrics else "Give a stage its `metrics`."
        problem = "is of no stage of this sweep that measures anything"
        raise ConfigError("search.objective", figure, problem, known)
    stage, _, wanted = figure.partition(".")
    # The figures of a file are known only once it is written; those of a line are its pattern's groups.
    line = stages[stage]["metrics"].get("line")
    if line is not None and wanted not in (named := list(re.compile(line).groupindex)):
        problem = f"is not a figure of {stage}, whose metrics.line finds {', '.join(named)}"
        remedy = nearest(figure, [f"{stage}.{name}" for name in named])
        raise ConfigError("search.objective", figure, problem, remedy)


def _require_held_out(figure: str, tree: Tree) -> None:
    """Refuse the loss of a set that is not held out."""
    named = [f"eval/{name}/loss" for name in part_at(tree, "data.held_out") or {}]
    if figure not in named:
        remedy = nearest(figure, named) if named else "Name sets in data.held_out, or seek loss."
        raise ConfigError("search.objective", figure, "is the loss of no set in data.held_out", remedy)


def _require_comparable_losses(keys: set[str], tokens: int | None, objective: Objective) -> None:
    foreign = sorted(key for key in keys if key.startswith(OTHER_LOSSES))
    if foreign:
        problem = f"of different {foreign[0]} cannot be compared, and the sweep varies it"
        raise ConfigError("search.objective", objective, problem, "Make a sweep for each value of that key.")
    varied = sorted(keys & (STEP_KEYS | {"training.num_steps"}))
    if varied and tokens is None:
        problem = f"leaves trials with different numbers of tokens: the sweep varies {varied[0]}"
        remedy = "Give search.tokens, the tokens of each trial, such as search.tokens=1e8."
        raise ConfigError("search.tokens", None, problem, remedy)
