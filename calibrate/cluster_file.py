"""Rewriting a cluster file: values change one by one, everything else, comments included, stays as people wrote it."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import BaseModel

from calibrate.yaml_edit import KeyPath, with_value
from conf.compose.load import load_cluster
from conf.errors import ConfigError, UsageError
from conf.folders import CONF_DIR, draft_first, options, own_folders, path_of
from conf.types.cluster_spec import ClusterSpec
from train_core.whole_files import write_atomically

CHECKOUT = "pyproject.toml"
"""Lies beside the packages of a checkout, and not of an installed package."""

LINKS = "links"
STAMPED = "# Calibrated "
"""Lines at the top of a file begin so, and say where and with which versions a calibration was made."""


def cluster_path(name: str) -> Path:
    """The file that describes a cluster."""
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
    if not (CONF_DIR.parent / CHECKOUT).exists():
        problem = f"The file of cluster {name} would be written into the installed package, {CONF_DIR}"
        raise UsageError(problem, "Make a folder of your own with `trisweep init`, or name one with --config-dir.")
    return CONF_DIR / "cluster" / f"{name}.yaml"


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
    """Make `changes` in the text of a cluster file, and return the new text.

    Args:
        stamp: when it was calibrated; comments refer to it.
        machine: where and with what, for the line at the top.
    """
    for change in changes:
        text = with_value(text, change.path, _yaml_value(change.after), _origin(change, stamp))
    lines = text.splitlines()
    remaining = [line for line in lines if not line.startswith(STAMPED) or _still_used(line, lines, stamp)]
    return "\n".join([f"{STAMPED}{stamp}: {machine}", *remaining]) + "\n"


def with_links(text: str, cluster: ClusterSpec) -> str:
    """The text of the cluster's file with its list of links, which that may have from the file that it builds on.

    A list replaces the other file's as a whole, so that it takes all links to change one.
    """
    if LINKS in yaml.safe_load(text):
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
        _require_taken(change, cluster, composed)
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


def _require_taken(change: Change, cluster: ClusterSpec, composed: ClusterSpec) -> None:
    value = value_in(composed, change.path)
    # The file holds a number with three digits, and exactly those must come out again.
    wanted = float(_yaml_value(change.after)) if isinstance(change.after, float) else change.after
    if value != wanted:
        raise ConfigError(
            dotted_key(change.path, cluster),
            value,
            f"does not follow the cluster file, which would say {wanted}",
            "Let `_self_` be the last of its defaults, and write no interpolation there.",
        )


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
    if isinstance(value, int):  # a count, of which all digits matter
        return str(value)
    if isinstance(value, tuple):
        return "[]"
    if isinstance(value, str):
        return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
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
    """The value at `path`; None where there is none."""
    node: object = cluster
    for part in path:
        if isinstance(part, int):
            node = node[part] if isinstance(node, tuple) and part < len(node) else None
        else:
            node = node.get(part) if isinstance(node, dict) else getattr(node, part, None)
    return node
