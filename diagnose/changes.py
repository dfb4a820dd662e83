"""What to change in a run: the best single change, the best two, and the best plan of all, on the same devices.

The batch, the devices and their memory stay. Gains are relative to this run, whose own factor over its prediction is
taken to hold for other plans, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from conf.compose.load import compose
from conf.errors import InfeasiblePlan
from conf.nearest import padded_vocabulary
from conf.overrides import Overrides
from conf.plan.experiment import ExperimentParts
from conf.plan.knobs import KNOBS, KnobValue, layers_in_short
from conf.plan.setup import Setup
from costs import Estimate
from costs.estimate import setting_of
from diagnose.suspects import Case, Suspect
from diagnose.understood import price_of, usual_facts
from sweeps.memory_odds import LIKELY
from sweeps.planner.choosing.choice import choose_plans
from sweeps.planner.choosing.explain import neighbours, priceable
from sweeps.planner.choosing.objectives import Training
from sweeps.planner.plans.space import Space, padded_for, padded_model, shared_tensor_sizes
from sweeps.planner.plans.strategy import Strategy
from sweeps.table.configuration import Configuration

LEAST_GAIN = 0.02
MOST_FOLLOWED = 6
"""Single changes of which each is looked at with every second one."""
PROGRAMS = {"megatron-core": "megatron-lm", "megatron-deepspeed": "deepspeed", "fsdp": "hf-trainer"}
PROGRAMS |= {"deepspeed": "hf-deepspeed", "trisweep": "command"}
"""Files of conf/trainer with the words of a trainer's users, where they have another name."""


PLACING = ("pipeline_before_data", "offload_optimizer", "zero_group_size")
"""Knobs that plans have as the run has them: how its ranks and its optimizer are placed is for few to choose."""


@dataclass(frozen=True)
class BetterPlan:
    """Another plan for the same devices and batch.

    Attributes:
        what: its changes in words, those of the trainer's facts as their suspects say them.
        ratio: its predicted step over that of this run; `low_ratio` and `high_ratio` hold four of five.
        fits: the probability that it fits.
    """

    kind: str
    what: tuple[str, ...]
    configuration: Configuration
    predicted: Estimate
    ratio: float
    low_ratio: float
    high_ratio: float
    fits: float


@dataclass(frozen=True)
class _Move:
    """A plan on the way, with the knobs that were changed and the suspects that were mended by facts of the trainer."""

    configuration: Configuration
    changed: frozenset[str]
    mended: tuple[str, ...] = ()


def parts_of(configuration: Configuration) -> ExperimentParts:
    """The parts of an experiment like this run, with the words of its trainer's users."""
    trainer = configuration.implementation.name
    settings = _settings_of(PROGRAMS.get(trainer, trainer))
    return settings.model_copy(update={name: getattr(configuration.setup, name) for name in Setup.model_fields})


@cache
def _settings_of(program: str) -> ExperimentParts:
    return compose(Overrides.parse([f"trainer={program}"])).settings


def proposals(case: Case, suspects: Sequence[Suspect], parts: ExperimentParts) -> list[BetterPlan]:
    """The best single change, the best two and the best plan, as far as each gains on the one before."""
    start = _Move(case.configuration, frozenset())
    singles = _priced(case, [*_mended(case, suspects, start), *_neighbours(start, parts)])
    followed = [move for move, _ in singles[:MOST_FOLLOWED]]
    pairs = _priced(case, [pair for move in followed for pair in _second(case, suspects, move, parts)])
    found = [("one change", singles[:1]), ("two changes", pairs[:1]), ("best plan", _best_plan(case, parts))]
    shown: list[BetterPlan] = []
    least = 1 - LEAST_GAIN
    for kind, best in found:
        if best and best[0][1].step_seconds <= least * case.predicted.step_seconds:
            shown.append(_proposal(kind, case, *best[0]))
            least = shown[-1].ratio - LEAST_GAIN
    return shown


def _proposal(kind: str, case: Case, move: _Move, predicted: Estimate) -> BetterPlan:
    interval = case.understood.interval
    assert interval is not None
    ratio = predicted.step_seconds / case.predicted.step_seconds
    ends = ratio / (1 + interval.rivals), ratio * (1 + interval.rivals)
    what = (*move.mended, *changes_in_words(case.configuration.setup, move.configuration.setup))
    return BetterPlan(
        kind, what, move.configuration, predicted, ratio, *ends, case.risk.fits(move.configuration, predicted)
    )


def _priced(case: Case, moves: Sequence[_Move]) -> list[tuple[_Move, Estimate]]:
    """The moves that are likely to fit, the fastest first."""
    priced = zip(moves, price_of([move.configuration for move in moves]), strict=True)
    likely = [(move, price) for move, price in priced if case.risk.fits(move.configuration, price) >= LIKELY]
    return sorted(likely, key=lambda each: each[1].step_seconds)


