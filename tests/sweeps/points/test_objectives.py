"""What a sweep seeks, as values of its trials."""

from __future__ import annotations

import math

import pytest

from conf.errors import ConfigError
from conf.types.sweep_spec import Objective, PointSet
from costs import IMPLEMENTATIONS, estimate
from sweeps.points.objectives import final_loss, predicted_value, require_comparable
from tests.composed import compose_tree, load
from tests.messages import refused
from tests.results.conftest import performance
from tests.steps import STEP

HELD_OUT = r"trainer.log.patterns.held_out='val_loss (?P<held_out_loss>\S+)'"
MIXED = (
    *("cluster=selene", "precision=bf16", "batch.global_batch_size=16", "model.num_layers=3"),
    *("parallel.world_size=24", "parallel.pipeline_parallel_size=3", "mixed=dgx-h100:8+selene:16"),
)


@pytest.mark.parametrize("objective", ["dollars", "energy"])
def test_money_and_energy_of_a_mixed_job_are_those_of_all_its_devices(objective: Objective) -> None:
    experiment = load(MIXED).experiment()
    predicted = estimate(experiment, IMPLEMENTATIONS[experiment.trainer.costs_of])
    per_second = 0.0
    for block in experiment.blocks:
        price = block.cluster.device.price_per_hour
        assert price is not None
        of_a_device = block.cluster.device.watts if objective == "energy" else price / 3600 * 1e12
        per_second += block.num_devices * of_a_device
    assert predicted_value(objective, experiment, predicted) == pytest.approx(per_second / predicted.tokens_per_second)


def test_money_is_not_sought_where_a_part_of_the_mixed_job_has_no_price() -> None:
    tree, blocks = compose_tree(MIXED), [block.model_dump() for block in load(MIXED).experiment().blocks]
    blocks[0]["cluster"]["device"]["price_per_hour"] = None
    with refused(ConfigError, "cluster.device.price_per_hour"):
        require_comparable(("dollars",), PointSet(points=(), baseline={}), [], {**tree, "mixed": blocks})
    require_comparable(("dollars",), PointSet(points=(), baseline={}), [], tree)


EVAL = "train.eval/books/loss"
SETS = (
    *("model=tiny", "cluster=local", "data=text", "training.evaluate_every=1", "data.held_out={books:{path:c}}"),
    "data.mixture={web:{path:a,weight:1},code:{path:b,weight:1}}",
)


def varying(*keys: str) -> PointSet:
    return PointSet(points=tuple({key: number + 1} for number, key in enumerate(keys)), baseline={})


def test_the_loss_of_a_set_tells_how_good_a_mixture_is() -> None:
    tree, mixtures = compose_tree(SETS), varying("data.mixture.web.weight", "training.learning_rate")
    require_comparable((EVAL,), mixtures, [], tree)
    with pytest.raises(ConfigError, match=r"'loss': of different data\.mixture\.web\.weight cannot be compared"):
        require_comparable(("loss",), mixtures, [], tree)
    with pytest.raises(ConfigError, match=r"books/loss': of different data\.max_bytes cannot be compared"):
        require_comparable((EVAL,), varying("data.max_bytes"), [], tree)
    with pytest.raises(ConfigError, match=r"tokens = None: leaves trials with different numbers of tokens"):
        require_comparable((EVAL,), varying("training.num_steps"), [], tree)


def test_the_loss_of_a_set_that_is_not_held_out_is_not_sought() -> None:
    with pytest.raises(ConfigError, match=r"'eval/book/loss': is the loss of no set in data\.held_out\. Did you mean"):
        require_comparable(("train.eval/book/loss",), varying(), [], compose_tree(SETS))
    alone = compose_tree(["model=tiny", "cluster=local", "data=text"])
    with pytest.raises(ConfigError, match=r"is the loss of no set in data\.held_out\. Name sets in data\.held_out"):
        require_comparable((EVAL,), varying(), [], alone)


@pytest.mark.parametrize(
    ("overrides", "held_out", "loss"),
    [
        ([], [None, None], 2.0),
        (["training.evaluate_every=1"], [None, None], 2.0),  # which says nothing of another program
        ([HELD_OUT], [None, 7.0], 7.0),
        ([HELD_OUT], [7.0, None], 7.0),
        ([HELD_OUT], [None, None], math.nan),
    ],
)
def test_another_program_is_judged_by_its_last_evaluation(
    overrides: list[str], held_out: list[float | None], loss: float
) -> None:
    experiment = load(["trainer=command", "trainer.command=[fit.py]", *overrides]).experiment()
    steps = [STEP.model_copy(update={"held_out_loss": each}) for each in held_out]
    assert final_loss(experiment, performance(100.0, losses=(3.0, 2.0)), steps) == pytest.approx(loss, nan_ok=True)
