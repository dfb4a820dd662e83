"""What sinfo says becomes kinds of nodes, of which the ones to describe are chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.slurm.cluster import NodeKind, best_of, node_kinds

SINFO = """\
Welcome to the machine
debug|up|30:00|4|64|gpu:a100:4(S:0-3)
batch*|up|1-00:00:00|900|64+|gpu:a100:4(S:0-3),nvme:1
batch*|up|1-00:00:00|12|128|(null)
old|down|infinite|7|32|gpu:8
"""


@pytest.fixture
def kinds(tools: Callable[..., None]) -> list[NodeKind]:
    """Kinds of the nodes of a site whose sinfo prints the text above."""
    tools(sinfo=f"cat <<'END'\n{SINFO}END")
    return node_kinds()


def test_every_line_is_a_kind_of_nodes_and_a_banner_is_none(kinds: list[NodeKind]) -> None:
    assert [(kind.partition, kind.num_nodes, kind.num_gpus, kind.gpu_type) for kind in kinds] == [
        ("debug", 4, 4, "a100"),
        ("batch", 900, 4, "a100"),
        ("batch", 12, 0, None),
        ("old", 7, 8, None),
    ]
    assert [kind.most_minutes for kind in kinds] == [30, 1440, 1440, None]
    assert [kind.num_cores for kind in kinds] == [64, 64, 128, 32]


def test_nodes_with_devices_in_the_default_partition_come_first(kinds: list[NodeKind]) -> None:
    best = best_of(kinds)
    assert best is not None
    assert (best.partition, best.num_gpus) == ("batch", 4)
    chosen = best_of(kinds, "debug")
    assert chosen is not None
    assert chosen.num_nodes == 4
    assert best_of(kinds, "nowhere") is None


def test_of_equals_the_first_by_name_is_chosen_in_whatever_order_sinfo_lists_them(kinds: list[NodeKind]) -> None:
    equals = [replace(kinds[1], gpu_type=name) for name in ("h100", "a100")]
    assert best_of(equals) == best_of(equals[::-1]) == equals[1]


def test_without_slurm_nothing_is_offered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert node_kinds() == []
