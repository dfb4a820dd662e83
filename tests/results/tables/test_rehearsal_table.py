"""A rehearsal beside the cost model. What is counted is MADE UP for the test: the prediction, with changes."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from rich.console import Console

from costs import estimate
from costs.counts.traffic import GroupTraffic, stage_traffic
from costs.terms import HELD_KINDS
from results.render.table import Table
from results.tables.rehearsal_table import Prediction, comparison, memory_table, predict, work_table
from tests.results.conftest import experiment
from train_core.rehearsal.counts import Rehearsal, StageBytes, StageStep

FOUR_STAGES = experiment(world_size=8, pipeline_parallel_size=4, global_batch_size=16)
NEVER_PREDICTED = GroupTraffic(group="tensor", kind="all_gather", number=7, num_bytes=21 * 10**9)
BYTES = StageBytes(
    weights_bytes=8 * 2**30,
    gradients_bytes=4 * 2**30,
    optimizer_bytes=2**30,
    activations_bytes=2**30,
    working_bytes=2**30,
    logits_bytes=2**30,
    communication_bytes=0,
)


def test_a_stage_that_communicates_nothing_has_a_line_with_its_products() -> None:
    alone = predict(experiment())
    assert ["0", "1.000", *["-"] * 6] in shown(work_table(counted(alone), alone))


@pytest.fixture
def predicted() -> Prediction:
    return predict(FOUR_STAGES)


def counted(predicted: Prediction, *more_on_the_last: GroupTraffic) -> Rehearsal:
    """As predicted, but for the memory, and what the last stage does besides."""
    last = predicted.stages[-1].stage
    stages = tuple(
        StageStep(
            stage=one.stage,
            num_layers=1,
            memory=BYTES,
            flops=10**12,
            traffic=one.traffic + (more_on_the_last if one.stage == last else ()),
        )
        for one in predicted.stages
    )
    return Rehearsal(
        label="made-up", world_size=8, num_micro_batches=8, flops=8 * 10**12, stages=stages, num_rehearsed=4
    )


def shown(table: Table) -> list[list[str]]:
    """The words of every line at a terminal's width."""
    console = Console(file=StringIO(), width=80)
    with console.capture() as capture:
        console.print(table)
    return [line.split() for line in capture.get().splitlines()]


def test_it_predicts_what_the_cost_model_says_of_each_stage(predicted: Prediction) -> None:
    assert predicted.flops == estimate(FOUR_STAGES).hardware_flops
    assert [one.memory.total_bytes for one in predicted.stages] == [
        one.allocated_bytes for one in estimate(FOUR_STAGES).stages
    ]
    assert [one.traffic for one in predicted.stages] == [stage_traffic(FOUR_STAGES, stage) for stage in range(4)]


def test_predicted_memory_stands_below_the_counted_by_what_is_held(predicted: Prediction) -> None:
    found = counted(predicted)
    half = StageBytes(**{name: getattr(BYTES, name) // 2 for name in HELD_KINDS})
    stages = tuple(type(one)(one.stage, half, one.traffic) for one in predicted.stages)
    lines = shown(memory_table(found, Prediction(predicted.flops, stages)))
    first = lines.index(["0", "counted", "8.0", "4.0", "1.0", "1.0", "1.0", "1.0", "0.00", "16.0"])
    assert lines[first + 1] == ["predicted", "4.0", "2.0", *["0.50"] * 4, "0.00", "8.0", "-50.0"]


def test_stages_that_do_the_same_share_rows_of_counted_and_predicted_collectives(predicted: Prediction) -> None:
    lines = shown(work_table(counted(predicted), predicted))
    stages = [line[0] for line in lines if line and line[0] in ("0", "1", "2", "3", "1-2", "0-3")]
    assert stages == ["0", "1-2", "3"]
    number = str(next(one.number for one in predicted.stages[0].traffic if one.group == "pipeline"))
    send = next(line for line in lines if line[-5:-4] == ["send"])
    assert send[-4:-2] == [number, number]
    assert send[-2] == send[-1]


def test_a_collective_that_only_one_of_both_has_is_a_row(predicted: Prediction) -> None:
    lines = shown(work_table(counted(predicted, NEVER_PREDICTED), predicted))
    row = next(line for line in lines if "tensor" in line)
    assert row[-6:] == ["tensor", "all-gather", "7", "-", "21.0", "-"]


def test_json_has_both_under_the_same_names(predicted: Prediction) -> None:
    found = counted(predicted, NEVER_PREDICTED)
    both = comparison(found, predicted)
    assert set(both) == {"counted", "predicted"}
    assert Rehearsal.model_validate_json(json.dumps(both["counted"])) == found
    assert both["predicted"]["flops"] == predicted.flops
    for one, counted_one in zip(both["predicted"]["stages"], both["counted"]["stages"], strict=True):
        assert one["memory"].keys() == counted_one["memory"].keys()
        assert one["stage"] == counted_one["stage"]
    assert both["predicted"]["stages"][1]["traffic"] == both["counted"]["stages"][1]["traffic"]
    assert NEVER_PREDICTED.model_dump() in both["counted"]["stages"][3]["traffic"]
    assert NEVER_PREDICTED.model_dump() not in both["predicted"]["stages"][3]["traffic"]
