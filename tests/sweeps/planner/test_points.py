"""What a sweep with search=planner measures: the best that the trainer runs, and probes of what was assumed."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from conf.errors import ConfigError, InfeasiblePlan
from conf.plan.experiment import Experiment, ExperimentParts
from costs import estimate
from sweeps.planner.choosing.choice import choose_plans
from sweeps.planner.choosing.objectives import Training
from sweeps.planner.plans.strategy import Strategy
from sweeps.planner.points import PROBES, PlannedPoint, _best, _probes, planned_points, refusal_of
from sweeps.planner.request import search_request
from sweeps.points.plan import plan_sweep
from sweeps.trial import SweepRecord, Trial
from tests.composed import composed, load
from tests.messages import refused
from tests.sweeps.planner.counted import counted_seconds

ON_FRONTIER = ["sweep=175b", "search=planner", "parallel.context_parallel_size=1", "parallel.recompute_every=1"]


@pytest.fixture(scope="module")
def planned() -> SweepRecord:
    return plan_sweep(composed(ON_FRONTIER), proxy=True, git_sha="abc")


def chosen(trials: tuple[Trial, ...]) -> list[Trial]:
    return [trial for trial in trials if trial.chosen_because]


@pytest.mark.slow
def test_the_best_plans_are_taken_best_first_and_all_of_them_can_be_trained(planned: SweepRecord) -> None:
    asked = search_request(composed(ON_FRONTIER))
    settings, (space, *_) = asked.settings, asked.spaces
    best = [trial for trial in chosen(planned.plan) if str(trial.chosen_because).startswith("predicted ")]
    assert len(best) == settings.search.top_k
    predicted = [trial.estimate for trial in best if trial.estimate]
    strategies = [Strategy(each.parallel, each.batch) for trial in best if (each := trial.experiment)]
    assert [PlannedPoint(strategy, "").values() for strategy in strategies] == [trial.point for trial in best]
    slow = settings.model_copy(update={"cluster": space.with_fewest_ports})
    fewest = [estimate(strategy.experiment(slow)) for strategy in strategies]
    counted = [
        counted_seconds(strategy, each, settings.model.num_layers, slower)
        for strategy, each, slower in zip(strategies, predicted, fewest, strict=True)
    ]
    assert counted == sorted(counted)
    assert all(space.odds.likelihood(each.peak_memory_bytes, each.memory_capacity_bytes) >= 0.9 for each in predicted)
    assert re.search(r"; left out: \S+, [\d.]+% faster on paper, \d\d% likely to fit", str(best[0].chosen_because))
    assert all(trial.experiment for trial in chosen(planned.plan))


@pytest.mark.slow
def test_no_grid_point_that_the_trainer_runs_is_predicted_faster_than_the_planners_best(planned: SweepRecord) -> None:
    grid = plan_sweep(composed(["sweep=175b"]), proxy=False, git_sha="abc")
    world_size = max(trial.experiment.parallel.world_size for trial in grid.plan if trial.experiment)
    listed = [
        trial.estimate.step_seconds
        for trial in grid.trials
        if trial.estimate and trial.infeasible_reason is None and trial.experiment
        if trial.experiment.parallel.world_size == world_size
    ]
    best = min(trial.estimate.step_seconds for trial in chosen(planned.plan) if trial.estimate)
    assert best < min(listed)


@pytest.mark.slow
def test_every_probe_differs_from_the_best_in_the_knob_that_it_names(planned: SweepRecord) -> None:
    best, *others = chosen(planned.plan)
    probes = [trial for trial in others if trial.chosen_because and "tests" in trial.chosen_because]
    assert len(probes) >= 3
    assert best.experiment is not None
    for trial in probes:
        assert trial.experiment is not None
        assert trial.chosen_because is not None
        knob = trial.chosen_because.split()[0]
        assert knob in PROBES
        part = "batch" if knob == "micro_batch_size" else "parallel"
        assert getattr(getattr(trial.experiment, part), knob) != getattr(getattr(best.experiment, part), knob)


@pytest.mark.slow
def test_the_baseline_is_there_and_the_points_are_distinct(planned: SweepRecord) -> None:
    for trials in (planned.plan, planned.trials):
        assert sum(trial.is_baseline for trial in trials) == 1
        assert len({trial.trial_id for trial in trials}) == len(trials)
        assert all(trial.infeasible_reason is None for trial in chosen(trials))
        assert all(trial.selected for trial in chosen(trials))


@pytest.mark.slow
def test_the_proxy_is_planned_on_this_machines_cluster(planned: SweepRecord) -> None:
    models = {trial.experiment.model.name for trial in planned.trials if trial.experiment}
    assert models == {"gpt-175b-proxy"}
    assert {trial.experiment.cluster.name for trial in planned.trials if trial.experiment} == {"local"}
    assert len(chosen(planned.trials)) >= 5


@pytest.mark.slow
def test_overrides_pin_knobs_of_what_is_planned() -> None:
    pinned = ["parallel.tensor_parallel_size=8", "parallel.schedule=1f1b"]
    record = plan_sweep(composed([*ON_FRONTIER, *pinned]), proxy=False, git_sha="abc")
    sizes = {trial.experiment.parallel.tensor_parallel_size for trial in chosen(record.trials) if trial.experiment}
    assert sizes == {8}


@pytest.mark.slow
def test_a_record_reads_back(planned: SweepRecord) -> None:
    assert SweepRecord.model_validate_json(planned.model_dump_json()) == planned


@pytest.mark.slow
def test_no_probe_changes_what_is_pinned() -> None:
    pins = {"parallel.sequence_parallel": False, "parallel.schedule": "1f1b", "batch.micro_batch_size": 2}
    overrides = [f"{key}={str(value).lower()}" for key, value in pins.items()]
    record = plan_sweep(composed([*ON_FRONTIER, *overrides]), proxy=False, git_sha="abc")
    found = [trial.point for trial in chosen(record.trials) if not trial.is_baseline]
    assert len(found) > 3
    assert {tuple(point[key] for key in pins) for point in found} == {tuple(pins.values())}


@pytest.mark.thorough  # than the layers of every plan below
@pytest.mark.slow
def test_listed_layers_pin_the_number_of_stages_of_what_is_planned_and_the_baseline_stays() -> None:
    listed = "parallel.layers_per_stage=[12,12,12,12,12,12,12,12]"
    record = plan_sweep(composed([*ON_FRONTIER, listed]), proxy=False, git_sha="abc")
    free = plan_sweep(composed(ON_FRONTIER), proxy=False, git_sha="abc")
    stages = {trial.experiment.parallel.pipeline_parallel_size for trial in chosen(record.trials) if trial.experiment}
    assert stages == {8}
    assert [trial.trial_id for trial in record.trials if trial.is_baseline] == [
        trial.trial_id for trial in free.trials if trial.is_baseline
    ]


@pytest.mark.slow
def test_listed_layers_that_are_uneven_are_those_of_every_plan_that_is_taken() -> None:
    listed = [13, *[12] * 6, 11]
    pinned = f"parallel.layers_per_stage=[{','.join(map(str, listed))}]"
    record = plan_sweep(composed([*ON_FRONTIER, pinned, "parallel.schedule=1f1b"]), proxy=False, git_sha="abc")
    taken = [trial.experiment for trial in chosen(record.trials) if not trial.is_baseline and trial.experiment]
    assert taken
    assert {experiment.layers_per_stage for experiment in taken} == {tuple(listed)}


@pytest.mark.slow
def test_plans_of_one_replica_are_taken_once_whatever_the_zero_stage() -> None:
    sizes = ["parallel.tensor_parallel_size=2", "parallel.pipeline_parallel_size=4"]
    asked = search_request(composed(["model=gpt-175b-proxy", "cluster=local", "precision=fp32", *sizes]), devices="8")
    plan = asked.settings.search.model_copy(update={"top_k": 6})
    points = planned_points(asked.spaces[0], asked.settings, plan)
    assert len(points) >= 6
    assert {point.strategy.parallel.data_parallel_size for point in points} == {1}
    assert {point.strategy.parallel.zero_stage for point in points} == {0}
    assert len({point.strategy for point in points}) == len(points)


THREE = load(["search=planner", "search.top_k=3", "search.num_probes=0"]).search


def test_ranks_that_share_a_sequence_keep_the_zero_stage_that_lets_them_fit() -> None:
    overrides = ["model=llama-3.1-8b", "model.seq_length=32768", "cluster=dgx-h100", "precision=bf16"]
    pins = ["batch.global_batch_size=1", "parallel.context_parallel_size=8"]
    asked = search_request(composed([*overrides, *pins]), devices="8")
    best = planned_points(asked.spaces[0], asked.settings, THREE)[0].strategy
    parallel = best.parallel
    assert (parallel.data_parallel_size, parallel.num_replicas) == (1, 8)
    assert estimate(best.experiment(asked.settings)).fits


def test_a_pinned_gpipe_is_what_is_planned() -> None:
    pins = ["parallel.schedule=gpipe", "parallel.pipeline_parallel_size=2", "batch.global_batch_size=8"]
    asked = search_request(composed(["model=gpt-175b-proxy", "cluster=local", "precision=fp32", *pins]), devices="4")
    points = planned_points(asked.spaces[0], asked.settings, THREE)
    assert {point.strategy.parallel.schedule for point in points} == {"gpipe"}


def test_several_stages_are_probed_though_they_cannot_have_the_zero_stage_of_the_best() -> None:
    overrides = ["model=llama-3.1-8b", "cluster=dgx-h100", "precision=bf16", "batch.global_batch_size=8"]
    asked = search_request(composed([*overrides, "parallel.tensor_parallel_size=1"]), devices="8")
    space, parts = asked.spaces[0], asked.settings
    fully = replace(space, pinned={**space.pinned, "zero_stage": 3, "pipeline_parallel_size": 1})
    probes = _probes(space, [found.strategy for found in _best(fully, parts, 1)], parts)
    assert {probe.strategy.parallel.pipeline_parallel_size for probe in probes} == {1, 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ["parallel.zero_stage=3", "watch.compare_replicas_every=10"],
    ],
)
def test_what_goes_with_no_plan_is_its_own_reason(overrides: list[str]) -> None:
    with refused(InfeasiblePlan, "watch.compare_replicas_every"):
        plan_sweep(composed([*ON_FRONTIER, *overrides]), proxy=False, git_sha="abc")


@pytest.mark.thorough  # than the plans that are taken best first
@pytest.mark.slow
def test_plans_that_fit_and_are_all_refused_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """97 layers are not even on any number of stages but 1, which has too little memory without ZeRO-2."""

    def refuse_uneven(strategy: Strategy, parts: ExperimentParts) -> Experiment:
        experiment = of_strategy(strategy, parts)
        layers = experiment.layers_per_stage
        if len(set(layers)) > 1 or experiment.parallel.zero_stage > 1:
            raise InfeasiblePlan("parallel.layers_per_stage", layers, "is uneven", "Use another number of stages.")
        return experiment

    of_strategy = Strategy.experiment
    monkeypatch.setattr(Strategy, "experiment", refuse_uneven)
    with refused(InfeasiblePlan, "parallel.layers_per_stage"):
        plan_sweep(composed([*ON_FRONTIER, "model.num_layers=97"]), proxy=False, git_sha="abc")


@pytest.mark.slow
def test_a_model_that_fits_nowhere_needs_more_devices() -> None:
    large = ["model=gpt-1t", "parallel.world_size=8", "parallel.schedule=1f1b"]
    with refused(InfeasiblePlan, "search.kind"):
        plan_sweep(composed([*ON_FRONTIER, *large]), proxy=False, git_sha="abc")


@pytest.mark.slow
def test_a_planner_that_takes_nothing_is_refused() -> None:
    with refused(ConfigError, "search.top_k"):
        load([*ON_FRONTIER, "search.top_k=0"])


MEGATRON_JOBS = {
    "dense": ["model=llama-3.1-70b", "cluster=dgx-h100", "parallel.world_size=32", "batch.global_batch_size=130"],
    "long": ["model=llama-3.1-8b", "cluster=dgx-h100", "model.seq_length=131072", "parallel.world_size=16"],
    "mixture": ["model=mixtral-8x7b", "cluster=dgx-h100", "parallel.world_size=16", "parallel.zero_stage=1"],
}


@pytest.mark.parametrize("job", MEGATRON_JOBS.values(), ids=MEGATRON_JOBS)
def test_what_a_search_proposes_for_megatron_core_is_printed_as_its_flags(job: list[str]) -> None:
    asked = search_request(composed([*job, "precision=bf16"]), implementation="megatron-core")
    flags = load([*job, "precision=bf16", "trainer=megatron-lm"])
    choice = choose_plans(asked.spaces, "time", Training(), 10)
    caught = {str(refusal_of(candidate.strategy, flags)) for candidate in (*choice.best, *choice.families)}
    assert caught == {"None"}


@pytest.mark.slow
def test_a_sweep_measures_the_plan_that_a_search_proposes_with_uneven_stages_too() -> None:
    plain = ["model=qwen3-30b-a3b", "cluster=dgx-h200", "batch.global_batch_size=512", "precision=bf16"]
    plain += ["parallel.world_size=8", "parallel.pipeline_parallel_size=4", "parallel.context_parallel_size=1"]
    plain += ["parallel.recompute_every=1"]
    asked = search_request(composed(plain))
    best = choose_plans(asked.spaces, "time", Training(), 1).best[0]
    assert best.strategy.parallel.layers_per_stage is not None
    trials = plan_sweep(composed(["sweep=smoke", *plain, "search=planner"]), proxy=False, git_sha="abc").trials
    first = next(trial for trial in trials if "the best of all plans" in str(trial.chosen_because))
    assert first.estimate is not None
    assert first.estimate.step_seconds == best.step_seconds


def test_where_no_plan_is_likely_to_fit_those_that_fit_on_paper_are_measured_and_that_is_said() -> None:
    job = ["model=gpt-22b", "cluster=selene", "precision=bf16", "batch.global_batch_size=64", "parallel.world_size=16"]
    sizes = ["parallel.tensor_parallel_size=4", "parallel.pipeline_parallel_size=2", "batch.micro_batch_size=8"]
    even = ["parallel.layers_per_stage=null", "parallel.sequence_parallel=true", "parallel.virtual_pipeline_size=1"]
    others = ["parallel.recompute=none", "parallel.zero_stage=1", "parallel.context_parallel_size=1"]
    memory = [f"cluster.device.memory_bytes={74 * 2**30}", "parallel.offload_optimizer=false", "search=planner"]
    asked = search_request(composed([*job, *sizes, *even, *others, *memory]))
    first = planned_points(asked.spaces[0], asked.settings, asked.settings.search)[0]
    assert re.search(r"; no plan is 90% likely to fit, and it is [1-8]\d% likely to fit$", first.because)
