"""YAML as people write it: files of any editor, and plain values as version 1.2 reads them.

PyYAML reads those of version 1.1, by which `12:00:00` is 43200, `0123` is 83 and `no` is false.
Source: https://yaml.org/spec/1.2.2/, section 10.3, the core schema.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from conf.errors import ConfigError, not_yaml

Adapt: TypeAlias = Callable[[yaml.Node], None]
"""It may change the tags of a file's nodes before values are made of them."""
TAG = "tag:yaml.org,2002:"
TEXT = f"{TAG}str"
KINDS = {
    "null": r"(?:~|null|Null|NULL|)",
    "bool": r"(?:true|True|TRUE|false|False|FALSE)",
    # A whole number that begins with a zero is a name or a code, whose zero counts.
    "int": r"(?:[-+]?(?:0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+)",
    "float": r"(?:[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))",
    "merge": "<<",
}
"""Patterns of values that are not text, by the name of their tag."""


def _reader(base: Any) -> Any:
    reader: Any = type("Reader", (base,), {"yaml_implicit_resolvers": {}})
    for kind, pattern in KINDS.items():
        reader.add_implicit_resolver(TAG + kind, re.compile(f"{pattern}$"), None)
    reader.add_constructor(f"{TAG}int", lambda loader, node: int(loader.construct_scalar(node), 0))
    return reader


PLAIN_READER = _reader(yaml.SafeLoader)
READER = _reader(getattr(yaml, "CSafeLoader", yaml.SafeLoader))
"""libyaml's, where PyYAML has it: it takes a tenth of the time, and says less of what is wrong."""


def file_text(path: Path, key: str = "conf", errors: str = "strict") -> str:
    """The text of a file in UTF-8 or, with the mark of an editor at its beginning, UTF-16.

    Args:
        errors: as in `bytes.decode`.

    Raises:
        ConfigError: it is neither; `key` is what the file was chosen as.
    """
    raw = path.read_bytes()
    is_wide = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return raw.decode("utf-16" if is_wide else "utf-8-sig", errors)
    except UnicodeDecodeError:
        raise ConfigError(key, str(path), "is not a text in UTF-8", "Save it as UTF-8.") from None


def yaml_content(text: str, path: Path | str, key: str = "conf", adapt: Adapt | None = None) -> Any:
    """The content of a file's text; None of an empty one.

    Raises ConfigError where it is not valid YAML, or gives a key twice.
    """
    try:
        try:
            return _content(READER(text), adapt)
        except yaml.YAMLError:
            return _content(PLAIN_READER(text), adapt)  # which says what is wrong, and where
    except yaml.YAMLError as error:
        raise not_yaml(key, path, error) from None


def _content(reader: Any, adapt: Adapt | None) -> Any:
    root = reader.get_single_node()
    if root is None:
        return None
    for node in _nodes(root, set()):
        if isinstance(node, yaml.MappingNode):
            _require_once(node)
    if adapt is not None:
        adapt(root)
    return reader.construct_document(root)


def _nodes(node: yaml.Node, seen: set[int]) -> Iterator[yaml.Node]:
    if id(node) in seen:  # an alias
        return
    seen.add(id(node))
    yield node
    for inner in node.value if isinstance(node, yaml.CollectionNode) else ():
        for each in inner if isinstance(inner, tuple) else (inner,):
            yield from _nodes(each, seen)


def _require_once(node: yaml.MappingNode) -> None:
    known: set[str] = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode) and key.value in known and key.tag != f"{TAG}merge":
            raise yaml.MarkedYAMLError(problem=f"the key {key.value} is given twice", problem_mark=key.start_mark)
        known.add(str(key.value))
