"""A measurement that cannot be true is said to be so before anything else is said of the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from diagnose.diagnosis import RunVerdict, diagnose
from diagnose.runs import LoggedStep, UserRun
from tests.diagnose.made_run import GIB, made_run

Edit = Callable[[LoggedStep], LoggedStep]


def with_steps(run: UserRun, edit: Edit) -> UserRun:
    run.steps = [edit(step) for step in run.steps]
    return run


def doubts_of(run: UserRun) -> list[str]:
    return [doubt.says for doubt in diagnose(run).doubts]


def rate_of(run: UserRun) -> float:
    """TFLOPS of the model's FLOPs at the run's own pace."""
    found = diagnose(run)
    assert found.understood.predicted is not None
    assert found.factor is not None
    return found.understood.predicted.model_flops_per_second_per_device / found.factor / 1e12


def test_a_rate_above_the_peak_is_impossible_and_the_run_is_not_compared() -> None:
    found = diagnose(with_steps(made_run(), lambda step: step._replace(tflops=1200.0)))
    assert found.verdict is RunVerdict.IMPOSSIBLE
    assert "above the peak of H100-80GB-SXM, 989" in found.doubts[0].says
    assert found.advice == ()


def test_a_step_that_no_device_could_take_is_impossible() -> None:
    found = diagnose(made_run(0.2))
    assert found.verdict is RunVerdict.IMPOSSIBLE
    assert "batch, sequence or number of devices are not what is said" in found.doubts[0].says


@pytest.mark.parametrize(
    ("peak", "says"),
    [(312.0, "which is that of A100"), (1978.9, "of the peak with sparsity"), (989.4, "")],
)
def test_a_share_of_another_peak_is_named(peak: float, says: str) -> None:
    run = made_run()
    rate = rate_of(run)
    found = doubts_of(with_steps(run, lambda step: step._replace(tflops=rate, mfu=rate / peak)))
    assert any(says in doubt for doubt in found) if says else found == []


@pytest.mark.parametrize(
    ("columns", "factor", "says"),
    [
        ({"micro_batch": "1", "global_batch": "512"}, 1 / 16, "accumulated micro-batches are left out"),
        ({"tp": "4", "pp": "2", "global_batch": "64"}, 1 / 8, "of one rank"),
        ({}, 64.0, "of all devices together"),
    ],
)
def test_a_rate_that_counts_something_else_is_explained(columns: dict[str, str], factor: float, says: str) -> None:
    run = made_run(3.0 if factor > 1 else 1.0, columns=columns)
    rate = rate_of(run) * factor
    found = doubts_of(with_steps(run, lambda step: step._replace(tflops=rate)))
    assert any(says in doubt for doubt in found) or any("above the peak" in doubt for doubt in found)


def test_a_plan_that_cannot_have_fitted_is_doubted_where_the_log_has_no_memory() -> None:
    assert doubts_of(made_run()) == []
    (says,) = doubts_of(made_run(columns={"tp": "1", "zero_stage": "0"}))
    assert says.startswith("it ran, and its plan needs ")


def test_tokens_that_leave_accumulation_out_are_said() -> None:
    run = made_run(columns={"micro_batch": "1"})
    tokens = 256 * 4096 / run.steps[0].seconds
    right = with_steps(run, lambda step: step._replace(tokens_per_second=tokens))
    assert doubts_of(right) == []
    wrong = with_steps(run, lambda step: step._replace(tokens_per_second=tokens / 8))
    assert "the rate leaves accumulation out" in doubts_of(wrong)[0]


def test_memory_beyond_the_device_and_far_below_the_plan_is_doubted() -> None:
    more = with_steps(made_run(), lambda step: step._replace(memory_bytes=120 * GIB))
    assert diagnose(more).verdict is RunVerdict.IMPOSSIBLE
    less = with_steps(made_run(), lambda step: step._replace(memory_bytes=5 * GIB))
    assert "are held where the plan needs" in doubts_of(less)[0]


def test_parameters_that_a_log_prints_otherwise_are_a_mismatch() -> None:
    assert diagnose(made_run(settings={"num_parameters": "13,023,728,640"})).understood.mismatch == ""
    told = diagnose(made_run(settings={"num_parameters": "6738415616"})).understood.mismatch
    assert told == "the log prints 6.74 billion parameters, and this model has 13.02 billion"


def test_fp32_above_its_peak_is_tf32_and_above_that_impossible() -> None:
    run = made_run(0.4, columns={"precision": "fp32", "global_batch": "1024"})
    found = diagnose(run)
    assert rate_of(run) > 67
    assert found.verdict is not RunVerdict.IMPOSSIBLE
    said = "above the fp32 peak of H100-80GB-SXM, 67: its products are in TF32, whose peak is 495"
    assert said in found.doubts[0].says
    assert "TF32" not in " ".join(doubts_of(made_run(1.0, columns={"precision": "fp32", "global_batch": "1024"})))
    assert diagnose(made_run(0.04, columns={"precision": "fp32"})).verdict is RunVerdict.IMPOSSIBLE


@pytest.mark.parametrize(("said", "is_really"), [("none", "full"), ("full", "none"), ("full", "selective")])
def test_memory_of_another_recomputation_is_named(said: str, is_really: str) -> None:
    columns = {"tp": "4", "flash_attention": "no"}
    other = diagnose(made_run(columns={**columns, "recompute": is_really}))
    assert other.understood.predicted is not None
    held = other.understood.predicted.allocated_bytes / GIB
    (doubt,) = doubts_of(made_run(columns={**columns, "recompute": said}, allocated_gib=held))
    mode = {"none": "no recomputation", "full": "full recomputation", "selective": "selective recomputation"}[is_really]
    assert f"{held:.1f} GiB are held, where recompute = {said} needs" in doubt
    assert f"; {mode} needs {held:.1f}: it recomputes otherwise" in doubt
    assert doubts_of(made_run(columns={**columns, "recompute": is_really}, allocated_gib=held)) == []
