"""Memory of the best plan by stage. Every measured number is MADE UP for the test."""

from __future__ import annotations

from typing import Any

from costs import estimate
from results.report.sections.memory import section
from sweeps.trial import Trial
from tests.results.conftest import FULL, WriteSweep, experiment, performance, trial
from tests.results.report.sections.conftest import drawn, plots_of, rows_of, shown_of, subject_of, text_of

GIB = 2**30
LAYOUT = {"world_size": 64, "tensor_parallel_size": 4, "pipeline_parallel_size": 16}


def planned(**point: Any) -> Trial:
    """With the cost model's own estimate, and not a made-up one."""
    value = experiment(model=FULL, **point)
    predicted = estimate(value)
    reason = None if predicted.fits else "does not fit"
    listed = trial("plan", model=FULL, **point)
    return listed.model_copy(update={"estimate": predicted, "infeasible_reason": reason, "selected": predicted.fits})


def test_every_stage_is_shown_with_what_it_holds_and_what_its_device_has(write_sweep: WriteSweep) -> None:
    plan = planned(**LAYOUT, dtype="bf16", zero_stage=1, recompute="full")
    found = shown_of(section, write_sweep((), plan=(plan,)))
    rows = rows_of(found, "memory-stages")
    assert len(rows) == 16
    assert {row["device GiB"] for row in rows} == {"64.0"}
    assert {"weights GiB", "gradients GiB", "optimizer GiB", "activations GiB"} <= set(rows[0])
    assert "measured GiB" not in rows[0]
    assert found.numbers_are == "predicted"
    (plot,) = plots_of(found)
    assert "stage 15<" in drawn(plot)


def test_the_fullest_stage_is_in_the_finding(write_sweep: WriteSweep) -> None:
    plan = planned(**LAYOUT, dtype="bf16", zero_stage=1, recompute="full")
    assert plan.estimate is not None
    found = shown_of(section, write_sweep((), plan=(plan,)))
    assert f"Stage {plan.estimate.worst_stage} of `tp4-pp16-dp1-mb1-gb8-zero1-full` is the fullest" in found.finding


def test_where_nothing_fits_the_plan_that_lacks_least_is_shown(write_sweep: WriteSweep) -> None:
    less, more = (
        planned(**LAYOUT),
        planned(world_size=64, tensor_parallel_size=2, pipeline_parallel_size=2, global_batch_size=16),
    )
    assert less.infeasible_reason
    assert more.infeasible_reason
    found = shown_of(section, write_sweep((), plan=(more, less)))
    assert "No plan fits; `tp4-pp16-dp1-mb1-gb8` lacks least" in found.finding


def test_the_measured_peak_of_each_stages_fullest_rank_stands_beside(write_sweep: WriteSweep) -> None:
    """64 ranks of 16 stages: four of each, whose number grows with the rank."""
    plan = planned(**LAYOUT, dtype="bf16", zero_stage=1, recompute="full")
    peaks = tuple((rank + 1) * GIB for rank in range(64))
    sweep = write_sweep((plan,), {"plan": performance(1.0, 64, peak_memory_bytes=peaks)}, plan=(plan,), mode="cluster")
    found = shown_of(section, sweep)
    assert [row["measured GiB"] for row in rows_of(found, "memory-stages")][:3] == ["4.0", "8.0", "12.0"]
    assert "Measured, the fullest rank took 64.0 GiB" in found.finding
    assert "without reserved" in text_of(found)
    assert found.numbers_are == "measured and predicted"
    (plot,) = plots_of(found)
    svg = drawn(plot)
    assert "var(--measured)" in svg
    assert all(f"{name}<" in svg for name in ("measured peak", "device has")), "the legend explains every mark"


def test_one_stage_is_one_slim_bar(write_sweep: WriteSweep) -> None:
    (plot,) = plots_of(shown_of(section, write_sweep((), plan=(planned(world_size=64, tensor_parallel_size=8),))))
    assert plot.spec["height"] < 50


def test_peaks_of_only_some_ranks_are_not_laid_on_stages(write_sweep: WriteSweep) -> None:
    plan = planned(**LAYOUT, dtype="bf16", zero_stage=1, recompute="full")
    measured = performance(1.0, 64, peak_memory_bytes=(GIB,))
    found = shown_of(section, write_sweep((plan,), {"plan": measured}, plan=(plan,), mode="cluster"))
    assert found.numbers_are == "predicted"


def test_without_a_plan_there_is_no_section(write_sweep: WriteSweep) -> None:
    assert section(subject_of(write_sweep((trial("base"),)))) is None
