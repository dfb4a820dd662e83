"""Takes out of a text what would tell strangers who and where somebody is: names, paths and addresses."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Mapping
from typing import Any

FOLDERS = re.compile(r"(?<![\w.:/])/(?:[^\s/'\"<>:,;()\[\]]+/)+")
"""The folders of an absolute path. What stands behind the last slash is kept: without it no traceback helps."""

ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b(?!\.\d)")
SHORTEST_NAME = 2
"""A shorter name of a user or host would be found inside of other words."""


def anonymous(value: Any) -> Any:
    """The same text, or the same value with every text in it, without names, paths and addresses."""
    if isinstance(value, str):
        return _without_names(ADDRESS.sub("[address]", FOLDERS.sub(".../", value)))
    if isinstance(value, Mapping):
        return {name: anonymous(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [anonymous(inner) for inner in value]
    return value


def _without_names(text: str) -> str:
    for name, stands_in in ((socket.getfqdn(), "[host]"), (socket.gethostname(), "[host]"), (_user(), "[user]")):
        if len(name) >= SHORTEST_NAME and name not in ("localhost", "root"):
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", stands_in, text)
    return text


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may run under a number that has no name
        return ""
