"""Errors that are written for the person at the keyboard.

- `ConfigError`: a value is wrong; carries the dotted key, the value and the remedy.
  - `InfeasiblePlan`: every value is right alone, but the combination cannot exist. A sweep turns it into a row.
- `UsageError`: what was asked for cannot be done here (no `sbatch`, folder in use); carries the remedy.
- `TrainingError`: what was asked for was done, and went wrong on the way (weights diverged); carries what to do.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # every rank of every job waits for this module, and few of them read YAML
    from pathlib import Path

    import yaml


def not_yaml(key: str, path: Path | str, error: yaml.YAMLError) -> ConfigError:
    """The complaint of the parser, in one line.

    Args:
        key: what the file was chosen as.
    """
    mark = getattr(error, "problem_mark", None)
    where = f"{path}, line {mark.line + 1}" if mark else str(path)
    return ConfigError(key, where, f"is not valid YAML: {_problem(error)}", "Correct the file.")


def _problem(error: yaml.YAMLError) -> str:
    if (character := getattr(error, "character", None)) is not None:
        return f"the character U+{int(character):04X} is not allowed"
    problem: str = getattr(error, "problem", None) or " ".join(str(error).split())
    return IN_PLAIN_WORDS.get(problem, problem)


IN_PLAIN_WORDS = {
    "but found another document": "a second document begins there, and a file holds one",
    **dict.fromkeys(
        ("expected ',' or '}', but got '{'", "expected ',' or ']', but got '{'"),
        "a text with braces, such as ${KEY}, needs quotes in a list or a mapping on one line",
    ),
    "found character '\\t' that cannot start any token": "the line has a tab, and YAML takes spaces",
}
"""What PyYAML says of what people do most often, said otherwise."""


EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
"""Exit codes of every command and rank: the work went wrong, the request was wrong, somebody pressed Ctrl-C (128 plus
the number of SIGINT, as shells report it)."""


FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)
"""The numbers of the system's errors for a disk, or a quota on it, that is full."""


class TrisweepError(Exception):
    """Base of every error that the command line prints as one message, with exit code 2.

    Not a ValueError: pydantic would swallow those into a ValidationError of its own.

    Attributes:
        blamed: set where all ranks raise it together, to the rank at fault or to None. A rank that raises an error
            without it is itself at fault.
    """

    blamed: int | None


MOST_CHARACTERS = 200
"""Of a longer value only the beginning is shown: the message stays readable, and its remedy in sight."""


class ConfigError(TrisweepError):
    """A configuration value is wrong. Message: `key = value: what is wrong. What to do.`"""

    def __init__(self, key: str, value: object, problem: str, remedy: str) -> None:
        self.key, self.value, self.problem, self.remedy = key, value, problem, remedy
        text = repr(list(value) if isinstance(value, tuple) else value)
        if len(text) > MOST_CHARACTERS:
            text = f"{text[:MOST_CHARACTERS]}… ({len(text):,} characters)"
        super().__init__(f"{key} = {text}: {problem}. {remedy}")

    # By default, pickle calls an exception with its message alone, which would fail on the way back from a process.
    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, object, str, str]]:
        return type(self), (self.key, self.value, self.problem, self.remedy)


def all_at_once(errors: Sequence[ConfigError]) -> ConfigError:
    """One error that says what all of them say, a line each; its fields are those of the first."""
    first, *others = errors
    return ConfigError(first.key, first.value, first.problem, "\n".join((first.remedy, *map(str, others))))


class InfeasiblePlan(ConfigError):
    """The values are legal one by one, but no device layout satisfies them together."""


class UsageError(TrisweepError):
    """The request is well formed but cannot be carried out here."""

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem, self.remedy = problem, remedy
        super().__init__(f"{problem}. {remedy}")

    def __reduce__(self) -> tuple[Callable[..., UsageError], tuple[object, ...]]:
        return type(self), (self.problem, self.remedy)


class TrainingError(UsageError):
    """A training has gone wrong while it ran, such as by diverging.

    Attributes:
        blamed: the rank at fault; None unless it is one.
        suspects_device: the remedy is another device or node, and no other setting.
        node: on which the blamed rank runs; empty where that is not known.
    """

    def __init__(
        self, problem: str, remedy: str, blamed: int | None = None, *, suspects_device: bool = False, node: str = ""
    ) -> None:
        super().__init__(problem, remedy)
        self.blamed, self.suspects_device, self.node = blamed, suspects_device, node

    def __reduce__(self) -> tuple[Callable[..., TrainingError], tuple[str, str, int | None]]:
        # The arguments that pickle passes on are positional, and these two may only be given by name.
        rebuild = partial(type(self), suspects_device=self.suspects_device, node=self.node)
        return rebuild, (self.problem, self.remedy, self.blamed)
