"""Files that build on others by `defaults`: circles, which Hydra would follow for ever, and what it cannot follow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from conf.compose.complaints import wrong_of_hydra
from conf.compose.kinds import kinds_of
from conf.errors import ConfigError
from conf.folders import groups, options_of, path_of, shown_file
from conf.nearest import nearest
from conf.overrides import Overrides
from conf.yaml_text import file_text, yaml_content

MOST_OF_HYDRA = 300
"""Characters of a message of Hydra's that are passed on where no better one is known."""

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
    content = yaml_content(file_text(path), path)
    stated = content.get("defaults") if isinstance(content, dict) else None
    for entry in stated if isinstance(stated, list) else ():
        if isinstance(entry, str) and entry != "_self_":
            of, _, option = entry.removesuffix(".yaml").rpartition("/")
            yield of.strip("/") or group, option
        elif isinstance(entry, dict):
            for key, option in entry.items():
                yield re.sub(r"^(override|optional)\s+|@.*", "", str(key)).strip("/ "), str(option)


def require_sound(group: str, file: str, content: Mapping[str, Any]) -> None:
    """Refuse what Hydra cannot follow in a file, or would follow to no effect, and would not say of which file it is.

    Raises ConfigError, which names the file, its entry, and how that is written.
    """
    defaults, of_hydra = content.get("defaults", []), content.get("hydra") or {}
    if not isinstance(defaults, list):
        remedy = "Write `defaults: [default, _self_]`, or each entry on a line that begins with a dash."
        raise ConfigError("defaults", defaults, f"is not a list in {file}", remedy)
    settings = [(f"hydra.{key}", value) for key, value in of_hydra.items()] if isinstance(of_hydra, dict) else []
    for key, option in (*settings, *(pair for entry in defaults if isinstance(entry, dict) for pair in entry.items())):
        of = re.sub(r"^(override|optional)\s+", "", str(key)).strip("/ ")
        if wrong := wrong_of_hydra(of, option, f", in {file}"):
            raise wrong
        if group == "sweep" and of in groups() and key != f"override /{of}":
            problem = f"does not override the choice of a {of}, in {file}"
            raise ConfigError("defaults", f"{key}: {option}", problem, f"Write `- override /{of}: {option}`.")


def wrong_defaults(text: str) -> ConfigError | None:
    """The error in the `defaults` of a file, by what Hydra says of it; None where it speaks of something else."""
    if (of := re.search(r"\bIn '?([\w.-]+)/([\w.-]+?)'?: (?!Could not find)(.*)", text)) is None:
        return None
    file, complaint = shown_file(of[1], of[2]), of[3]
    if "Cannot merge DictConfig with ListConfig" in complaint and (path := path_of(of[1], of[2])):
        stated = yaml_content(file_text(path), path)
        lists = [key for key, value in stated.items() if isinstance(value, list) and dict in kinds_of(f"{of[1]}.{key}")]
        return ConfigError(
            f"{of[1]}.{', '.join(lists)}",
            file,
            "gives a list where names with values are needed",
            "Write lines of the form `NAME: VALUE`.",
        )
    if (key := re.match(r"Could not override '([^'@:]+)", complaint)) is None:
        return ConfigError("defaults", file, complaint[:MOST_OF_HYDRA], "Correct them.")
    group = key[1].rpartition("/")[2]
    remedy = f"Give it in a sweep's file, or as {group}=NAME." if group in groups() else nearest(group, groups())
    return ConfigError("defaults", f"override {key[1]}", f"is not a group that {file} can override", remedy)


def _builds_on_itself(circle: tuple[Chosen, ...]) -> ConfigError:
    group, name = circle[0]
    if len(circle) == 1:
        problem = f"builds on itself: {shown_file(group, name)} has its own name among its `defaults`"
        return ConfigError(group, name, problem, f"Give it another name, such as my-{name}.yaml.")
    files = " on ".join(shown_file(*each) for each in (*circle, circle[0]))
    return ConfigError(group, name, f"builds on itself: {files}", "Take one of them out of the `defaults` of another.")
