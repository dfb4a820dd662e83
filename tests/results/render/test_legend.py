"""The legend of layout names."""

from __future__ import annotations

from results.render.legend import legend, legend_text
from tests.results.conftest import experiment


def test_each_part_of_a_name_is_explained_once_by_its_largest_number() -> None:
    setups = [experiment(), experiment(world_size=4, tensor_parallel_size=4, zero_stage=1, recompute="full")]
    lines = dict(legend(setups))
    assert list(lines)[:5] == ["tp4", "pp1", "dp1", "mb1", "gb8"]
    assert lines["tp4"] == "tensor-parallel size 4: ranks among which every matrix is split"
    assert lines["full"] == "recomputes whole layers in the backward pass"
    assert lines["zero1"].startswith("ZeRO stage 1")


def test_every_part_of_a_name_has_a_meaning() -> None:
    setup = experiment(world_size=2, tensor_parallel_size=2, sequence_parallel=True)
    assert [part for part, _ in legend([setup])] == setup.label.split("-")


def test_without_a_layout_there_is_nothing_to_explain() -> None:
    assert legend_text([]) == ""
