"""Changing one value of a YAML text and leaving every other character alone; a YAML library would drop the comments.

A comment line right above the value says where it comes from: `# KEY measured ...` (or `fitted`, `kept`), replaced
by the next one. What the file said before the first of them stays as a line `# KEY was ...`.
"""

from __future__ import annotations

import re
from typing import TypeAlias

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

INDENT = 2
NULL = "tag:yaml.org,2002:null"
KeyPath: TypeAlias = tuple[str | int, ...]


def with_value(text: str, path: KeyPath, value: str, origin: str = "") -> str:
    """`text` with the value at `path` replaced, or added where there is none.

    Args:
        value: as YAML.
        origin: begins with `measured`, `fitted` or `kept`; empty changes the value alone.
    """
    root = yaml.compose(text)
    assert isinstance(root, MappingNode)
    key, node, missing = _deepest(root, path)
    if not missing:
        assert key is not None
        return _replace(text, key, node, str(path[-1]), value, origin)
    if key is not None and node.tag == NULL:
        return _replace(text, key, node, "", f"{{{_in_braces(missing, value)}}}", "")
    assert isinstance(node, MappingNode), f"{path} goes through a value"
    if node.flow_style:
        return _add_in_braces(text, node, missing, value)
    return _add_below(text, node, missing, value, origin)


def _deepest(root: MappingNode, path: KeyPath) -> tuple[Node | None, Node, KeyPath]:
    """The key and node of the deepest part of the path that exists, and the part of the path that does not."""
    key: Node | None = None
    node: Node = root
    for depth, part in enumerate(path):
        child = _child(node, part)
        if child is None:
            return key, node, path[depth:]
        key, node = child
    return key, node, ()


def _child(node: Node, part: str | int) -> tuple[Node, Node] | None:
    """The key's node and the value's; an entry of a list is its own key."""
    if isinstance(node, SequenceNode) and isinstance(part, int):
        return (node.value[part], node.value[part]) if part < len(node.value) else None
    pairs = node.value if isinstance(node, MappingNode) else []
    return next(((key, value) for key, value in pairs if key.value == part), None)


def _replace(text: str, key: Node, node: Node, leaf: str, value: str, origin: str) -> str:
    start, end = node.start_mark.index, _end(text, node)
    old, rest = text[start:end].strip(), text[end:].split("\n", 1)[0]
    stands_alone = re.fullmatch(r"\s*(#.*)?", rest) is not None
    # A remark behind the old value is not about the new one, and moves into the line `KEY was ...`.
    after = text[end + len(rest) :] if stands_alone and origin else text[end:]
    blank = " " if start == end else ""  # a key without a value ends with its colon
    text = text[:start] + blank + value + after
    return (
        _update_comments(text, key.start_mark.index, leaf, old, rest if stands_alone else "", origin)
        if origin
        else text
    )


def _update_comments(text: str, position: int, leaf: str, old: str, remark: str, origin: str) -> str:
    """Bring the comment lines above the line at `position` up to date, and return the new text."""
    start = text.rfind("\n", 0, position) + 1
    above, below = text[:start].splitlines(), text[start:]
    indent = re.match(r" *", below)
    margin = indent.group() if indent else ""
    was = f"{margin}# {leaf} was "
    comments: list[str] = []
    while above and above[-1].startswith(f"{margin}# "):
        comments.insert(0, above.pop())
    measured_before = re.compile(rf"{re.escape(margin)}# {re.escape(leaf)} (measured|fitted|kept)")
    remaining = [line for line in comments if not measured_before.match(line)]
    # The first calibration of a value keeps what people wrote: the old value, and the remark that stood behind it.
    if remaining == comments and not any(line.startswith(was) for line in comments):
        words = remark.strip().removeprefix("#").strip()
        remaining.append(f"{was}{old or 'null'}{': ' + words if words else ''}")
    return "\n".join([*above, *remaining, f"{margin}# {leaf} {origin}", below])


def _add_below(text: str, node: MappingNode, path: KeyPath, value: str, origin: str) -> str:
    """New lines after the last of a mapping in block style."""
    last = node.value[-1][1] if node.value else node
    end = _end(text, last)
    # What stands behind the last value on its line, such as a remark, stays with it.
    end = end if text[end - 1] == "\n" else (text.find("\n", end) + 1 or len(text))
    column = node.value[0][0].start_mark.column if node.value else 0
    lines = [f"{' ' * (column + INDENT * depth)}{part}:" for depth, part in enumerate(path)]
    margin = " " * (column + INDENT * (len(path) - 1))
    lines[-1] += f" {value}"
    lines[-1:] = [f"{margin}# {path[-1]} {origin}", lines[-1]] if origin else lines[-1:]
    newline = "" if text[:end].endswith("\n") else "\n"
    return text[:end] + newline + "\n".join(lines) + "\n" + text[end:]


def _add_in_braces(text: str, node: MappingNode, path: KeyPath, value: str) -> str:
    end = node.end_mark.index - 1  # in front of the closing brace
    return text[:end].rstrip() + (", " if node.value else "") + _in_braces(path, value) + text[end:]


def _in_braces(path: KeyPath, value: str) -> str:
    entry = f"{path[-1]}: {value}"
    for part in reversed(path[:-1]):
        entry = f"{part}: {{{entry}}}"
    return entry


def _end(text: str, node: Node) -> int:
    """The end of the node's own characters: a block mapping's mark lies behind the comments that follow it."""
    while isinstance(node, MappingNode | SequenceNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    end = node.end_mark.index
    if isinstance(node, ScalarNode) and node.style in ("|", ">"):  # ends behind its newline
        return len(text[:end].rstrip())
    return end
