"""Secrets of the configuration: used, but neither kept nor shown.

They are the user names and passwords inside addresses, such as `https://user:password@host`, and the values of
`slurm.environment`, of which the names are shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

HIDDEN = "***"

USER_INFO = re.compile(r"(?<=://)[^/?#\s]*@")
"""The part of an address between its scheme and its host."""

OF_ENVIRONMENT = re.compile(r"(\+{0,2}slurm\.environment(?:\.[^=\s]+)?)=(.*)", re.DOTALL)
"""An override of one variable of jobs, or of all of them."""

PAIR = re.compile(r"([\w\"']+)\s*:\s*(\"[^\"]*\"|'[^']*'|[^,{}]*)")
SHOWN_PAIR = rf"\1: {HIDDEN}"


def hide_credentials(text: str) -> str:
    """The text with `***` in place of the user and password of each address in it."""
    return USER_INFO.sub(f"{HIDDEN}@", text)


def shown_value(key: str, value: object) -> object:
    """The value as messages may show it: `***` of a variable of jobs."""
    return HIDDEN if f"{key}.".startswith("slurm.environment.") else value


def has_hidden_variables(override: str) -> bool:
    """True if it gives variables of jobs what stands for values that are hidden."""
    return OF_ENVIRONMENT.fullmatch(override) is not None and HIDDEN in override


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
        return override
    key, value = match.groups()
    is_mapping = value.lstrip().startswith("{")
    return f"{key}={PAIR.sub(SHOWN_PAIR, value) if is_mapping else HIDDEN}"


def shown_tree(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A composed configuration as it may be shown: values of variables are hidden."""
    slurm = tree.get("slurm")
    if not isinstance(slurm, dict) or not slurm.get("environment"):
        return dict(tree)
    return {**tree, "slurm": {**slurm, "environment": dict.fromkeys(slurm["environment"], HIDDEN)}}
