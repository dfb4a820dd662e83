"""Files of settings that build on themselves by their `defaults`, which Hydra would follow for ever."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeAlias

import yaml

from conf.errors import ConfigError
from conf.folders import groups, options_of, path_of, shown_file
from conf.overrides import Overrides

Chosen: TypeAlias = tuple[str, str]
"""A group, and an option of it."""


def circle_of(overrides: Overrides) -> ConfigError | None:
    """The error that names files that build on each other in a circle, chosen ones first; None if none do."""
    own = [(option.group, option.name) for group in groups() for option in options_of(group) if option.is_own]
    for first in (*((each.key, each.value or "") for each in overrides), *own):
        if circle := _circle_from((first,)):
            return _builds_on_itself(circle)
    return None


def _circle_from(path: tuple[Chosen, ...]) -> tuple[Chosen, ...]:
    """The files from the one that comes twice to where it comes again; empty where none does."""
    for following in _defaults_of(*path[-1]):
        if following in path:
            return path[path.index(following) :]
        if circle := _circle_from((*path, following)):
            return circle
    return ()


def _defaults_of(group: str, name: str) -> Iterator[Chosen]:
    """The files on which one builds, as Hydra reads its `defaults`."""
    path = path_of(group, name)
    if path is None:
        return
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    stated = content.get("defaults") if isinstance(content, dict) else None
    for entry in stated if isinstance(stated, list) else ():
        if isinstance(entry, str) and entry != "_self_":
            of, _, option = entry.removesuffix(".yaml").rpartition("/")
            yield of.strip("/") or group, option
        elif isinstance(entry, dict):
            for key, option in entry.items():
                yield re.sub(r"^(override|optional)\s+|@.*", "", str(key)).strip("/ "), str(option)


def _builds_on_itself(circle: tuple[Chosen, ...]) -> ConfigError:
    group, name = circle[0]
    if len(circle) == 1:
        problem = f"builds on itself: {shown_file(group, name)} has its own name among its `defaults`"
        return ConfigError(group, name, problem, f"Give it another name, such as my-{name}.yaml.")
    files = " on ".join(shown_file(*each) for each in (*circle, circle[0]))
    return ConfigError(group, name, f"builds on itself: {files}", "Take one of them out of the `defaults` of another.")
