"""Values that refer to others, as `${training.learning_rate}` does, and follow them from point to point.

A composed configuration holds plain values. What a reference came to is found anew where a point changes what it
refers to, as Hydra does in each job of a multirun.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from conf.compose.secrets import with_stand_ins
from conf.errors import ConfigError

KeyPath: TypeAlias = tuple[Any, ...]
ALONE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")
POINTS = {"axes", "zip", "points", "baseline"}
"""Parts of a sweep whose values may be computed from other keys."""


class FollowingTree(dict[str, Any]):
    """A composed configuration, some of whose values follow others.

    Attributes:
        references: the texts of these values, by where they stand.
    """

    references: Mapping[KeyPath, str]

    def __init__(self, tree: Mapping[str, Any], references: Mapping[KeyPath, str]) -> None:
        super().__init__(tree)
        self.references = references

    def __reduce__(self) -> tuple[Any, ...]:
        return FollowingTree, (dict(self), self.references)

    def follows(self, key: str) -> bool:
        """True if the value of a dotted key follows another."""
        return any(_dotted(path) == key for path in self.references)

    def after(self, changed: Mapping[str, Any], keys: Iterable[str]) -> FollowingTree:
        """The changed copy of this tree, in which whatever follows the changed keys has followed them."""
        stated = {*keys}
        followers = self._followers(stated)
        if followers:
            changed = with_stand_ins(dict(_resolved(changed, followers)))
        # A stated value follows nothing any more; a group that was stated whole may hold what it held before.
        kept = {
            path: text
            for path, text in self.references.items()
            if not _is_stated(path, stated) or _at(changed, path) == _at(self, path)
        }
        return FollowingTree(changed, kept)

    def _followers(self, stated: set[str]) -> dict[KeyPath, str]:
        """The references to changed keys and to those that follow them; what is stated itself follows nothing."""
        found: dict[KeyPath, str] = {}
        changed = set(stated)
        while True:
            new = {
                path: text
                for path, text in self.references.items()
                if path not in found and not _is_stated(path, stated) and _mentions(text, changed)
            }
            if not new:
                return found
            found |= new
            changed |= {_dotted(path) for path in new}


def following(resolved: Any, written: Any) -> FollowingTree:
    """A configuration, from its values and the same with references as they were written.

    Raises:
        ConfigError: a value of a sweep's points refers to a key that differs between them, and would not follow it.
    """
    references = dict(_references(written, ()))
    if isinstance(sweep := resolved.get("sweep"), dict):
        varied = {key for key in _keys(sweep) if "." in key}
        for path in [path for path in references if path[0] == "sweep"]:
            text = references.pop(path)
            if path[-2] == "overrides":  # composed later, with the stand-in or the stage
                resolved = _put(resolved, path, text)
            elif POINTS & {*path} and (match := ALONE.fullmatch(text)):
                resolved = _put(resolved, path, f"={match[1]}")
            elif {*POINTS, "stages"} & {*path} and _mentions(text, varied):
                raise _frozen(path, text)
    return FollowingTree(resolved, references)


def _resolved(tree: Mapping[str, Any], references: Mapping[KeyPath, str]) -> Mapping[str, Any]:
    """The tree with what these references come to in it."""
    from omegaconf import OmegaConf  # only few configurations have references

    # Groups that no reference names would take most of the time, and there is a point for each of thousands of trials.
    named = {name for path, text in references.items() for name in (path[0], *re.findall(r"\w+", text))}
    written: Any = {group: values for group, values in tree.items() if group in named}
    for path, text in references.items():
        written = _put(written, path, text)
    config = OmegaConf.create(written)
    for path in references:
        node = _at(config, path)
        tree = _put(tree, path, OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node)
    return tree


def _frozen(path: KeyPath, text: str) -> ConfigError:
    meant = re.sub(r"\$\{([^{}]*)\}", r"\1", text)
    remedy = f"Begin it with `=`, as in `={meant}`." if POINTS & {*path} else f"Write `{re.sub('[$]', '', text)}`."
    return ConfigError(
        _dotted(path), text, "is resolved once for all trials, and refers to a key that they vary", remedy
    )


def _references(written: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    entries = written.items() if isinstance(written, dict) else enumerate(written) if isinstance(written, list) else ()
    for key, value in entries:
        yield from _references(value, (*path, key))
    if isinstance(written, str) and "${" in written:
        yield path, written


def _keys(content: Any) -> Iterator[str]:
    for value in content.values() if isinstance(content, dict) else content if isinstance(content, list) else ():
        yield from _keys(value)
    if isinstance(content, dict):
        yield from map(str, content)


def _at(tree: Any, path: KeyPath) -> Any:
    """What stands at the path; None where it ends before."""
    for part in path:
        try:
            tree = tree[part]
        except (LookupError, TypeError):
            return None
    return tree


def _put(tree: Any, path: KeyPath, value: Any) -> Any:
    """A copy with the value at the path."""
    if not path:
        return value
    copy = list(tree) if isinstance(tree, list) else dict(tree)
    copy[path[0]] = _put(tree[path[0]], path[1:], value)
    return copy


def _dotted(path: KeyPath) -> str:
    return ".".join(map(str, path))


def _is_stated(path: KeyPath, stated: set[str]) -> bool:
    return any(f"{_dotted(path)}.".startswith(f"{key}.") for key in stated)


def _mentions(text: str, keys: set[str]) -> bool:
    """True if a reference may be to one of the keys; a relative one names but a part of it."""
    names = [name.strip(".") for name in re.findall(r"[\w.-]+", text)]
    return any(f".{name}." in f".{key}." for name in names if name for key in keys)
