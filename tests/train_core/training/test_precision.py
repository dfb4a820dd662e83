"""fp16 with its loss scale, and gradients in bf16: like one rank, and what happens when a step overflows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conf.errors import InfeasiblePlan, TrainingError
from conf.plan.experiment import Experiment
from tests.messages import refused
from tests.train_core.conftest import ExperimentOf, Worlds
from tests.train_core.training.layouts import Layout
from tests.train_core.training.test_layouts import assembled, assert_alike, train_and_tell
from train_core.parallel.narrow import LossScale
from train_core.process.world import World
from train_core.training.train import train
from train_core.training.trainer import Trainer

FP16: dict[str, object] = {
    "cluster.device.peak_flops_per_second": {"fp32": 0.18e12, "fp16": 0.18e12},
    "cluster.device.peak_source": "a data sheet",  # measuring it would take longer than all steps
    "precision.dtype": "fp16",
}
"""A CPU multiplies fp16 no faster than fp32, so its device has no peak for it."""

BF16_GRADIENTS = {"precision.dtype": "bf16", "precision.gradient_dtype": "bf16"}
NUM_STEPS = 9
SMALL = {"model.num_layers": 2, "batch.global_batch_size": 4, "batch.micro_batch_size": 2}
LAYOUTS = {
    2: [Layout(2, 1, 1, sequence_parallel=True), Layout(1, 2, 1, "zero-bubble"), Layout(1, 1, 2, zero_stage=2)],
    1: [Layout(1, 1, 1, recompute=("selective", 1))],
    4: [Layout(2, 1, 2, zero_stage=3), Layout(1, 2, 2, "interleaved", zero_stage=2)],
}


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", LAYOUTS)
@pytest.mark.parametrize(
    ("precision", "tolerances"),
    [
        # fp16 keeps 11 bits: 0.05 % a rounding, an eighth of bf16's.
        (FP16, {"losses": 3e-4, "norms": 5e-3, "moments": 1e-2, "weights": 2e-3}),
        # Sums of bf16 gradients are rounded at every micro-batch: 0.4 % each.
        (BF16_GRADIENTS, {"losses": 2e-3, "norms": 2e-2, "moments": 5e-2, "weights": 1e-2}),
    ],
    ids=["fp16", "bf16 gradients"],
)
def test_layouts_agree_within_the_precision(
    precision: Any, tolerances: Any, num_ranks: int, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    layouts = LAYOUTS[num_ranks]
    experiments = [experiment_of(one.values() | precision) for one in layouts]
    answers = worlds(num_ranks).run(train_and_tell, experiments, tmp_path)
    alone = [experiment_of(one.values_on_one_rank() | precision) for one in layouts]
    (expected,) = worlds(1).run(train_and_tell, alone, tmp_path)
    for of_ranks, of_one, layout in zip(zip(*answers, strict=True), expected, layouts, strict=True):
        try:
            assert_alike(assembled(of_ranks), assembled([of_one]), **tolerances)
        except AssertionError as error:
            error.add_note(f"in {layout}")
            raise


def step_and_tell(world: World, experiment: Experiment, cache_dir: Path) -> list[tuple[bool, float, float, float]]:
    """Of each step: whether it overflowed, the scale after it, the loss, and how far the weights moved."""
    trainer = Trainer(experiment, world, cache_dir)
    told = []
    for step in range(1, NUM_STEPS + 1):
        before = [state.masters.clone() for state in trainer.optimizer.states]
        result = trainer.step(step)
        moved = max(
            float((state.masters - old).abs().max())
            for state, old in zip(trainer.optimizer.states, before, strict=True)
        )
        told.append((result.overflowed, trainer.optimizer.loss_scale.scale, result.loss, moved))
    return told


def test_an_overflow_skips_the_step_on_all_ranks_and_halves_the_scale(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    too_large = {"precision.initial_loss_scale": 2.0**20, "training.num_steps": NUM_STEPS}
    values = Layout(1, 2, 1, zero_stage=0).values() | FP16 | too_large
    answers = worlds(2).run(step_and_tell, experiment_of(values), tmp_path)
    (overflows, scales, losses, _), *_ = (list(zip(*answer, strict=True)) for answer in answers)
    assert answers[0][0][:3] == answers[1][0][:3]
    assert overflows[0]
    assert not overflows[-1]
    for before, overflowed, scale in zip((2.0**20, *scales), overflows, scales, strict=False):
        assert scale == (before / 2 if overflowed else before)
    for answer in answers:
        assert all((moved == 0) == overflowed for overflowed, _, _, moved in answer)
    assert np.isfinite(losses).all()


def message_of(world: World, experiment: Experiment, cache_dir: Path) -> str:
    with pytest.raises(TrainingError) as error:
        train(experiment, world, cache_dir)
    return str(error.value)


def test_a_storm_of_overflows_ends_the_job_and_says_so(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    storm: dict[str, object] = {"precision.initial_loss_scale": 2.0**100, "watch.max_overflows": 3}
    (told,) = worlds(1).run(message_of, experiment_of(FP16 | storm), tmp_path)
    assert told.startswith("fp16 gradients overflowed in 3 steps in a row, the last at step 3 with a loss scale of")
    assert "precision=bf16" in told


def smallest_overflow_and_message(world: World, experiment: Experiment, cache_dir: Path) -> tuple[float, str]:
    """The smallest scale at which the first step overflows, and how a training ends that begins with it."""
    trainer, scale = Trainer(experiment, world, cache_dir), 2.0**24
    while True:
        trainer.optimizer.loss_scale.scale = scale
        if not trainer.step(1).overflowed:
            break
        scale /= 2
    precision = experiment.precision.model_copy(update={"initial_loss_scale": 2 * scale})
    return 2 * scale, message_of(world, experiment.model_copy(update={"precision": precision}), cache_dir)


@pytest.mark.parametrize(
    ("values", "num_ranks", "origin"),
    [
        # Sums over tokens are the largest values: of biases, and of the token embedding, which is the head too.
        ({}, 1, r"first in the gradient of \S+\.(weight|bias) \(micro-batch 0\) of rank 0; rank 0 saw"),
        (
            {"parallel.world_size": 2, "parallel.zero_stage": 3},
            2,
            r"first in the gradient of \S+\.(weight|bias) \(sum over micro-batches\) of rank [01]; ranks? [01]\S* saw",
        ),
    ],
    ids=["alone", "ZeRO-3"],
)
def test_where_it_overflowed_is_looked_for_with_the_scale_that_did(
    values: Any, num_ranks: int, origin: str, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    """Half of it does not overflow. Only weight gradients do; what modules put out and get back stays in range."""
    experiment = experiment_of(FP16 | values | SMALL | {"watch.max_overflows": 1})
    scale, told = worlds(num_ranks).run(smallest_overflow_and_message, experiment, tmp_path)[0]
    assert f"the last at step 1 with a loss scale of {scale:g}, first in" in told
    assert re.search(origin, told)


def test_the_scale_doubles_after_a_window_without_overflow(experiment_of: ExperimentOf) -> None:
    values = FP16 | {"precision.loss_scale_window": 3, "precision.initial_loss_scale": 8.0}
    scale = LossScale.of(experiment_of(values).precision)
    scales = []
    for overflows in (False, False, True, False, False, False, False):
        (scale.back_off if overflows else scale.note_success)()
        scales.append(scale.scale)
    assert scales == [8, 8, 4, 4, 4, 8, 8]
    restored = LossScale.of(experiment_of(values).precision)
    restored.restore(scale.state())
    assert restored == scale


def test_a_scale_that_was_saved_under_a_longer_window_doubles_too(experiment_of: ExperimentOf) -> None:
    scale = LossScale.of(experiment_of(FP16 | {"precision.loss_scale_window": 3}).precision)
    scale.restore({"scale": 4.0, "num_good_steps": 5, "num_overflows_in_a_row": 0})
    scale.note_success()
    assert (scale.scale, scale.num_good_steps) == (8.0, 0)


def test_other_precisions_do_not_scale(experiment_of: ExperimentOf) -> None:
    scale = LossScale.of(experiment_of({"precision.dtype": "bf16"}).precision)
    scale.note_success()
    assert (scale.scale, scale.is_dynamic) == (1.0, False)


def test_a_change_of_precision_begins_with_the_new_precisions_scale(experiment_of: ExperimentOf) -> None:
    fp16, bf16 = (experiment_of(values).precision for values in (FP16, {"precision.dtype": "bf16"}))
    scale, constant = LossScale.of(fp16), LossScale.of(bf16)
    scale.restore(constant.state())
    assert scale == LossScale.of(fp16)
    scale.back_off()
    constant.restore(scale.state())
    assert constant == LossScale.of(bf16)


def test_fp16_is_refused_on_a_device_without_it(experiment_of: ExperimentOf) -> None:
    with refused(InfeasiblePlan, "precision.dtype"):
        experiment_of({"precision.dtype": "fp16"})
