"""What a log counts of a step tells the one size that is missing, and is marked as computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from costs.counts.flops import attention_core_forward_flops
from diagnose.diagnosis import RunVerdict, diagnose
from diagnose.runs import SaidBy, UserRun
from diagnose.understood import Understood, understood
from tests.diagnose.made_run import made_run

EXPERTS = {"num_experts": "8", "top_k": "2", "ep": "8", "tp": "1", "moe_ffn": "4096", "micro_batch": "1"}


def counted(known: Understood) -> float:
    assert known.predicted is not None
    return known.predicted.model_flops


def without_masked(known: Understood) -> float:
    assert known.predicted is not None
    assert known.configuration is not None
    setup = known.configuration.setup
    core = attention_core_forward_flops(setup.model, setup.batch.global_batch_size)
    return known.predicted.model_flops - 1.5 * setup.model.num_layers * core


def repeated(known: Understood) -> float:
    assert known.predicted is not None
    return known.predicted.hardware_flops


def lacking(column: str, run: UserRun, flops: float, devices: int = 64) -> UserRun:
    """The run without a column, and with the rate that its log would print, to a tenth of a TFLOPS."""
    seconds = run.steps[0].seconds
    run.steps = [step._replace(tflops=round(flops / seconds / devices / 1e12, 1)) for step in run.steps]
    del run.columns[column]
    return run


@pytest.mark.parametrize(
    ("column", "columns", "value"),
    [("seq", {}, "4096"), ("global_batch", {}, "256"), ("top_k", EXPERTS, "2"), ("seq", {"seq": "32768"}, "32768")],
)
@pytest.mark.parametrize("count", [counted, without_masked])
def test_megatron_core_counts_the_model_with_all_scores_or_half_of_them(
    column: str, columns: Mapping[str, str | None], value: str, count: Callable[[Understood], float]
) -> None:
    run = made_run(columns={**columns, **({"sequence_parallel": None} if "ep" in columns else {})})
    flops = count(understood(run, None))
    found = diagnose(lacking(column, run, flops))
    fact = found.run.columns[column]
    assert (fact.value, fact.said_by) == (value, SaidBy.COMPUTED)
    assert fact.at is not None
    assert "TFLOPS x" in found.understood.taken[column]
    assert found.verdict is not RunVerdict.NO_PRICE


def test_megatron_deepspeed_counts_what_is_recomputed() -> None:
    columns = {"recompute": "full", "sequence_parallel": None, "zero_stage": "1"}
    run = made_run(trainer="megatron-deepspeed", columns=columns)
    found = diagnose(lacking("seq", run, repeated(understood(run, None))))
    assert found.run.columns["seq"].value == "4096"
    other = made_run(trainer="megatron-deepspeed", columns=columns)
    assert "seq" not in diagnose(lacking("seq", other, counted(understood(other, None)))).run.columns


def test_nothing_is_computed_where_no_value_fits_or_more_is_missing() -> None:
    run = made_run()
    flops = counted(understood(run, None))
    assert "seq" not in diagnose(lacking("seq", made_run(), 1.3 * flops)).run.columns
    two = lacking("seq", made_run(), flops)
    del two.columns["hidden"]
    assert [each.column for each in diagnose(two).understood.missing] == ["hidden", "seq"]
    silent = made_run()
    del silent.columns["seq"]
    assert diagnose(silent).verdict is RunVerdict.NO_PRICE
