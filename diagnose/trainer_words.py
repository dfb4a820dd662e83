"""The difference between two plans in the words of the trainer's users: flags to paste, and entries of its files."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from conf.errors import ConfigError
from conf.plan.experiment import ExperimentParts
from conf.plan.setup import Setup
from conf.plan.trainer_call import JOB_NAMES, Call, call_of, flat

WITHOUT = "without "


class PaperRun(Setup, ExperimentParts):
    """An experiment that no trainer has refused: the run has run, whatever the file of its trainer can pass on."""


def difference_in_words(setup: Setup, other: Setup, parts: ExperimentParts, lacking: Collection[str] = ()) -> list[str]:
    """What to write in place of what; empty where the trainer's file has no words for it.

    Flags that are new or have another value stand as they are given, those that go as `without --flag`; an entry of a
    file is `file: key = value`.

    Args:
        lacking: flags that the trainer's file would give the run, and that it has not.
    """
    try:
        before, after = (_call_of(each, parts) for each in (setup, other))
    except ConfigError:
        return []
    old, new = _flags_of(before.words), _flags_of(after.words)
    old = {flag: values for flag, values in old.items() if flag not in lacking}
    lines = [" ".join((flag, *map(shlex.quote, values))) for flag, values in new.items() if old.get(flag) != values]
    lines += [f"{WITHOUT}{flag}" for flag in old if flag not in new]
    lines += [f"{name}={value}" for name, value in after.environment.items() if before.environment.get(name) != value]
    for name, content in after.files.items():
        lines += [f"{name}: {entry}" for entry in _entries(before.files.get(name, "{}"), content)]
    return lines


def _call_of(setup: Setup, parts: ExperimentParts) -> Call:
    values: dict[str, Any] = {name: getattr(parts, name) for name in ExperimentParts.model_fields}
    values |= {name: getattr(setup, name) for name in Setup.model_fields}
    return call_of(parts.trainer, PaperRun(**values), dict.fromkeys(JOB_NAMES, "-"))


def _flags_of(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Each flag with its values. A negative number begins like a flag and is a value."""
    found: dict[str, tuple[str, ...]] = {}
    flag = ""
    for word in words:
        if word.startswith("--"):
            flag = word
            found[flag] = ()
        elif flag:
            found[flag] += (word,)
    return found


def _entries(before: str, after: str) -> Iterator[str]:
    """The entries of a JSON file that are new or have another value, by their dotted names."""
    old, new = (_flat_json(content) for content in (before, after))
    yield from (f"{name} = {json.dumps(value)}" for name, value in new.items() if old.get(name) != value)
    yield from (f"{WITHOUT}{name}" for name in old if name not in new)


def _flat_json(content: str) -> Mapping[str, Any]:
    try:
        tree = json.loads(content)
    except ValueError:
        return {}
    return dict(flat(tree)) if isinstance(tree, dict) else {}
