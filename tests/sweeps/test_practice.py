"""The practice of runs, and how one's own move predictions."""

from __future__ import annotations

from math import exp, log

import pytest

from conf.own_files import at_hand
from conf.plan.setup import Setup
from conf.types.cluster_spec import OwnLevel
from costs import IMPLEMENTATIONS, estimate
from sweeps.confidence import interval_around, interval_of
from sweeps.practice import PRACTICES, Level, load_levels, own_level, practice_of
from tests.composed import load

SIZES = ["parallel.world_size=64", "parallel.tensor_parallel_size=2", "parallel.pipeline_parallel_size=4"]
ON_GPUS = ["model=gpt-22b", "cluster=selene", "precision=bf16", *SIZES, "batch.global_batch_size=64"]
TITAN = ["model=llama-3.1-8b", "cluster=selene", "precision=bf16", "parallel.world_size=8", "trainer=torchtitan"]
LEVEL = Level(low=-0.1, middle=0.1, high=0.7, between=0.4, within=0.2, tables=20, rows=100)


@pytest.mark.parametrize(
    ("overrides", "implementation", "practice"),
    [
        (ON_GPUS, "trisweep", "recipe"),
        (ON_GPUS, "megatron-core", "first-run"),
        ([], "trisweep", "first-run"),  # no published row was measured on a CPU
        ([*ON_GPUS, "trainer.practice=recipe"], "trisweep", "recipe"),
        (TITAN, "torchtitan", "first-run"),
        ([*TITAN, "trainer.practice=tuned"], "torchtitan", "tuned"),
    ],
)
def test_a_trainer_that_is_not_ours_is_at_its_first_run_unless_somebody_says_more(
    overrides: list[str], implementation: str, practice: str
) -> None:
    experiment = load(overrides).experiment()
    assert practice_of(experiment, implementation) == practice
    again = type(experiment).model_validate_json(experiment.model_dump_json())
    assert practice_of(again, implementation) == practice, "a stored trial says it too"
    assert again.fingerprint == experiment.fingerprint


def test_what_a_trainer_is_said_to_be_tuned_to_changes_no_trial() -> None:
    plain, said = (load([*TITAN, *words]).experiment() for words in ([], ["trainer.practice=tuned"]))
    assert plain.fingerprint == said.fingerprint
    narrow, wide = (interval_around(1.0, each, "torchtitan") for each in (said, plain))
    assert narrow.high_seconds < wide.high_seconds


def test_one_run_moves_all_predictions_most_of_the_way_and_more_runs_further() -> None:
    one, five = (LEVEL.own([log(1.5)] * number) for number in (1, 5))
    assert exp(0.1) < one.factor < five.factor < 1.5
    assert (one.num_runs, five.num_runs) == (1, 5)
    assert one.factor == pytest.approx(exp(0.1 + 0.8 * (log(1.5) - 0.1)))  # 0.4**2 / (0.4**2 + 0.2**2)
    assert LEVEL.half_after(5) < LEVEL.half_after(1) < (LEVEL.high - LEVEL.low) / 2 + 0.1


def test_a_run_that_went_wrong_does_not_move_all_others_as_far() -> None:
    """Beyond its interval it counts as at the interval's end, and among several as one of them."""
    assert LEVEL.own([log(30.0)]) == LEVEL.own([0.7])
    assert LEVEL.own([0.1, 0.12, log(30.0)]).factor < exp(0.13)


def with_level(setup: Setup, trainer: str, factor: float) -> Setup:
    levels = {trainer: OwnLevel(factor=factor, num_runs=2)}
    efficiency = setup.cluster.efficiency.model_copy(update={"levels": levels})
    return setup.model_copy(update={"cluster": setup.cluster.model_copy(update={"efficiency": efficiency})})


@pytest.mark.parametrize("factor", [0.8, 1.7])
def test_a_level_moves_every_prediction_of_its_trainer_by_its_factor(factor: float) -> None:
    plain: Setup = load(ON_GPUS).experiment()
    core = IMPLEMENTATIONS["megatron-core"]
    moved = with_level(plain, "megatron-core", factor)
    before, after = estimate(plain, core), estimate(moved, core)
    assert after.step_seconds == pytest.approx(factor * before.step_seconds)
    for name, seconds in after.step_terms.by_term().items():
        assert seconds == pytest.approx(factor * before.step_terms.by_term()[name])
    assert after.stages == before.stages
    assert estimate(moved) == estimate(plain), "of another trainer nothing was measured"
    level = own_level(moved, "megatron-core")
    assert level is not None
    found, half = interval_of(moved, "megatron-core", after), load_levels()["first-run"].half_after(2)
    assert found.high_seconds == pytest.approx(after.step_seconds * exp(half))
    assert found.in_words.startswith("After 2 of your runs: most take 0.")
    assert interval_of(plain, "megatron-core", before).in_words.startswith("Before any of your runs: most first runs")


def test_what_was_learned_is_of_users_makers_and_papers_and_names_its_command() -> None:
    levels = load_levels()
    assert list(levels) == list(PRACTICES.values())
    assert levels["tuned"].high < levels["recipe"].high < levels["first-run"].high
    assert levels["tuned"].between < levels["recipe"].between < levels["first-run"].between
    assert at_hand("sweeps/practices.yaml").read_text().startswith("# Written by `python -m benchmarks.who_measured`")
