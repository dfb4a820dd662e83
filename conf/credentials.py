"""Secrets of the configuration: used, but neither kept nor shown.

They are the user names and passwords inside addresses, such as `https://user:password@host`; the values of
`slurm.environment` and `trainer.environment`, of which the names are shown; and what a program gets under a name such
as `--api-key`. A value for a program has a stand-in, by which an experiment still differs from one with another value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

from conf.errors import UsageError

HIDDEN = "***"
STAND_IN = re.compile(re.escape(HIDDEN) + r"[0-9a-f]{6}")
"""24 bits of a digest: enough to tell two values apart, and too few to find one by."""

USER_INFO = re.compile(r"(?<=://)[^/?#\s]*@")
"""The part of an address between its scheme and its host."""

KIND = r"(?:api|access|auth|bearer|hf|hub|private|refresh|secret|wandb)"
SECRET = rf"(?:[\w.-]*[_.-])?(?:{KIND}[_-]?(?:key|token)|passw(?:or)?d|secret|credentials?)|token"
"""A name of what is secret. `pad_token`, `tokenizer` and `max_tokens` are the business of every trainer."""

OF_ENVIRONMENT = re.compile(
    rf"(\+{{0,2}}(?:(?:slurm|trainer)\.environment(?:\.[^=\s]+)?|trainer\.(?:flags|files)\.(?:{SECRET})))=(.*)",
    re.DOTALL | re.IGNORECASE,
)
"""An override of one variable of jobs, or of all of them, or of a secret flag."""

PAIR = re.compile(r"([\w\"']+)\s*:\s*(\"[^\"]*\"|'[^']*'|[^,{}]*)")
SHOWN_PAIR = rf"\1: {HIDDEN}"

OF_COMMAND = re.compile(r"\+{0,2}trainer\.(?:command|prefix|flags|files)=.*", re.DOTALL)
SECRET_WORD = re.compile(
    rf"""((?<![\w-])["']?-{{0,2}}(?:{SECRET})["']?(?:\s*[=:,]\s*|\s+))("[^"]*"|'[^'-][^']*'|[^\s,"'}}\]-][^\s,"'}}\]]*)""",
    re.IGNORECASE,
)
"""Such a name, and the word that follows it in a command."""

_values: dict[str, str] = {}
"""The values that this process has met, by what stands for them."""


def hide_credentials(text: str) -> str:
    """The text with `***` in place of the user and password of each address in it."""
    return USER_INFO.sub(f"{HIDDEN}@", text)


def shown_value(key: str, value: object) -> object:
    """The value as messages may show it: `***` of a variable of jobs, and in a command of what is secret."""
    if OF_ENVIRONMENT.fullmatch(f"{key}="):
        return HIDDEN
    return hide_variables(f"{key}={value}").partition("=")[2] if isinstance(value, str) else value


def has_hidden_variables(override: str) -> bool:
    """True if it gives variables of jobs what stands for values that are hidden."""
    may_hide = OF_ENVIRONMENT.fullmatch(override) or OF_COMMAND.fullmatch(override)
    return may_hide is not None and HIDDEN in override


def without_credentials(address: str) -> str:
    """The address as anybody may see it."""
    return USER_INFO.sub("", address)


def overrides_for_records(overrides: Iterable[str]) -> tuple[str, ...]:
    """The overrides as records keep them: without passwords in addresses, and values of variables."""
    return tuple(without_credentials(hide_variables(text)) for text in overrides)


def hide_variables(override: str) -> str:
    """The override with `***` in place of what it gives variables of jobs; any other is returned as it is."""
    match = OF_ENVIRONMENT.fullmatch(override)
    if match is None:
        return SECRET_WORD.sub(rf"\1{HIDDEN}", override) if OF_COMMAND.fullmatch(override) else override
    key, value = match.groups()
    is_mapping = value.lstrip().startswith("{")
    return f"{key}={PAIR.sub(SHOWN_PAIR, value) if is_mapping else HIDDEN}"


def shown_tree(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A composed configuration as it may be shown: values of variables are hidden."""
    slurm = tree.get("slurm")
    if not isinstance(slurm, dict) or not slurm.get("environment"):
        return dict(tree)
    return {**tree, "slurm": {**slurm, "environment": dict.fromkeys(slurm["environment"], HIDDEN)}}


def stand_in_for(text: str) -> str:
    """What stands for a value in records; what does so already stays."""
    if STAND_IN.fullmatch(text):
        return text
    hidden = HIDDEN + sha256(text.encode()).hexdigest()[:6]
    _values[hidden] = text
    return hidden


def values_behind(text: str) -> dict[str, str]:
    """The values of all stand-ins in a text, as far as this process knows them."""
    return {each: _values[each] for each in STAND_IN.findall(text) if each in _values}


def remember(values: Mapping[str, str]) -> None:
    """Take values up that a file has kept."""
    _values.update(values)


def revealed(text: str, values: Mapping[str, str], kept_in: object) -> str:
    """The text with the values in place of what stands for them.

    Raises:
        UsageError: one is not there.
    """
    known = _values | dict(values)
    if lost := [each for each in STAND_IN.findall(text) if each not in known]:
        problem = f"{kept_in} no longer holds the hidden value {lost[0]} of the trainer's command"
        raise UsageError(problem, "Give the command of the sweep again.")
    return STAND_IN.sub(lambda match: known[match[0]], text)
