"""A composed configuration as plain values: what stands at a dotted key, and the same with other values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conf.compose.references import FollowingTree
from conf.errors import ConfigError
from conf.nearest import nearest
from conf.types.schema import Value

Tree = dict[str, Any]
PARAMS = "trainer.params."
"""The beginning of keys that exist because a point sets them: values of a program's own."""


def with_values(tree: Tree, values: Mapping[str, Any]) -> Tree:
    """A copy of `tree` in which every dotted key of `values` has its value; it shares with `tree` what is the same.

    Raises ConfigError where the configuration does not have a key.
    """
    changed = dict(tree)
    for dotted, value in values.items():
        *parents, leaf = path_in(changed, dotted) or dotted.split(".")
        node: Any = changed
        is_own = dotted.startswith(PARAMS)
        for parent in parents:
            inner = node.get(parent, {} if is_own else None)
            if not isinstance(inner, dict):
                raise _unknown_key(dotted, value, tree)
            node[parent] = node = dict(inner)  # copy the path to the leaf; all other branches are shared
        if leaf not in node and not is_own:
            raise _unknown_key(dotted, value, tree)
        node[leaf] = value
    return tree.after(changed, values) if isinstance(tree, FollowingTree) else changed


def part_at(tree: Tree, dotted: str) -> Any:
    """The part of the tree at a dotted key, which may be a whole group; None if there is nothing."""
    node: Any = tree
    path = path_in(tree, dotted)
    for key in path or ():
        node = node[key]
    return node if path else None


def path_in(tree: Mapping[str, Any], dotted: str) -> tuple[str, ...] | None:
    """The keys on the way to a dotted one, None if it is none; each may have dots itself, as the name of a file has."""
    if dotted in tree:
        return (dotted,)
    parts = dotted.split(".")
    for count in range(1, len(parts)):
        inner = tree.get(head := ".".join(parts[:count]))
        if isinstance(inner, Mapping) and (rest := path_in(inner, ".".join(parts[count:]))):
            return (head, *rest)
    return None


def value_at(tree: Tree, dotted: str) -> Value:
    """The plain value at a dotted key; None if there is none."""
    node = part_at(tree, dotted)
    return None if isinstance(node, dict | list) else node


def value_after(tree: Tree, values: Mapping[str, Value], dotted: str) -> Value:
    """The plain value at a dotted key once others have changed, which it may follow."""
    if dotted in values:
        return values[dotted]
    follows = isinstance(tree, FollowingTree) and tree.follows(dotted)
    return value_at(with_values(tree, values) if follows else tree, dotted)


def has_key(tree: Tree, dotted: str) -> bool:
    return path_in(tree, dotted) is not None


def nearest_key(tree: Tree, dotted: str, *others: str) -> str:
    """The key of the configuration that is most like one that it does not have.

    Args:
        others: further names that may be written there.
    """
    return nearest(dotted, [*dotted_keys(tree), *others])


def dotted_keys(tree: Mapping[str, Any], prefix: str = "") -> list[str]:
    keys: list[str] = []
    for key, value in tree.items():
        keys.append(f"{prefix}{key}")
        if isinstance(value, dict):
            keys += dotted_keys(value, f"{prefix}{key}.")
    return keys


def _unknown_key(dotted: str, value: object, tree: Tree) -> ConfigError:
    return ConfigError(dotted, value, "is not a key of the configuration", nearest(dotted, dotted_keys(tree)))