def _mended(case: Case, suspects: Sequence[Suspect], start: _Move) -> Iterator[_Move]:
    """The run without one of its suspects."""
    for suspect in suspects:
        if suspect.change and (found := case.understood.changed(suspect.change.columns, suspect.change.facts)):
            is_of_trainer = found.setup == start.configuration.setup
            yield _Move(found, frozenset((suspect.name,)), (f"{suspect.remedy}",) if is_of_trainer else ())


def _second(case: Case, suspects: Sequence[Suspect], move: _Move, parts: ExperimentParts) -> Iterator[_Move]:
    """A second change on top of one: another knob, or another flag of the trainer."""
    known = {name for name, _ in _differences(case.configuration.setup, move.configuration.setup)} | move.changed
    for second in _neighbours(move, parts):
        knobs = {name for name, _ in _differences(move.configuration.setup, second.configuration.setup)}
        if not knobs & known:
            yield second
    for suspect in suspects:
        if suspect.change and not suspect.change.columns and suspect.name not in known:
            yield _with_facts(move, suspect.change.facts, suspect)


def _with_facts(move: _Move, facts: Mapping[str, Any], suspect: Suspect) -> _Move:
    trainer = move.configuration.implementation.model_copy(update=dict(facts))
    configuration = replace(move.configuration, implementation=trainer)
    return _Move(configuration, move.changed | {suspect.name}, (*move.mended, suspect.remedy))


def _neighbours(move: _Move, parts: ExperimentParts) -> Iterator[_Move]:
    setup, trainer = move.configuration.setup, move.configuration.implementation
    here = parts.model_copy(update={name: getattr(setup, name) for name in Setup.model_fields})
    for knob, strategy in neighbours(Strategy(setup.parallel, setup.batch), here, trainer):
        if knob in PLACING:
            continue
        try:
            changed = priceable(strategy, padded_for(here, strategy.parallel.tensor_parallel_size), trainer)
        except InfeasiblePlan:
            continue
        configuration = replace(move.configuration, setup=changed)
        yield _Move(configuration, move.changed | {knob}, move.mended)


def _best_plan(case: Case, parts: ExperimentParts) -> list[tuple[_Move, Estimate]]:
    """The best plan of even stages, with the trainer's flags as they should be; empty where none is likely to fit."""
    setup, trainer = case.configuration.setup, case.configuration.implementation
    usual, flags = usual_facts(trainer), [flag for flag, _ in case.understood.wrong_flags]
    trainer = trainer.model_copy(update={name: getattr(usual, name) for flag in flags for name in flag.without})
    pinned: dict[str, KnobValue] = {"layers_per_stage": None, **{name: setup.knob_value(name) for name in PLACING}}
    # ZeRO-2 and 3 of Megatron are its FSDP, which is another trainer in all but its name.
    if trainer.name.startswith("megatron") and setup.parallel.zero_stage <= 1:
        pinned["zero_stage"] = 1
    size, batch = setup.parallel.world_size, setup.batch.global_batch_size
    space = Space(setting_of(setup, trainer), size, batch, pinned=pinned)
    whole = setup.model.model_copy(update={"vocab_size": padded_vocabulary(setup.model.vocab_size, 1)})
    model = padded_model(whole, sorted(shared_tensor_sizes(space)))
    space = replace(space, setting=replace(space.setting, model=model), headroom_bytes=case.risk.headroom_bytes)
    try:
        best = choose_plans([space], "time", Training(), 1).best[0]
        found = best.strategy.setup(parts.model_copy(update={"model": model, "cluster": setup.cluster}))
    except InfeasiblePlan:
        return []
    configuration = replace(case.configuration, setup=found, implementation=trainer)
    move = _Move(configuration, frozenset(), tuple(flag.remedy for flag in flags if flag.applies(found)))
    return [(move, price_of([configuration])[0])]


def _differences(setup: Setup, other: Setup) -> list[tuple[str, str]]:
    """The knobs that differ, each with both values in words."""
    found = []
    for knob in KNOBS:
        if knob.group and knob.name not in ("world_size", "tensor_parallel_across_nodes", "layers_per_stage"):
            before, after = setup.knob_value(knob.name), other.knob_value(knob.name)
            if before != after:
                found.append((knob.name, f"{knob.name} {_word(after)} instead of {_word(before)}"))
    if setup.layers_per_stage != other.layers_per_stage and len(set(other.layers_per_stage)) > 1:
        found.append(("layers_per_stage", f"layers_per_stage {layers_in_short(other.layers_per_stage)}"))
    rows, padded = setup.model.vocab_size, other.model.vocab_size
    if rows != padded and rows != padded_vocabulary(rows, 1):
        found.append(("vocab_size", f"a vocabulary of {padded:,} rows instead of {rows:,}"))
    return found


def changes_in_words(setup: Setup, other: Setup) -> list[str]:
    return [words for _, words in _differences(setup, other)]


def _word(value: object) -> str:
    return str(value).lower()
