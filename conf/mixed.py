"""One job over several types of devices: each type holds a block of consecutive pipeline stages.

All stages have the same tensor- and data-parallel sizes and run the same micro-batches, so that a replica's pipeline
crosses every type. In the configuration a block is `CLUSTER:DEVICES`, and `+` puts blocks one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from conf.cluster_spec import ClusterSpec
from conf.errors import ConfigError
from conf.schema import Count, Frozen

KEY, EXAMPLE = "mixed", "selene:512+dgx-h100:512"
MOST_DIGITS = 18  # more than any number of devices has, and few enough for Python to read quickly


class StageBlock(Frozen):
    """Consecutive pipeline stages on so many devices of one cluster."""

    cluster: ClusterSpec
    num_devices: Count

    @property
    def num_nodes(self) -> int:
        return -(-self.num_devices // self.cluster.devices_per_node)

    @property
    def tasks_per_node(self) -> int:
        return self.num_devices // self.num_nodes

    def __str__(self) -> str:
        return f"{self.cluster.name}:{self.num_devices}"


def written_blocks(blocks: Sequence[StageBlock]) -> str:
    """The blocks as the configuration writes them, such as `selene:512+dgx-h100:512`."""
    return "+".join(map(str, blocks))


def named_blocks(text: str, separator: str = "+", example: str = EXAMPLE) -> list[tuple[str, int]]:
    """Clusters and numbers of their devices, from a text such as `selene:512+dgx-h100:512`.

    Raises:
        ConfigError: the text is something else.
    """
    found = []
    for part in text.split(separator):
        name, _, number = part.strip().partition(":")
        if not name or not is_count(number) or int(number) == 0:
            raise ConfigError(KEY, text, "is not a list of clusters and devices", f"Write {example}.")
        found.append((name, int(number)))
    return found


def is_count(text: str) -> bool:
    """True for a number with few enough digits; Python refuses to convert text of thousands of digits."""
    return text.isdecimal() and len(text) <= MOST_DIGITS
