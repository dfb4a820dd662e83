"""Rewriting a cluster file: values change one by one, everything else, comments included, stays as people wrote it.

PyYAML would drop the comments. A comment line right above a value says where it comes from:
`# KEY measured ...` (or `fitted`, `kept`), replaced by the next one. What the file said before the first of them stays
as a line `# KEY was ...`.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import yaml
from pydantic import BaseModel
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from conf.compose.load import load_cluster
from conf.errors import ConfigError, UsageError
from conf.folders import conf_dir, draft_first, options, own_folders, path_of
from conf.types.cluster_spec import ClusterSpec
from conf.yaml_text import yaml_content
from train_core.trial.atomic import write_atomically

CHECKOUT = "pyproject.toml"
"""Lies beside the packages of a checkout, and not of an installed package."""

INDENT = 2
NULL = "tag:yaml.org,2002:null"
LINKS = "links"
STAMPED = "# Calibrated "
"""Lines at the top of a file begin so, and say where and with which versions a calibration was made."""
KeyPath: TypeAlias = tuple[str | int, ...]


def cluster_path(name: str) -> Path:
    if (path := path_of("cluster", name)) is None:
        raise ConfigError("cluster", name, "is not an option of this group", "See `trisweep list cluster`.")
    return path


def path_to_write(name: str) -> Path:
    """The file that a calibration writes: in a person's own folder if there is one, else in the checkout.

    Raises:
        UsageError: there is no own folder, and the package is installed, where the next upgrade would replace it.
    """
    own = own_folders()
    with_it = (place for place in own if (place / "cluster" / f"{name}.yaml").is_file())
    if (folder_with_it := next(with_it, next(iter(own), None))) is not None:
        return folder_with_it / "cluster" / f"{name}.yaml"
    if not (conf_dir().parent / CHECKOUT).exists():
        problem = f"The file of cluster {name} would be written into the installed package, {conf_dir()}"
        raise UsageError(problem, "Make a folder of your own with `trisweep init`, or name one with --config-dir.")
    return conf_dir() / "cluster" / f"{name}.yaml"


def require_writable(name: str, output: str) -> None:
    """Check before anything is measured that the file can be written, and that writing it destroys no other.

    Raises:
        UsageError: the folder is read-only, or `output` is another cluster's file.
    """
    target = path_to_write(output)
    try:
        target.parent.mkdir(exist_ok=True)
        # Only a file that is made there tells for certain, on read-only mounts and network file systems too.
        tempfile.TemporaryFile(dir=target.parent).close()
    except OSError as error:
        problem = f"{target.parent} cannot be written ({error.strerror}), and the result belongs there"
        raise UsageError(problem, "Make it writable, or name a folder of your own with --config-dir.") from None
    if output != name and output in options("cluster"):
        problem = f"{cluster_path(output)} exists already and may describe another cluster"
        raise UsageError(problem, f"Choose another --output, or calibrate that one with cluster={output}.")


def rewrite(text: str, changes: Sequence[Change], stamp: str, machine: str) -> str:
    """Make `changes` in the text of a cluster file, with when and where it was calibrated, and return the new text."""
    for change in changes:
        text = with_value(text, change.path, _yaml_value(change.after), _origin(change, stamp))
    lines = text.splitlines()
    remaining = [line for line in lines if not line.startswith(STAMPED) or _still_used(line, lines, stamp)]
    return "\n".join([f"{STAMPED}{stamp}: {machine}", *remaining]) + "\n"


def with_links(text: str, cluster: ClusterSpec) -> str:
    """The text of the cluster's file with its list of links, which that may have from the file that it builds on.

    A list replaces the other file's as a whole, so that it takes all links to change one.
    """
    if LINKS in yaml_content(text, "cluster"):
        return text
    links = [link.model_dump(exclude_defaults=True) for link in cluster.links]
    return text.rstrip("\n") + "\n" + yaml.safe_dump({LINKS: links}, sort_keys=False)


def replace_cluster_file(cluster: ClusterSpec, output: str, text: str, changes: Sequence[Change]) -> Path:
    """Write `text` as the file of cluster `output`, once it composes to exactly the changed values.

    Raises:
        ConfigError: the new file would not compose, or not to these values; the old one stays.
        UsageError: the file cannot be written.
    """
    # A file of defaults, or an interpolation, may override what was written, so the result is composed and compared.
    composed = _compose(output, text, changes)
    for change in changes:
        value = value_in(composed, change.path)
        # The file holds a number with three digits, and exactly those must come out again.
        wanted = float(_yaml_value(change.after)) if isinstance(change.after, float) else change.after
        if value != wanted:
            problem = f"does not follow the cluster file, which would say {wanted}"
            remedy = "Let `_self_` be the last of its defaults, and write no interpolation there."
            raise ConfigError(dotted_key(change.path, cluster), value, problem, remedy)
    target = path_to_write(output)
    try:
        write_atomically(target, text)
    except OSError as error:
        raise UsageError(f"{target} cannot be written ({error.strerror})", "Make room or make it writable.") from None
    return target


def _compose(output: str, text: str, changes: Sequence[Change]) -> ClusterSpec:
    """The cluster that `text` comes to as the file of `output`, alone in a folder that comes before all others."""
    with tempfile.TemporaryDirectory(prefix="trisweep-conf-") as draft:
        path = Path(draft) / "cluster" / f"{output}.yaml"
        path.parent.mkdir()
        path.write_text(text)
        try:
            with draft_first(Path(draft)):
                return load_cluster(output)
        except ConfigError as error:
            if error.key not in {".".join(map(str, ("cluster", *change.path))) for change in changes}:
                raise
            # Nobody wrote this value, so advice for someone who left out its unit would mislead.
            remedy = "Calibrate again while nothing else runs on these devices."
            raise ConfigError(error.key, error.value, f"was just measured, but {error.problem}", remedy) from None


def _origin(change: Change, stamp: str) -> str:
    """The comment above a value: how, within which range, when."""
    if not change.origin:
        return ""
    within = change.lowest is not None and change.highest is not None
    span = f", {_yaml_value(change.lowest or 0.0)} to {_yaml_value(change.highest or 0.0)}" if within else ""
    return f"{change.origin}{span}, {stamp}"


def _still_used(line: str, lines: Sequence[str], stamp: str) -> bool:
    """True if a comment still refers to the calibration of this line, whose values this one did not all replace."""
    earlier = line.removeprefix(STAMPED).split(": ")[0]
    return earlier != stamp and any(earlier in other for other in lines if other is not line)


def _yaml_value(value: float | int | str | tuple[()]) -> str:
    """A value as YAML, with three significant digits: `1.13e11`, `0.62`, `2.0`; a count whole, a text in quotes."""
    if not isinstance(value, float):  # a count, of which all digits matter, a text or an empty list
        return json.dumps(value, ensure_ascii=False)
    mantissa, _, exponent = f"{value:.3g}".partition("e")
    # With its point a number is seen to be no count, by people and by YAML.
    mantissa += "" if "." in mantissa else ".0"
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


@dataclass(frozen=True)
class Change:
    """One value of a cluster file.

    Attributes:
        path: keys and list positions below the file's root.
        after: the new value; an empty tuple is an empty list.
        before: the value until now, as composed; None where there was none, and for a text, which has no range either.
        origin: where the new value comes from, for the comment above it; empty leaves comments alone.
        lowest, highest: range of what the value was taken from.
    """

    path: KeyPath
    before: float | None
    after: float | int | str | tuple[()]
    origin: str = ""
    lowest: float | None = None
    highest: float | None = None

    @property
    def leaf(self) -> str:
        return str(self.path[-1])


def dotted_key(path: KeyPath, cluster: ClusterSpec) -> str:
    """The key for people: a link is named rather than counted."""
    parts = list(path)
    if parts[0] == LINKS and isinstance(parts[1], int):
        parts[1] = cluster.links[parts[1]].name
    return ".".join(str(part) for part in ("cluster", *parts))


def value_in(cluster: BaseModel, path: KeyPath) -> object:
    node: object = cluster
    for part in path:
        if isinstance(part, int):
            node = node[part] if isinstance(node, tuple) and part < len(node) else None
        else:
            node = node.get(part) if isinstance(node, dict) else getattr(node, part, None)
    return node


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
        end = node.end_mark.index - 1  # in front of the closing brace
        return text[:end].rstrip() + (", " if node.value else "") + _in_braces(missing, value) + text[end:]
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
    remark = rest if stands_alone else ""
    return _update_comments(text, key.start_mark.index, leaf, old, remark, origin) if origin else text


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
    lines[-1] += f" {value}"
    if origin:
        lines.insert(-1, f"{' ' * (column + INDENT * (len(path) - 1))}# {path[-1]} {origin}")
    newline = "" if text[:end].endswith("\n") else "\n"
    return text[:end] + newline + "\n".join(lines) + "\n" + text[end:]


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
