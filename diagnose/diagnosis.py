"""A run's whole diagnosis: understood, measured, held against its prediction, suspects, and what to change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from conf.plan.experiment import ExperimentParts
from diagnose.changes import BetterPlan, parts_of, proposals
from diagnose.doubts import Doubt, doubts
from diagnose.evidence import FileEvidence
from diagnose.from_flops import told_by_flops
from diagnose.happenings import flags_without_effect, questions, suspects_of_log
from diagnose.measured import MeasuredSteps, measured
from diagnose.runs import UserRun
from diagnose.suspects import LEAST_SHARE, Case, Suspect, suspects_of_configuration
from diagnose.trainer_words import WITHOUT, difference_in_words
from diagnose.understood import Understood, understood


class RunVerdict(StrEnum):
    """Where a run stands."""

    NO_STEPS = "no steps"
    NO_PRICE = "no prediction"
    IMPOSSIBLE = "the measurement cannot be true"
    FASTER = "faster than predicted"
    NOT_SLOW = "not slow"
    BY_CONFIGURATION = "slow by its configuration"
    SLOWER = "slower than its configuration explains"


@dataclass(frozen=True)
class Advice:
    """A proposal with what to write for it, in the trainer's words where its file has some."""

    proposal: BetterPlan
    words: tuple[str, ...]


@dataclass(frozen=True)
class Diagnosis:
    """Everything that is said of one run.

    Attributes:
        case: the run with its price; None where it has none.
        unexplained_seconds: of a step that is slower than predicted: beyond the prediction and what the log prices.
    """

    run: UserRun
    understood: Understood
    measured: MeasuredSteps | None
    case: Case | None
    doubts: tuple[Doubt, ...]
    verdict: RunVerdict
    suspects: tuple[Suspect, ...]
    without_effect: tuple[FileEvidence, ...]
    unexplained_seconds: float | None

    @property
    def factor(self) -> float | None:
        """The measured step over the predicted one."""
        if self.measured is None or self.understood.predicted is None:
            return None
        return self.measured.step_seconds / self.understood.predicted.step_seconds

    @cached_property
    def advice(self) -> tuple[Advice, ...]:
        """What to change, the smallest change first; nothing where the run has no price, or a false measurement."""
        if self.case is None or self.verdict is RunVerdict.IMPOSSIBLE:
            return ()
        return _advice(self.case, self.suspects, parts_of(self.case.configuration))


def diagnose(run: UserRun) -> Diagnosis:
    """Everything that the files of a run say of it, and what the cost model adds."""
    seen = measured(run)
    run = told_by_flops(run, seen)
    known = understood(run, seen.step_seconds if seen else None)
    case = Case.of(known, seen)
    doubted = tuple(doubts(known, seen)) if seen else ()
    of_configuration, of_log = _all_suspects(run, known, seen, case)
    verdict = _verdict(known, seen, doubted, of_configuration)
    if verdict is RunVerdict.SLOWER and not of_log and seen is not None and case is not None:
        of_log = questions(seen, case)
    suspects = _named(verdict, known, seen, of_configuration, of_log)
    return Diagnosis(
        run=run,
        understood=known,
        measured=seen,
        case=case,
        doubts=doubted,
        verdict=verdict,
        suspects=tuple(suspects),
        without_effect=tuple(flags_without_effect(run, case)),
        unexplained_seconds=_unexplained(verdict, known, seen, suspects),
    )


def _all_suspects(
    run: UserRun, known: Understood, seen: MeasuredSteps | None, case: Case | None
) -> tuple[list[Suspect], list[Suspect]]:
    """The suspects of the configuration that are worth a word in such a run, and those of its log."""
    of_log = suspects_of_log(run, seen, case)
    if case is None or known.interval is None:
        return [], of_log
    # Inside the interval only what two predictions for one machine can be told apart by is worth a word.
    is_slower = seen is not None and seen.step_seconds > known.interval.high_seconds
    found = suspects_of_configuration(case, LEAST_SHARE if is_slower else known.interval.rivals)
    parts = parts_of(case.configuration) if found else None
    return [_in_words_of_trainer(case, each, parts) if parts else each for each in found], of_log


def _verdict(
    known: Understood, seen: MeasuredSteps | None, doubted: Sequence[Doubt], found: Sequence[Suspect]
) -> RunVerdict:
    interval = known.interval
    if any(doubt.impossible for doubt in doubted):
        return RunVerdict.IMPOSSIBLE
    if interval is None:
        return RunVerdict.NO_PRICE if seen else RunVerdict.NO_STEPS
    if seen is None:
        return RunVerdict.NO_STEPS
    if seen.step_seconds > interval.high_seconds:
        return RunVerdict.SLOWER
    if seen.step_seconds < interval.low_seconds:
        return RunVerdict.FASTER
    return RunVerdict.BY_CONFIGURATION if found else RunVerdict.NOT_SLOW


def _named(
    verdict: RunVerdict,
    known: Understood,
    seen: MeasuredSteps | None,
    found: Sequence[Suspect],
    of_log: Sequence[Suspect],
) -> list[Suspect]:
    """The suspects that are named: what has no price only where the run is later than predicted, or nobody knows."""
    if verdict is RunVerdict.IMPOSSIBLE:
        return []
    is_late = True
    if known.predicted is not None and known.interval is not None and seen is not None:
        is_late = seen.step_seconds > (1 + known.interval.rivals) * known.predicted.step_seconds
    slow = () if verdict is RunVerdict.FASTER else found
    named = [*slow, *(each for each in of_log if each.seconds is not None or is_late)]
    return sorted(named, key=lambda each: -(each.seconds or 0.0))


def _unexplained(
    verdict: RunVerdict, known: Understood, seen: MeasuredSteps | None, suspects: Sequence[Suspect]
) -> float | None:
    if verdict is not RunVerdict.SLOWER or seen is None or known.predicted is None:
        return None
    # Slow single steps and a slow part are no part of the middle of the steady ones.
    inside = sum(each.seconds or 0.0 for each in suspects if each.is_measured and each.is_inside_step)
    return max(0.0, seen.step_seconds - known.predicted.step_seconds - inside)


def _advice(case: Case, found: Sequence[Suspect], parts: ExperimentParts) -> tuple[Advice, ...]:
    setup = case.configuration.setup
    advice = []
    for each in proposals(case, found, parts):
        # Flags of the trainer that the plan mends are new in the command, though no knob of the plan says them.
        mended = [flag for flag, _ in case.understood.wrong_flags if flag.remedy in each.what]
        lacking = [name for flag in mended for name in flag.flags]
        advice.append(Advice(each, tuple(difference_in_words(setup, each.configuration.setup, parts, lacking))))
    return tuple(advice)


def _in_words_of_trainer(case: Case, suspect: Suspect, parts: ExperimentParts) -> Suspect:
    """The suspect with flags to paste for a remedy, where its change is one of the plan."""
    changed = case.understood.changed(suspect.change.columns) if suspect.change and suspect.change.columns else None
    if changed is None:
        return suspect
    words = difference_in_words(case.configuration.setup, changed.setup, parts)
    return replace(suspect, remedy=in_short(words)) if words else suspect


def in_short(words: Sequence[str]) -> str:
    """Flags to paste, and those to leave out, in one text."""
    gone = [each.removeprefix(WITHOUT) for each in words if each.startswith(WITHOUT)]
    given = " ".join(each for each in words if not each.startswith(WITHOUT))
    return "; ".join(filter(None, (given, f"without {' '.join(gone)}" if gone else "")))
