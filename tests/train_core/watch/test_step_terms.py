"""Where a step goes, and who is slower than the others."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from conf.plan.experiment import Experiment
from costs.axes import Layout
from tests.train_core.conftest import ExperimentOf, Worlds
from tests.train_core.rehearsal.gpu_stand_ins import StandInEvent
from train_core.parallel.clock import Clock, DeviceClock, Line
from train_core.process.world import World
from train_core.training.train import train
from train_core.trial.measurement import Performance, StepMetrics
from train_core.watch.step_parts import TermsHistory, breakdown_of, stragglers, terms_of

BREAKDOWN = {
    "profile.breakdown": True,
    "model.num_layers": 2,
    "training.num_steps": 4,
    "training.num_warmup_steps": 2,
    "cluster.device.peak_source": "as declared",  # spares each of these trainings measuring the peak
}


def test_waits_and_parts_are_counted_apart_and_the_rest_is_compute() -> None:
    clock = Clock()
    now = iter(range(100))
    clock.mark = lambda: next(now)  # type: ignore[method-assign]
    tensor, data = Line("tensor", (0, 1), clock), Line("data", (0, 2), clock)
    clock.begin_step(1)
    clock.wait(tensor.start("all_reduce", 8), lambda: None)  # 0 to 1
    with clock.part("optimizer"):  # 2 to 5
        clock.wait(data.start("all_reduce", 8), lambda: None)  # 3 to 4
    assert terms_of(10.0, clock.seconds_by_name(), True) == [6.0, 1.0, 0.0, 1.0, 0.0, 2.0]
    clock.begin_step(2)
    assert clock.seconds_by_name() == {}


@pytest.mark.parametrize("heard", ["tensor", "context"])
def test_waits_of_replicas_that_no_clock_hears_of_are_not_known(heard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """ZeRO-3 on a GPU: the stream that computes waits for another one inside FSDP2."""
    clock = DeviceClock()
    monkeypatch.setattr(torch.cuda, "Event", StandInEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    data = Line("data", (0, 1), clock)
    clock.begin_step(1)
    clock.follow(data.start("all_gather", 8), lambda: None)
    history = TermsHistory()
    for step_seconds in (10.0, 12.0):
        history.add(terms_of(step_seconds, clock.seconds_by_name() | {heard: 1.0}, True), is_timed=True)
    (terms,) = breakdown_of([history.medians()]).ranks
    assert (terms.compute_seconds, terms.tensor_seconds, terms.data_seconds) == (10.0, 1.0, None)
    assert terms_of(10.0, {}, False)[3] == 0.0, "one replica waits for no other"


def test_waiting_is_seen_while_it_lasts_and_not_after_an_error() -> None:
    clock = Clock()
    line = Line("data", range(4), clock)
    seen = []

    def lose_a_peer() -> None:
        seen.append(clock.current_wait())
        raise RuntimeError("Connection closed by peer")

    with pytest.raises(RuntimeError):
        clock.wait(line.start("all_reduce", 2**19), lose_a_peer)
    awaited = seen[0]
    assert awaited is not None
    operation, since = awaited
    assert (str(operation), operation.number) == ("all_reduce over data, 512 KiB", 1)
    assert since <= time.monotonic()
    assert clock.current_wait() is None


def test_the_slowest_rank_is_the_one_with_the_most_work_of_its_own() -> None:
    breakdown = breakdown_of([[1.0, 5.0, 0, 0, 0, 1.0], [2.0, 0, 0, 0, 4.0, 0.5], [1.5, 0, 0, 0, 4.0, 0.5]])
    assert breakdown.slowest_rank == 1
    assert breakdown.slowest.own_seconds == 2.5


@pytest.mark.parametrize(
    ("layout", "own_seconds", "named"),
    [
        (Layout({"data": 4}), [1.0, 1.1, 1.6, 0.9], (2,)),
        (Layout({"data": 2}), [1.0, 1.6], (1,)),  # of two, the quicker one is the measure
        (Layout({"tensor": 2, "pipeline": 2}), [1.0, 1.0, 3.0, 3.1], ()),  # stages may have unequal work
        (Layout({"tensor": 2, "pipeline": 2}), [1.0, 2.0, 3.0, 3.1], (1,)),
        (Layout({"pipeline": 4}), [1.0, 1.0, 1.1, 2.0], (3,)),  # a stage of one rank has no peer of its own
        (Layout({}), [7.0], ()),
    ],
)
def test_a_straggler_takes_longer_than_the_median_rank_of_its_stage(
    layout: Layout, own_seconds: list[float], named: tuple[int, ...]
) -> None:
    assert stragglers(own_seconds, layout, ratio=1.5) == named


def measured(world: World, experiment: Experiment, cache: Path) -> tuple[Performance, list[StepMetrics]]:
    seen: list[StepMetrics] = []
    return train(experiment, world, cache, seen.append), seen


def measured_with_terms(world: World, experiment: Experiment, cache: Path) -> tuple[Performance, list[StepMetrics]]:
    """Rank 2 works for 3 s, the others for 1 s and wait, by a clock that no load on the machine can disturb."""
    terms = [3.0, 0.0, 0.0, 0.0, 0.0, 0.5] if world.rank == 2 else [1.0, 0.0, 0.0, 2.0, 0.0, 0.5]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("train_core.training.meter.terms_of", lambda *_: terms)
        return measured(world, experiment, cache)


@pytest.mark.slow
def test_a_slow_rank_is_named_in_metrics_and_measurement(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    experiment = experiment_of(BREAKDOWN | {"parallel.world_size": 4})
    (performance, metrics), *others = worlds(4).run(measured_with_terms, experiment, tmp_path)
    assert performance.stragglers == (2,)
    assert [step.stragglers for step in metrics] == [(2,)] * 4
    assert [seen for _, seen in others] == [[], [], []]
    breakdown = performance.breakdown
    assert breakdown is not None
    assert breakdown.slowest_rank == 2
    assert [rank.data_seconds for rank in breakdown.ranks] == [2.0, 2.0, 0.0, 2.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "waits_in"),
    [
        ({"parallel.tensor_parallel_size": 2}, "tensor_seconds"),
        ({"parallel.pipeline_parallel_size": 2}, "pipeline_wait_seconds"),
        ({}, "data_seconds"),
    ],
)
def test_the_terms_of_a_rank_add_up_to_its_step_and_waits_are_counted_where_they_belong(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path, values: dict[str, Any], waits_in: str
) -> None:
    experiment = experiment_of({**BREAKDOWN, "training.num_steps": 3, "parallel.world_size": 2, **values})
    performance, _ = worlds(2).run(measured, experiment, tmp_path)[0]
    breakdown = performance.breakdown
    assert breakdown is not None
    for terms in breakdown.ranks:  # one step is timed, so the medians are its terms
        assert sum(terms.model_dump().values()) <= performance.step_seconds * (1 + 1e-9)
        communication = {"tensor_seconds", "pipeline_wait_seconds", "data_seconds"}
        assert {name for name in communication if getattr(terms, name) > 0} == {waits_in}
    slowest = max(sum(terms.model_dump().values()) for terms in breakdown.ranks)
    assert math.isclose(slowest, performance.step_seconds)


@pytest.mark.slow
def test_without_being_asked_for_there_is_no_breakdown(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    experiment = experiment_of({"parallel.world_size": 2, "training.num_steps": 2})
    assert worlds(2).run(measured, experiment, tmp_path)[0][0].breakdown is None
