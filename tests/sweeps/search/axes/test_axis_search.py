"""The search of any axes: new points that can run, learned from what was measured, the same from the same trials."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import pytest

from benchmarks.replay.run import NOWHERE, ReplayedReading
from conf.errors import ConfigError
from conf.plan.experiment import Experiment
from conf.types.sweep_spec import Sampler
from sweeps.reading import TrialReading
from sweeps.search.axes.axis_search import AxisSearch
from sweeps.search.searcher import Listed, Proposal
from tests.messages import refused
from tests.sweeps.search.loss_sweep import AXES, BASE, LOSS, LossSweep, bowl, points_of
from train_core.trial.measurement import Outcome

SMALL = "+sweep.axes={batch.micro_batch_size:[1,2,4],parallel.recompute:[none,full],parallel.world_size:[1,3]}"


def test_a_sweep_that_searches_is_planned_with_its_baseline_alone() -> None:
    sweep = LossSweep(*LOSS, "search=random")
    (baseline,) = sweep.record.trials
    assert baseline.is_baseline
    assert baseline.selected


def test_no_point_comes_twice_and_every_point_can_run_until_all_were_tried() -> None:
    readings, answer = LossSweep(*BASE, SMALL, "search=random").searched(100, at_once=2)
    names = [reading.trial.trial_id for reading in readings]
    assert len(set(names)) == len(names)
    # world_size=3 does not divide the batch of 8, and the baseline is one of the other six.
    assert len(readings) == 6
    assert all(reading.trial.infeasible_reason is None for reading in readings)
    assert answer.finished == "every point that can run was tried"


def test_listed_points_come_before_any_draw() -> None:
    listed = "sweep.points=[{batch.global_batch_size:4},{batch.global_batch_size:2}]"
    sweep = LossSweep(*BASE, AXES, listed, "search=bayes", "search.objective=loss", "search.tokens=20000")
    answer = sweep.search.ask(sweep.first(), 3)
    assert [proposal.point for proposal in answer.proposals[:2]] == [
        {"batch.global_batch_size": 4},
        {"batch.global_batch_size": 2},
    ]
    assert [proposal.because for proposal in answer.proposals][1:] == [
        "listed in the sweep's file",
        "drawn at random from the axes",
    ]


@pytest.mark.thorough  # than test_every_sampler_goes_on_from_the_trials_alone
@pytest.mark.slow
def test_another_process_that_knows_only_the_trials_asks_for_the_same() -> None:
    first, second = LossSweep(*LOSS, "search=bayes"), LossSweep(*LOSS, "search=bayes")
    readings, _ = first.searched(14)
    assert first.search.ask(readings, 2) == second.search.ask(readings, 2)
    other = LossSweep(*LOSS, "search=bayes", "search.seed=1")
    assert other.search.ask(readings, 2) != second.search.ask(readings, 2)


@pytest.mark.slow
def test_what_was_measured_leads_to_better_points_than_chance() -> None:
    found = {}
    for kind in ("bayes", "random"):
        later = LossSweep(*LOSS, f"search={kind}", "search.min_gain=0").searched(22)[0][14:]
        losses = sorted(bowl(reading.experiment) for reading in later if reading.experiment)
        found[kind] = losses[len(losses) // 2]
    assert found["bayes"] < found["random"]


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("sampler", [name for name in get_args(Sampler) if name not in ("auto", "CmaEsSampler")])
def test_every_sampler_goes_on_from_the_trials_alone_and_tries_no_point_twice(sampler: str) -> None:
    words = (*LOSS, "search=bayes", f"search.sampler={sampler}")
    first, second = LossSweep(*words), LossSweep(*words)
    readings, _ = first.searched(16, at_once=3)
    assert first.search.ask(readings, 2) == second.search.ask(readings, 2)
    points = [tuple(point.values()) for point in points_of(readings[1:])]
    assert len(set(points)) == len(points)


def test_a_sampler_that_is_not_installed_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweeps.search.axes.samplers.find_spec", lambda name: None)
    with refused(ConfigError, "search.sampler"):
        LossSweep(*LOSS, "search=bayes", "search.sampler=CmaEsSampler")


@pytest.mark.slow
def test_few_axes_that_every_point_has_are_learned_by_a_gaussian_process_and_conditional_ones_by_tpe() -> None:
    """A question to the process finds the bottom of a bowl in few jobs, though a part of the trainings breaks down."""

    def bowl_beside_a_cliff(experiment: Experiment) -> float:
        rate = experiment.training.learning_rate
        return math.inf if rate > 1e-2 else 8.0 if rate > 3e-3 else bowl(experiment)

    sweep = LossSweep(*LOSS, "search=bayes", loss=bowl_beside_a_cliff)
    readings, _ = sweep.searched(22)
    assert min(bowl(each.planned) for each in readings) < 2 + 0.02


def test_what_was_ended_early_has_shown_something_too() -> None:
    sweep = LossSweep(*LOSS, "search=bayes", "search.pruner=median", "search.min_gain=0")
    readings, _ = sweep.searched(8)
    early = [each for each in readings if bowl(each.planned) > 4]
    assert early
    pruned = [
        replace(each, left=each.left.model_copy(update={"outcome": Outcome.PRUNED, "performance": None}))
        if each in early and isinstance(each, ReplayedReading) and each.left
        else each
        for each in readings
    ]
    (proposal,) = sweep.search.ask(pruned, 1).proposals
    assert proposal.because == "chosen by what 8 points have shown"


@pytest.mark.parametrize("best", [2.0, 0.0])
def test_the_search_ends_when_nothing_was_gained_for_long_if_the_user_asks_and_says_so(best: float) -> None:
    sweep = LossSweep(*LOSS, "search=random", "search.min_gain=0.2", loss=lambda experiment: best)
    readings, answer = sweep.searched(60)
    share = "20.00% (search.min_gain) of its lead over the median"
    assert answer.finished == f"none of the last 10 points bettered the best by {share}"
    assert len(readings) == 11


def test_a_gain_is_a_share_of_how_far_points_differ_and_not_of_a_loss_that_is_large_anyway() -> None:
    """The losses differ by thousandths, as those of a narrow sweep may, and get better all the time."""

    def slowly(experiment: Experiment) -> float:
        return 2.5 + 0.01 * abs(math.log10(experiment.training.learning_rate) + 3.3) ** 0.5

    sweep = LossSweep(*LOSS, "search=random", "search.min_gain=0.02", loss=slowly)
    readings = sweep.first()
    rates = [0.1 * 0.9**number for number in range(20)]
    for rate in rates:
        proposal = Proposal({"training.learning_rate": rate, "batch.global_batch_size": 8}, "")
        readings.append(sweep.ended(sweep.trial(proposal)))
    assert not sweep.search.ask(readings[1:], 1).finished


def test_a_search_of_a_loss_goes_on_to_max_trials_unless_told_otherwise() -> None:
    sweep = LossSweep(*LOSS, "search=bayes", "search.sampler=RandomSampler", "sweep.max_trials=16", loss=lambda _: 2.0)
    readings, answer = sweep.searched(60)
    assert len(readings) == 16
    assert answer.finished == "all of sweep.max_trials = 16 trials were asked for"


def test_points_at_which_a_value_cannot_be_computed_are_left_out_by_draws_and_by_what_they_leave_over() -> None:
    axes = "+sweep.axes={training.learning_rate_warmup_steps:{low:0,high:2},training.min_learning_rate:" + (
        "'=0.00001 / training.learning_rate_warmup_steps'}"
    )
    listed = "sweep.points=[{training.learning_rate_warmup_steps:0}]"
    for kind in ("random", "bayes"):
        readings, answer = LossSweep(*BASE, axes, listed, f"search={kind}").searched(9)
        drawn = [reading.trial.point.get("training.learning_rate_warmup_steps") for reading in readings]
        assert (drawn[:2], sorted(map(str, drawn[2:]))) == ([None, 0], ["1", "2"])
        assert answer.finished == "every point that can run was tried"


@pytest.mark.parametrize("warmup", ["{low:1,high:2000}", "[1,2]"])
def test_a_value_that_can_be_computed_nowhere_is_an_error_and_no_end_of_the_search(warmup: str) -> None:
    nowhere = "'=0.00001 / (training.learning_rate_warmup_steps * 0)'"
    axes = f"training.learning_rate_warmup_steps:{warmup},training.min_learning_rate:{nowhere}"
    with refused(ConfigError, "sweep.axes.training.min_learning_rate"):
        LossSweep(*BASE, f"+sweep.axes={{{axes}}}", "search=random")


def test_a_value_that_can_be_computed_at_one_point_of_many_is_no_error() -> None:
    seldom = "'=0.00001 / (training.learning_rate_warmup_steps == 7)'"
    axes = f"training.learning_rate_warmup_steps:{{low:0,high:4000}},training.min_learning_rate:{seldom}"
    sweep = LossSweep(*BASE, f"+sweep.axes={{{axes}}}", "search=random")
    assert not sweep.search.ask(sweep.first(), 0).finished


def test_points_in_flight_are_not_asked_again_and_the_search_waits_for_them() -> None:
    sweep = LossSweep(*BASE, SMALL, "search=random")
    asked = sweep.search.ask(sweep.first(), 5)
    flying = [*sweep.first(), *(sweep.running(sweep.trial(proposal)) for proposal in asked.proposals)]
    answer = sweep.search.ask(flying, 2)
    assert len(asked.proposals) == 5
    assert answer.proposals == ()
    assert answer.finished == ""


def test_max_trials_ends_it() -> None:
    readings, answer = LossSweep(*LOSS, "search=random", "sweep.max_trials=3").searched(9, at_once=5)
    assert len(readings) == 3
    assert answer.finished == "all of sweep.max_trials = 3 trials were asked for"


def test_points_that_an_earlier_command_measured_count_towards_max_trials() -> None:
    earlier, _ = LossSweep(*LOSS, "search=random").searched(5)
    observed = [
        replace(each, trial=each.trial.model_copy(update={"role": "observed", "selected": False}))
        for each in earlier[1:]
        if isinstance(each, ReplayedReading)
    ]
    sweep = LossSweep(*LOSS, "search=bayes", "sweep.max_trials=6")
    answer = sweep.search.ask([*sweep.first(), *observed], 4)
    assert len(answer.proposals) == 1
    done = [*sweep.first(), *observed, sweep.ended(sweep.trial(answer.proposals[0]))]
    assert sweep.search.ask(done, 4).finished == "all of sweep.max_trials = 6 trials were asked for"


def test_what_the_user_pins_stays_as_it_is() -> None:
    readings, _ = LossSweep(*LOSS, "search=random", "batch.global_batch_size=32").searched(6)
    batches = {reading.experiment.batch.global_batch_size for reading in readings if reading.experiment}
    assert batches == {32}


ZIP = "+sweep.zip=[{training.weight_decay:[0.1,0.2,0.3,0.2],training.clip_gradient_norm:[1.0,2.0,3.0,4.0]}]"


def test_a_pinned_key_of_axes_side_by_side_leaves_the_rows_that_have_it() -> None:
    sweep = LossSweep(*BASE, ZIP, "search=random", "training.weight_decay=0.2")
    answer = sweep.search.ask(sweep.first(), 5)
    points = {tuple(proposal.point.values()) for proposal in answer.proposals}
    assert points == {(0.2, 2.0), (0.2, 4.0)}


def test_trials_train_for_the_tokens_that_the_search_gives_whatever_their_batch() -> None:
    readings, _ = LossSweep(*LOSS, "search=random").searched(12)
    for reading in readings:
        experiment = reading.experiment
        assert experiment is not None
        tokens = experiment.batch.global_batch_size * experiment.model.seq_length
        assert 20_000 <= experiment.training.num_steps * tokens < 20_000 + tokens
    assert len({reading.num_steps for reading in readings}) > 1


def test_a_value_that_follows_from_the_steps_follows_from_the_tokens() -> None:
    axes = (
        "+sweep.axes={training.learning_rate_warmup_steps:'=training.num_steps // 4',"
        "batch.global_batch_size:[8,16,32,64]}"
    )
    readings, _ = LossSweep(*BASE, axes, "search=random", "search.objective=loss", "search.tokens=20000").searched(6)
    for reading in readings[1:]:
        assert reading.experiment is not None
        assert reading.experiment.training.learning_rate_warmup_steps == reading.num_steps // 4


@pytest.mark.slow
def test_conditional_axes_and_further_blocks_are_drawn_and_learned_from() -> None:
    blocks = (
        "+sweep.axes={parallel.world_size:[2],parallel.pipeline_parallel_size:[1,2],"
        "parallel.schedule:{values:[gpipe,zero-bubble],when:'parallel.pipeline_parallel_size == 2'}}"
    )
    spaces = "+sweep.spaces=[{axes:{training.learning_rate:{low:1e-4,high:1e-3}}}]"
    sweep = LossSweep(*BASE, blocks, spaces, "search=bayes", "search.objective=loss", "search.min_gain=0")
    readings, _ = sweep.searched(14)
    points = points_of(readings)
    assert {"parallel.world_size": 2, "parallel.pipeline_parallel_size": 1} in points
    assert any(point.get("parallel.schedule") == "zero-bubble" for point in points)
    assert sum("training.learning_rate" in point for point in points) > 3


@pytest.mark.parametrize(("program", "has_unit"), [((), True), (("trainer=command", "trainer.command=[x]"), False)])
def test_the_end_says_which_point_was_best(program: tuple[str, ...], has_unit: bool) -> None:
    """The unit of a loss that another program prints is its own."""
    sweep = LossSweep(*LOSS, "search=random", *program)
    readings, _ = sweep.searched(4)
    (lesson,) = sweep.search.lessons(readings)
    assert lesson.startswith("Best of 4 measured points: ")
    assert ("nats per token" in lesson) is has_unit
    assert sweep.search.lessons([]) == []


def test_several_objectives_make_a_front_of_what_no_other_point_beats() -> None:
    axes = "+sweep.axes={parallel.world_size:[1,2,4,8],batch.micro_batch_size:[1,2]}"
    sweep = LossSweep(*BASE, axes, "search=pareto", "search.objective=[step_time,energy]")
    readings, _ = sweep.searched(20)
    assert "measured points beats this one in step_time" in sweep.search.lessons(readings[:1])[0]
    heading, *front = sweep.search.lessons(readings)
    assert heading.startswith(f"No other of {len(readings)} measured points beats these {len(front)} in step_time and")
    assert all("step_time" in line and "J per token" in line for line in front)


def test_a_training_that_diverges_is_worse_than_any_other_and_does_not_stop_the_search() -> None:
    def diverging(experiment: Experiment) -> float:
        return float("nan") if experiment.training.learning_rate > 1e-3 else bowl(experiment)

    sweep = LossSweep(*LOSS, "search=bayes", "search.min_gain=0", loss=diverging)
    readings, _ = sweep.searched(16)
    assert len(readings) == 16
    assert "nan" not in sweep.search.lessons(readings)[0]


def test_seeds_are_given_to_the_better_half_and_a_point_counts_by_their_mean() -> None:
    sweep = LossSweep(*LOSS, "search=random", "search.num_seeds=3", "sweep.max_trials=24")
    readings, _ = sweep.searched(24)
    seeds: dict[tuple[float, int], set[int]] = {}
    losses: dict[tuple[float, int], float] = {}
    for experiment in (reading.experiment for reading in readings if reading.experiment):
        point = (experiment.training.learning_rate, experiment.batch.global_batch_size)
        seeds.setdefault(point, set()).add(experiment.training.seed)
        losses[point] = bowl(experiment)
    assert seeds[min(losses, key=losses.__getitem__)] == {1234, 1235, 1236}
    assert seeds[max(losses, key=losses.__getitem__)] == {1234}
    assert "the mean of 3 seeds" in sweep.search.lessons(readings)[0]


def test_a_grid_with_seeds_asks_for_those_of_the_better_half_alone() -> None:
    axes = "+sweep.axes={training.learning_rate:[1e-5,1e-4,1e-3,1e-2]}"
    sweep = LossSweep(*BASE, axes, "search.objective=loss", "search.num_seeds=2")
    assert isinstance(sweep.search, AxisSearch)
    readings, answer = sweep.searched(50, at_once=4)
    assert len(readings) == 5 + 3
    assert answer.finished == "every listed point was tried"


def test_a_kind_of_search_that_does_not_draw_is_refused_and_not_taken_for_one_that_learns() -> None:
    sweep = LossSweep(*LOSS, "search=random")
    assert isinstance(sweep.search, AxisSearch)
    readings = sweep.searched(12)[0]
    listing = replace(sweep.search, plan=sweep.search.plan.model_copy(update={"kind": "planner"}))
    with pytest.raises(KeyError, match="planner"):
        listing.ask(readings, 1)


def test_what_diverged_gets_no_further_seed_though_others_diverged_too() -> None:
    axes = "+sweep.axes={training.learning_rate:[1e-5,1e-4,1e-3,1e-2]}"

    def diverging(experiment: Experiment) -> float:
        return bowl(experiment) if experiment.training.learning_rate == 1e-4 else float("nan")

    sweep = LossSweep(*BASE, axes, "search.objective=loss", "search.num_seeds=2", loss=diverging)
    readings, _ = sweep.searched(50, at_once=4)
    seeds = [reading.trial.point for reading in readings if "training.seed" in reading.trial.point]
    assert seeds == [{"training.learning_rate": 1e-4, "training.seed": 1235}]


def test_points_that_cannot_exist_are_none_of_the_trials_that_a_sweep_may_have() -> None:
    axes = "+sweep.axes={parallel.world_size:[1,2,3,5]}"
    sweep = LossSweep(*BASE, axes, "search.objective=loss", "search.num_seeds=2", "sweep.max_trials=3")
    planned = (TrialReading(folder=NOWHERE, experiment=None, trial=trial) for trial in sweep.record.trials)
    impossible = [each for each in planned if not each.trial.selected]
    assert [each.outcome for each in impossible] == [Outcome.INFEASIBLE] * 2
    answer = sweep.search.ask([*sweep.first(), *impossible], 5)
    assert [proposal.point["training.seed"] for proposal in answer.proposals] == [1235]


def test_a_grid_without_seeds_needs_no_search() -> None:
    assert isinstance(LossSweep("sweep=smoke").search, Listed)


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (("search=random", "sweep.points=[]"), "search.kind"),
        (("search=random", "sweep.points=[]", ZIP, "training.weight_decay=0.7"), "sweep.zip"),
        (("search=random", "+sweep.axes={batch.micro_batch_size:[two]}"), "batch.micro_batch_size"),
        (("search=random", "+sweep.axes={training.seed:{low:-9,high:1}}"), "training.seed"),
        (("search=random", "+sweep.axes={batch.micro_size:[2]}"), "sweep.axes"),
        (("search=pareto", "search.objective=loss"), "search.objective"),
        (("search.objective=[loss,loss]",), "search.objective"),
        (("search=bayes", "search.sampler=Tpe"), "search.sampler"),
        (("search=bayes", "search.sampler=GPSampler"), "search.sampler"),
        (("search.pruner=median",), "search.pruner"),
        (("search.objective=speed",), "search.objective"),
        (("search.tokens=0.5",), "search.tokens"),
        (("search.objective=loss", "search.tokens=1e6", "training.num_steps=9"), "search.tokens"),
        (("search.objective=loss", "+sweep.axes={batch.global_batch_size:[8,16]}"), "search.tokens"),
        (("search.objective=loss", "+sweep.axes={data.seed:[1]}"), "search.objective"),
        (("search.objective=step_time", "+sweep.axes={batch.global_batch_size:[8,16]}"), "search.objective"),
        (("search.objective=dollars", "cluster.device.price_per_hour=null"), "cluster.device.price_per_hour"),
    ],
)
def test_a_search_that_cannot_be_is_refused_before_the_first_job(overrides: tuple[str, ...], key: str) -> None:
    with refused(ConfigError, key):
        LossSweep("sweep=smoke", *overrides)
