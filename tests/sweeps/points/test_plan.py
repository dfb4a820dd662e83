"""Every point of a sweep becomes a row: estimated, or infeasible with its reason."""

from __future__ import annotations

import pytest

from conf.errors import ConfigError, UsageError
from conf.types.schema import Value
from sweeps.points.plan import plan_sweep, trial_of
from sweeps.trial import SweepFolder, SweepRecord
from tests.composed import compose_tree, composed
from tests.messages import refused


@pytest.fixture(scope="module")
def proxy_175b() -> SweepRecord:
    return plan_sweep(composed(["sweep=175b"]), proxy=True, git_sha="abc")


def test_the_full_size_points_are_estimated_and_what_does_not_fit_says_by_how_much(proxy_175b: SweepRecord) -> None:
    assert all(trial.estimate for trial in proxy_175b.plan)
    short = [trial for trial in proxy_175b.plan if trial.infeasible_reason]
    assert short
    for trial in short:
        assert trial.estimate is not None
        assert trial.infeasible_reason is not None
        assert f"{trial.estimate.shortfall_bytes / 2**30:.1f} GiB short" in trial.infeasible_reason
        assert not trial.selected


def test_the_proxy_varies_every_axis(proxy_175b: SweepRecord) -> None:
    measured = [trial.experiment for trial in proxy_175b.trials if trial.selected and trial.experiment]
    assert {point.parallel.tensor_parallel_size for point in measured} == {1, 2, 4}
    assert {point.parallel.pipeline_parallel_size for point in measured} == {1, 2, 4}
    assert {point.data_parallel_size for point in measured} == {1, 2}
    assert {point.batch.micro_batch_size for point in measured} == {1, 2, 4}
    assert {point.parallel.sequence_parallel for point in measured} == {False, True}
    assert {point.parallel.recompute for point in measured} == {"none", "selective", "full"}
    assert {point.parallel.zero_stage for point in measured} == {0, 1}
    assert {point.model.name for point in measured} == {"gpt-175b-proxy"}
    assert 14 <= len(measured) <= 18


def test_a_combination_that_cannot_exist_is_a_row(proxy_175b: SweepRecord) -> None:
    (impossible,) = [trial for trial in proxy_175b.trials if trial.experiment is None]
    assert impossible.infeasible_reason is not None
    assert "is not a multiple of" in impossible.infeasible_reason


def test_exactly_one_trial_is_the_baseline(proxy_175b: SweepRecord) -> None:
    assert sum(trial.is_baseline for trial in proxy_175b.plan) == 1
    assert sum(trial.is_baseline for trial in proxy_175b.trials) == 1


def test_trial_ids_are_unique(proxy_175b: SweepRecord) -> None:
    for trials in (proxy_175b.plan, proxy_175b.trials):
        assert len({trial.trial_id for trial in trials}) == len(trials)


def test_the_best_predicted_points_are_measured_and_the_baseline_always() -> None:
    record = plan_sweep(composed(["sweep=175b", "sweep.max_trials=3"]), proxy=False, git_sha="abc")
    rates = {t.trial_id: t.estimate.model_flops_per_second_per_device for t in record.trials if t.estimate}
    runnable = [trial for trial in record.trials if trial.infeasible_reason is None]
    selected = [trial for trial in runnable if trial.selected]
    assert len(selected) == 3
    assert any(trial.is_baseline for trial in selected)
    chosen = min(rates[trial.trial_id] for trial in selected if not trial.is_baseline)
    assert all(rates[trial.trial_id] <= chosen for trial in runnable if not trial.selected)


def test_an_override_of_an_axis_restricts_plan_and_proxy() -> None:
    record = plan_sweep(composed(["sweep=175b", "parallel.tensor_parallel_size=4"]), proxy=True, git_sha="abc")
    for trial in (*record.plan, *record.trials):
        assert trial.experiment is None or trial.experiment.parallel.tensor_parallel_size == 4
    assert any(trial.selected for trial in record.trials)


