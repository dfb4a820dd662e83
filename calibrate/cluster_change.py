"""One value of a cluster file that a calibration changes, and where the new value comes from."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel

from calibrate.yaml_edit import KeyPath
from conf.cluster_spec import ClusterSpec


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


def dotted(path: KeyPath, cluster: ClusterSpec) -> str:
    """The key for people: a link is named rather than counted."""
    parts = list(path)
    if parts[0] == "links" and isinstance(parts[1], int):
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
