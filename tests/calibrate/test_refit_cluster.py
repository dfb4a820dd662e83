"""Refitting the cost model's constants to trials that the cost model itself made up with other constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from calibrate.refit_cluster import (
    CONSTANTS,
    FEWEST_TO_FIT,
    FEWEST_TO_LEAVE_ONE_OUT,
    FinishedTrial,
    Refit,
    constants_by,
    present_values,
    priced_runs,
    refit_cluster,
)
from calibrate.robust_fit import Constant, Floats, refit
from conf.compose.load import settings_of
from conf.compose.tree import with_values
from conf.errors import UsageError
from conf.plan.experiment import Experiment
from conf.types.cluster_spec import ClusterSpec
from costs.setting import SCALE
from costs.trainers import TRISWEEP
from tests.composed import compose_tree
from tests.messages import refused

SMALL = {"model.hidden_size": 512, "model.ffn_hidden_size": 2048}
LONG = {"model.hidden_size": 2048, "model.ffn_hidden_size": 8192, "model.seq_length": 16384}
BASE = (
    *("model=gpt-175b-proxy", "cluster=selene", "batch=proxy", "precision=bf16"),
    *("cluster.num_nodes=8", "model.hidden_size=8192", "model.ffn_hidden_size=32768", "model.seq_length=1024"),
)
POINTS: tuple[dict[str, int | str | bool], ...] = (
    {},
    {"batch.micro_batch_size": 4},
    {"parallel.world_size": 8, "parallel.tensor_parallel_size": 8},
    {"parallel.world_size": 8},
    {"parallel.world_size": 8, "model.seq_length": 128},  # too little computation to hide what replicas send
    {"parallel.world_size": 4, "parallel.pipeline_parallel_size": 4},
    {**LONG},
    {**LONG, "parallel.recompute": "full"},
    {**SMALL},
    {**SMALL, "batch.micro_batch_size": 8},
)
TRUTH = {"matmul": 0.45, "attention": 0.3, "memory": 0.6, "link": 0.5, "kernel_seconds": 9e-6}


@pytest.fixture(scope="module")
def experiments() -> list[Experiment]:
    tree = compose_tree(BASE)
    return [settings_of(with_values(tree, point)).experiment() for point in POINTS]


@pytest.fixture(scope="module")
def cluster(experiments: list[Experiment]) -> ClusterSpec:
    return experiments[0].cluster


def measured(
    experiments: Sequence[Experiment], noise: Sequence[float] = (), truth: Mapping[str, float] = TRUTH
) -> list[FinishedTrial]:
    """Trials that took what the model says with the constants of `truth`, times one plus the noise."""
    trials = [FinishedTrial(one.label, one, 1.0, None, True, TRISWEEP) for one in experiments]
    seconds = priced_runs(experiments[0].cluster, trials).step_seconds(constants_by(truth))
    taken = seconds * (1 + np.resize(noise or [0.0], len(trials)))
    return [replace(trial, step_seconds=float(each)) for trial, each in zip(trials, taken, strict=True)]


@pytest.fixture(scope="module")
def found(cluster: ClusterSpec, experiments: list[Experiment]) -> Refit:
    return refit_cluster(cluster, measured(experiments))


@pytest.mark.slow
def test_the_constants_that_made_the_times_are_found_again(found: Refit) -> None:
    assert set(found.fitted_names) >= set(TRUTH)
    assert {name: found.after[name] for name in TRUTH} == pytest.approx(TRUTH, rel=0.1)
    assert found.error_before > 0.3
    assert found.error_after < 0.01


@pytest.mark.thorough  # than the constants that are found again
@pytest.mark.slow
def test_noise_moves_the_constants_little_and_leaving_one_out_shows_it(
    cluster: ClusterSpec, experiments: list[Experiment]
) -> None:
    noisy = refit_cluster(cluster, measured(experiments, [0.04, -0.03, 0.02, -0.04, 0.03]))
    assert noisy.after["matmul"] == pytest.approx(TRUTH["matmul"], rel=0.1)
    assert noisy.error_after < 0.04
    assert noisy.error_left_out is not None
    assert noisy.error_after < noisy.error_left_out < noisy.error_before


@pytest.mark.thorough  # than test_the_constants_that_made_the_times
@pytest.mark.slow
def test_one_trial_that_went_wrong_does_not_spoil_the_fit(cluster: ClusterSpec, experiments: list[Experiment]) -> None:
    trials = measured(experiments)
    trials[1] = FinishedTrial(trials[1].label, trials[1].setup, 10 * trials[1].step_seconds, None, True, TRISWEEP)
    found = refit_cluster(cluster, trials)
    assert found.after["matmul"] == pytest.approx(TRUTH["matmul"], rel=0.1)


@pytest.mark.slow
def test_constants_without_effect_or_alike_are_left_alone_and_say_so(
    cluster: ClusterSpec, experiments: list[Experiment]
) -> None:
    alone = [trial for trial in measured(experiments) if trial.setup.parallel.world_size == 1]
    found = refit_cluster(cluster, alone * 2)  # what is left out has its like among the others
    assert found.left_alone["link"] == "hardly any effect here (0.0 %)"
    assert found.after["link"] == cluster.efficiency.link
    assert "link" not in found.fitted_names


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 3, FEWEST_TO_FIT - 1])
def test_few_trials_move_all_predictions_by_one_factor_and_no_constant(
    cluster: ClusterSpec, experiments: list[Experiment], number: int
) -> None:
    found = refit_cluster(cluster, measured(experiments)[:number])
    assert found.after == found.before == present_values(cluster.efficiency)
    level = found.levels[TRISWEEP.name]
    assert level.num_runs == number
    assert [each.after for each in found.trials] == pytest.approx([level.factor * each.before for each in found.trials])
    assert found.error_after < found.error_before
    assert (found.error_left_out is None) == (number < FEWEST_TO_LEAVE_ONE_OUT)


@pytest.mark.slow
def test_an_odd_trial_among_few_moves_nothing_far(cluster: ClusterSpec, experiments: list[Experiment]) -> None:
    """Constants that were fitted to three rows, of which one took three times as long, were off by 163 % on others."""
    present = present_values(cluster.efficiency)
    trials = measured(experiments, truth=present)[:3]
    trials[1] = replace(trials[1], step_seconds=3 * trials[1].step_seconds)
    found = refit_cluster(cluster, trials)
    assert found.levels[TRISWEEP.name].factor < 1.25


@pytest.mark.slow
def test_constants_that_predict_runs_no_better_from_others_give_way_to_one_factor(
    cluster: ClusterSpec, experiments: list[Experiment]
) -> None:
    few = experiments[:FEWEST_TO_FIT]
    trials = measured(few, [0.9, 0.2, 0.6, 0.3, 0.8], truth=present_values(cluster.efficiency))
    found = refit_cluster(cluster, trials)
    assert set(found.levels) == {TRISWEEP.name}
    assert found.after == found.before


@pytest.mark.slow
def test_a_further_calibration_does_not_count_what_an_earlier_one_found_twice(
    cluster: ClusterSpec, experiments: list[Experiment]
) -> None:
    trials = measured(experiments)[:2]
    first = refit_cluster(cluster, trials)
    efficiency = cluster.efficiency.model_copy(update={"levels": first.levels})
    again = refit_cluster(cluster.model_copy(update={"efficiency": efficiency}), trials)
    assert again.levels == first.levels
    assert [each.before for each in again.trials] == pytest.approx([each.after for each in first.trials])


@pytest.mark.slow
def test_no_trial_is_said_so(cluster: ClusterSpec) -> None:
    with refused(UsageError):
        refit_cluster(cluster, [])


@pytest.mark.thorough  # than the trial that went wrong
@pytest.mark.slow
def test_trials_whose_ranks_shared_devices_are_shown_and_not_fitted_to(
    cluster: ClusterSpec, experiments: list[Experiment], found: Refit
) -> None:
    trials = measured(experiments)
    sharing = FinishedTrial("shared", trials[0].setup, 99.0, None, False, TRISWEEP)
    both = refit_cluster(cluster, [*trials, sharing])
    assert both.after == found.after
    assert both.trials[-1].left_out is None
    assert both.error_after == found.error_after
    with refused(UsageError):
        refit_cluster(cluster, [sharing])


@pytest.mark.slow
def test_trials_priced_together_cost_what_each_costs_alone(cluster: ClusterSpec, experiments: list[Experiment]) -> None:
    trials = measured(experiments)
    together = priced_runs(cluster, trials).step_seconds(constants_by(TRUTH))
    alone = [float(priced_runs(cluster, [trial]).step_seconds(constants_by(TRUTH))[0]) for trial in trials]
    assert list(together) == pytest.approx(alone, rel=1e-12)


@pytest.mark.slow
def test_a_constant_stops_at_its_bound_and_the_others_make_up_for_it() -> None:
    constants = (Constant("share", 0.01, 1.0, 0.5), Constant("seconds", 1e-7, 1e-2, 0.5))
    work, kernels = np.array([1.0, 4.0, 9.0, 2.0]), np.array([30.0, 10.0, 20.0, 90.0])
    taken = work / 1.5 + kernels * 4e-3

    def ratios(values: Mapping[str, float]) -> Floats:
        return np.log((work / values["share"] + kernels * values["seconds"]) / taken)

    found = refit(ratios, constants, {"share": 0.5, "seconds": 1e-3})
    assert found["share"] == 1.0
    assert found["seconds"] < 4e-3


@pytest.mark.slow
def test_of_constants_that_move_all_trials_alike_the_less_certain_one_moves_more() -> None:
    constants = (Constant("sure", 0.01, 10.0, 0.1), Constant("unsure", 0.01, 10.0, 0.3))

    def ratios(values: Mapping[str, float]) -> Floats:
        return np.full(4, np.log(values["sure"] * values["unsure"] / 2))

    found = refit(ratios, constants, {"sure": 1.0, "unsure": 1.0})
    assert found["sure"] * found["unsure"] == pytest.approx(2.0, rel=0.02)
    assert np.log(found["unsure"]) == pytest.approx(9 * np.log(found["sure"]), rel=0.01)


@pytest.mark.slow
def test_measurements_that_weigh_nothing_move_nothing() -> None:
    constants = (Constant("rate", 0.01, 10.0, 0.3),)

    def ratios(values: Mapping[str, float]) -> Floats:
        return np.array([np.log(values["rate"] / 1.5), np.log(values["rate"] / 0.3)])

    found = refit(ratios, constants, {"rate": 1.0}, weights=np.array([1.0, 0.0]))
    assert found["rate"] == pytest.approx(1.5, rel=0.01)


@pytest.mark.thorough  # than the constants that are found again
@pytest.mark.slow
def test_constants_of_scale_and_of_the_host_are_found_again_from_where_they_usually_are(
    cluster: ClusterSpec, experiments: list[Experiment]
) -> None:
    """A slow host shows in small kernels, and shown communication in large ones beside a network."""
    found = refit_cluster(cluster, measured(experiments, truth={"shown": 0.9, "launch": 3.0}))
    assert (found.before["shown"], found.before["launch"]) == (SCALE.shown, 1.0)
    assert found.after["launch"] == pytest.approx(3.0, rel=0.1)
    assert found.error_after < found.error_before / 3


@pytest.mark.slow
def test_what_a_cluster_states_of_scale_is_where_a_fit_begins_and_what_is_priced(cluster: ClusterSpec) -> None:
    own = cluster.efficiency.model_copy(update={"latency": 3.0})
    assert present_values(own)["latency"] == 3.0
    assert present_values(cluster.efficiency)["latency"] == SCALE.latency


@pytest.mark.slow
def test_every_constant_of_the_cost_model_can_be_fitted(cluster: ClusterSpec) -> None:
    assert {one.name for one in CONSTANTS} == set(type(cluster.efficiency).model_fields) - {
        "source",
        "link_source",
        "runs",
        "levels",
    }
