"""How trials have ended, in words, and what runs each kind again."""

from __future__ import annotations

from collections.abc import Sequence

from cli.output.next_command import next_command
from cli.output.progress import has_failed
from conf.units import count_of
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from train_core.measurement import Outcome

NAMED = {Outcome.OUT_OF_MEMORY: "out of memory", Outcome.CANCELLED: "cancelled"}
"""Ends after which a trial runs again only where a person names it: it would need as much, or was ended for good."""


def ends_in_words(sweep: Sweep, readings: Sequence[TrialReading]) -> str:
    """`2 trials measured, 1 failed (--retry-failed runs it again)`."""
    completed = [each for each in readings if each.outcome is Outcome.COMPLETED]
    stages = sum(bool(each.trial.stage) for each in completed)
    failed = num_run_again(readings)
    ends = [f"{count_of(len(completed) - stages, 'trial')} measured"]
    ends += [f"{count_of(stages, 'stage')} completed"] if stages else []
    ends += [f"{failed} failed (--retry-failed runs {_them(failed)} again)"] if failed else []
    for outcome, words in NAMED.items():
        if number := sum(each.outcome is outcome for each in readings):
            again = next_command("retry", sweep, "--trial", "ID")
            ends.append(f"{number} {words} (only `{again}` runs {_them(number)} again)")
    return ", ".join(ends)


def num_run_again(readings: Sequence[TrialReading]) -> int:
    """Trials that failed, and that `--retry-failed` runs again: those that the last command asked for."""
    return sum(each.trial.selected and has_failed(each) and each.outcome not in NAMED for each in readings)


def _them(number: int) -> str:
    return "it" if number == 1 else "them"
