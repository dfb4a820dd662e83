"""What the files of a run say of one setting: where it stands, whether it is on, or that a whole command lacks it."""

from __future__ import annotations

from typing import NamedTuple

from diagnose.runs import Fact, LogLine, SaidBy, UserRun

OFF = frozenset(("false", "no", "0", "none", "null", "off", ""))
ON = frozenset(("true", "yes", "1", "on"))
MEGATRON = ("megatron-lm", "megatron-core", "megatron-deepspeed")
IN_EVERY_COMMAND = ("num_layers", "tensor_model_parallel_size", "micro_batch_size")
"""Flags of Megatron's command: one that has them is whole, so that what it lacks is off."""


class FileEvidence(NamedTuple):
    """A sentence about a file of the run, and the line that shows it."""

    says: str
    at: LogLine | None


def setting_of(run: UserRun, *names: str) -> tuple[str, Fact] | None:
    """The first of these settings that the run has, by its whole name or its last part."""
    for name in names:
        if name in run.settings:
            return name, run.settings[name]
        found = next((key for key in run.settings if key.rpartition(".")[2] == name), None)
        if found is not None:
            return found, run.settings[found]
    return None


def is_on(run: UserRun, *names: str) -> FileEvidence | None:
    """The line that turns one of these settings on, if any does."""
    found = setting_of(run, *names)
    return _says(*found) if found and found[1].value.strip().lower() in ON else None


def is_off(run: UserRun, *names: str) -> FileEvidence | None:
    """The line that turns these settings off, or the whole command of flags that lacks them; None where one is on."""
    found = setting_of(run, *names)
    if found is not None:
        return _says(*found) if found[1].value.strip().lower() in OFF else None
    return _lacks(run, names[0])


def column_says(run: UserRun, column: str, *names: str) -> FileEvidence | None:
    """The line that a column of the run's row is from; else that the command lacks the setting of this name."""
    fact = run.columns.get(column)
    # What a trainer does by itself, where its files say nothing else, is known; other assumptions are no evidence.
    if fact is not None and (fact.said_by is not SaidBy.ASSUMED or "default" in fact.note):
        return _says(column, fact)
    return is_off(run, *names) if names else None


def _says(name: str, fact: Fact) -> FileEvidence:
    note = f" ({fact.note})" if fact.note else ""
    return FileEvidence(f"{name} = {fact.value}{note}", fact.at)


def _lacks(run: UserRun, name: str) -> FileEvidence | None:
    if run.trainer is None or run.trainer.value not in MEGATRON:
        return None
    flags = [run.settings[each] for each in IN_EVERY_COMMAND if each in run.settings]
    if not flags or any(fact.said_by is not SaidBy.FLAG for fact in flags):
        return None
    return FileEvidence(f"the command has no --{name.replace('_', '-')}", flags[0].at)