def test_the_cluster_of_the_plan_can_be_chosen_and_the_proxy_stays_local() -> None:
    record = plan_sweep(composed(["sweep=175b", "cluster=dgx-h100"]), proxy=True, git_sha="abc")
    assert {t.experiment.cluster.name for t in record.plan if t.experiment} == {"dgx-h100"}
    assert {t.experiment.cluster.name for t in record.trials if t.experiment} == {"local"}


def test_a_sweep_without_a_proxy_says_so() -> None:
    with refused(UsageError):
        plan_sweep(composed(["sweep=smoke"]), proxy=True, git_sha="abc")


def test_a_wrong_value_on_an_axis_is_an_error_not_a_row() -> None:
    with refused(ConfigError, "batch.micro_batch_size"):
        plan_sweep(composed(["sweep=175b", "sweep.axes={batch.micro_batch_size:[two]}"]), proxy=False, git_sha="abc")


def test_a_record_survives_the_disk(tmp_path: object, proxy_175b: SweepRecord) -> None:
    folder = SweepFolder(str(tmp_path))
    folder.write_record(proxy_175b)
    assert folder.read_record() == proxy_175b


def test_a_value_that_the_proxy_does_not_know_is_refused_and_not_ignored() -> None:
    with refused(ConfigError, "batch.micro_batch_size"):
        plan_sweep(composed(["sweep=175b", "batch.micro_batch_size=7"]), proxy=True, git_sha="abc")


def test_a_record_says_what_was_overridden_of_the_sweep_and_not_of_its_jobs() -> None:
    overrides = ["sweep=175b", "batch.micro_batch_size=2", "slurm=frontier", "output_dir=elsewhere"]
    record = plan_sweep(composed(overrides), proxy=True, git_sha="abc")
    assert record.overrides == ("batch.micro_batch_size=2",)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["175b", "mixtral"])
def test_how_the_user_trains_holds_for_the_proxy_too_and_how_the_full_size_does_not(name: str) -> None:
    """The full size takes few steps, as each takes minutes; a proxy's steps are its own."""
    for overrides, num_steps in (([], {"175b": 10, "mixtral": 5}[name]), (["training.num_steps=7"], 7)):
        record = plan_sweep(composed([f"sweep={name}", *overrides]), proxy=True, git_sha="abc")
        assert {trial.experiment.training.num_steps for trial in record.trials if trial.experiment} == {num_steps}


def test_a_device_that_is_chosen_for_the_plan_is_not_the_proxys() -> None:
    for override in ("device=h100-80gb", "device@cluster.device=h100-80gb"):
        record = plan_sweep(composed(["sweep=175b", override]), proxy=True, git_sha="abc")
        assert {t.experiment.cluster.device.name for t in record.plan if t.experiment} == {"H100-80GB-SXM"}
        assert {t.experiment.cluster.device.name for t in record.trials if t.experiment} == {"CPU rank"}


def test_the_record_keeps_no_password() -> None:
    address = "tracking.uri=https://ada:secret@runs.example"
    record = plan_sweep(composed(["sweep=smoke", "tracking=server", address]), proxy=False, git_sha="abc")
    assert record.tracking.uri == "https://runs.example"
    assert "secret" not in record.model_dump_json()


def test_a_point_of_many_keys_that_cannot_exist_has_a_name_that_a_folder_may_have() -> None:
    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size", "virtual_pipeline_size")
    point: dict[str, Value] = {f"parallel.{name}": 3 for name in (*sizes, "recompute_every", "zero_stage")}
    point |= {"parallel.sequence_parallel": False, "parallel.schedule": "1f1b", "parallel.world_size": 2}
    point |= {
        "batch.micro_batch_size": 1,
        "batch.global_batch_size": 8,
        "training.learning_rate": 0.00012345678901234567,
    }
    names = [trial_of(compose_tree(["sweep=smoke"]), {**point, "training.seed": seed}, "").trial_id for seed in (1, 2)]
    assert len(set(names)) == 2
    assert all(name.startswith("infeasible-") and len(name) < 255 for name in names)
