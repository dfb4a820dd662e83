"""The table of knobs is whole, and what other modules spell follows from it."""

from __future__ import annotations

import pytest

from conf.plan.knobs import KNOB, KNOBS, Knob, plain_values
from conf.types.schema import BatchPlan, ParallelPlan
from costs.setting import Plans
from sweeps.table.columns import OPTIONAL_COLUMNS, REQUIRED_COLUMNS
from tests.composed import load

FROM_OTHER_KNOBS = {"num_micro_batches", "first_stage_layers", "last_stage_layers"}
TWO_STAGES = ("parallel.world_size=2", "parallel.pipeline_parallel_size=2")


def test_every_field_of_a_plan_is_a_knob_and_every_stated_knob_a_field() -> None:
    fields = {*ParallelPlan.model_fields, *BatchPlan.model_fields}
    assert {knob.name for knob in KNOBS if knob.group} == fields
    assert len(KNOB) == len(KNOBS)


def test_every_column_of_a_search_is_a_knob_or_follows_from_some() -> None:
    assert set(Plans.__slots__) - set(KNOB) == FROM_OTHER_KNOBS


def test_columns_of_tables_of_configurations_are_read_there() -> None:
    assert {knob.column for knob in KNOBS if knob.column} <= {*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS}


def test_plain_values_are_legal_ones() -> None:
    plain = plain_values("parallel")
    assert ParallelPlan(**{"world_size": 1, **plain}).schedule == "1f1b"


@pytest.mark.parametrize("knob", [knob for knob in KNOBS if knob.values], ids=lambda knob: knob.name)
def test_a_value_is_found_again_from_what_a_column_holds(knob: Knob) -> None:
    entries = [entry for value in knob.values if isinstance(entry := knob.entry(value), int)]
    assert [knob.value(entry) for entry in entries] == list(knob.values)


@pytest.mark.parametrize(
    ("overrides", "label"),
    [
        ([], "tp1-pp1-dp1-mb1-gb8"),
        (["parallel.recompute=full", "parallel.recompute_every=2"], "tp1-pp1-dp1-mb1-gb8-full-every2"),
        (["parallel.recompute_every=2"], "tp1-pp1-dp1-mb1-gb8"),
        (
            ["parallel.world_size=4", "parallel.pipeline_parallel_size=4", "parallel.layers_per_stage=[1,1,1,1]"],
            "tp1-pp4-dp1-mb1-gb8",
        ),
        (
            [
                *("parallel.world_size=4", "parallel.tensor_parallel_size=2", "parallel.sequence_parallel=true"),
                *("parallel.zero_stage=2", "batch.micro_batch_size=2"),
            ],
            "tp2-pp1-dp2-mb2-gb8-sp-zero2",
        ),
        ([*TWO_STAGES, "parallel.schedule=interleaved", "parallel.virtual_pipeline_size=2"], "tp1-pp2-dp1-mb1-gb8-vp2"),
        ([*TWO_STAGES, "parallel.schedule=zero-bubble", "parallel.zero_stage=2"], "tp1-pp2-dp1-mb1-gb8-zb-zero2"),
        (
            [*TWO_STAGES, "parallel.layers_per_stage=[3,1]", "parallel.recompute=full"],
            "tp1-pp2-dp1-mb1-gb8-layers3.1-full",
        ),
        (
            ["parallel.world_size=4", "parallel.pipeline_parallel_size=4", "model.num_layers=6"],
            "tp1-pp4-dp1-mb1-gb8-layers2x2.1x2",
        ),
    ],
)
def test_a_label_names_the_sizes_and_what_is_not_plain(overrides: list[str], label: str) -> None:
    model = ["model=tiny", "model.num_layers=4", "cluster=local", "precision=fp32", "parallel.world_size=1"]
    assert load([*model, *overrides]).experiment().label == label
