"""Makes the rules by which a sweep is carried out from its configuration."""

from __future__ import annotations

from conf.compose.load import Composition
from conf.compose.settings import Settings
from conf.types.sweep_spec import SearchPlan, is_of_time
from conf.units import SECONDS_PER_MINUTE
from launcher.control.notify import notifier
from launcher.control.rules import Budget, Rules
from sweeps.later_command import restriction_of
from sweeps.points.following import Stages
from sweeps.points.plan import part_of, trial_of
from sweeps.ranking.rounds import ROUNDS_OF_A_STAND_IN, Rounds
from sweeps.search.registry import search_for
from sweeps.trial import SweepRecord


def rules_for(composition: Composition, record: SweepRecord, *, on_slurm: bool) -> Rules:
    """The rules of a sweep.

    Raises:
        ConfigError: the search cannot seek what it is told to, or the budget cannot be held.
    """
    settings = composition.settings
    restriction = restriction_of(composition, proxy=record.mode == "proxy")
    whole = restriction.whole if restriction else composition
    measured = part_of(whole, record.spec, proxy=record.mode == "proxy")
    rules = Rules(
        budget=budget_of(settings, record, on_slurm=on_slurm),
        search=search_for(composition, record),
        draft=lambda proposal: trial_of(
            measured.tree,
            proposal.point,
            proposal.because,
            expected_gain=proposal.expected_gain,
            repeat=proposal.repeat,
        ),
        wants=restriction.holds if restriction else lambda trial: True,
        rounds=rounds_of(settings.search, record),
        stages=stages_of(measured.composition, record),
        max_concurrent_trials=settings.search.max_concurrent_trials,
        max_trials=record.spec.max_trials if settings.search.asks_later else None,
        fail_fast=settings.controller.fail_fast,
        max_resubmits=settings.slurm.max_resubmits,
        tell=notifier(settings.notify),
    )
    for trial in record.trials:
        if trial.experiment is not None:
            rules.budget.limit_on(trial)  # a budget that cannot be held is refused before anything starts
    return rules


def stages_of(composition: Composition, record: SweepRecord) -> Stages:
    """The stages that follow the trials of the sweep, over the composition of those that are measured.

    Raises:
        ConfigError: a stage names what there is not, or cannot follow the first of the trials that can run.
    """
    stages = Stages(record.spec.stages, composition)
    first = next((trial for trial in record.trials if trial.selected and not trial.stage), None)
    if stages.specs and first is not None:
        stages.require_sound(first)
    return stages


def budget_of(settings: Settings, record: SweepRecord, *, on_slurm: bool) -> Budget:
    if on_slurm:
        return Budget(settings.budget, settings.slurm, settings.slurm.time_limit_minutes * SECONDS_PER_MINUTE)
    # A trial at full size has no time limit on this machine.
    proxy = record.spec.proxy if record.mode == "proxy" else None
    return Budget(settings.budget, None, proxy.time_limit_minutes * SECONDS_PER_MINUTE if proxy else None)


def rounds_of(search: SearchPlan, record: SweepRecord) -> Rounds | None:
    """Return the rule by which points are repeated: the configured one, else leaders on this machine alone."""
    most = search.max_rounds or (ROUNDS_OF_A_STAND_IN if record.mode == "proxy" else 1)
    # A loss or a score does not vary with what else the machine does, and its seeds are repeats already.
    if most == 1 or not all(map(is_of_time, search.objective)) or search.num_seeds > 1:
        return None
    return Rounds(most, every_point=record.spec.scaling is not None)


def goes_on_by_steps(settings: Settings, record: SweepRecord) -> bool:
    """True if somebody must stay with the sweep to go on with it, because not all can be submitted at once."""
    limited = settings.search.max_concurrent_trials is not None
    repeats = rounds_of(settings.search, record) is not None
    stages = settings.sweep is not None and bool(settings.sweep.stages)
    watched = settings.search.asks_later or repeats or stages or settings.search.pruner != "none"
    return watched or limited or settings.controller.fail_fast is not None
