"""What decides the losses of a training that goes on is refused or said, and what decides none is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.errors import ConfigError
from conf.types.schema import Value
from tests.messages import refused
from tests.train_core.conftest import ExperimentOf
from tests.train_core.training.layouts import mixture_with
from train_core.checkpoints.checkpoint_folder import Facts
from train_core.checkpoints.what_to_read import (
    facts_of_training,
    how_it_goes_on,
    how_it_starts,
    require_same_training,
)

Values = dict[str, object]
AT = Path("checkpoints/step-000003")
DROPS: Values = {"training.dropout": 0.1}
TWO_RANKS = {"parallel.world_size": 2, "parallel.tensor_parallel_size": 2}
IN_PARTS = TWO_RANKS | {"parallel.sequence_parallel": True}
GPU = {"cluster.device.kind": "gpu"}
OTHER_MASKS = "; dropout draws other masks than there"


def facts(experiment_of: ExperimentOf, values: Values, tokens: str = "tokens") -> tuple[Facts, dict[str, Value]]:
    experiment = experiment_of(values)
    training = facts_of_training(experiment, tokens)
    return Facts(step=3, num_updates=3, label="", model=experiment.model, loss_scale={}, training=training), training


def told(experiment_of: ExperimentOf, before: Values, after: Values) -> str:
    saved, (_, wanted) = facts(experiment_of, before)[0], facts(experiment_of, after)
    require_same_training(AT, saved, wanted)
    return how_it_goes_on(AT, saved, wanted).removeprefix(f"going on after step 3 of {AT}")


def test_how_experts_are_kept_busy_may_change_and_is_said(experiment_of: ExperimentOf) -> None:
    words = (
        " with model.experts.balance_loss = 0.0, which was 0.05, model.experts.capacity_factor = 1.5, which was null"
    )
    assert told(experiment_of, mixture_with(), mixture_with(balance_loss=0.0, capacity_factor=1.5)) == words


@pytest.mark.parametrize("now", [False, True])
def test_documents_stay_as_separate_as_they_were(now: bool, experiment_of: ExperimentOf) -> None:
    with refused(ConfigError, "data.separate_documents"):
        told(experiment_of, {"data.separate_documents": not now}, {"data.separate_documents": now})


@pytest.mark.parametrize(
    ("after", "words"),
    [
        ({}, ""),
        ({"precision.dtype": "bf16"}, " with precision.dtype = bf16, which was fp32"),
        ({"batch.micro_batch_size": 2}, " with batch.micro_batch_size = 2, which was 1"),
        (IN_PARTS, ""),
    ],
)
def test_other_precision_and_micro_batches_are_said(after: Values, words: str, experiment_of: ExperimentOf) -> None:
    assert told(experiment_of, {"batch.micro_batch_size": 1}, {"batch.micro_batch_size": 1} | after) == words


@pytest.mark.parametrize(
    ("before", "after", "others"),
    [
        ({}, {"parallel.world_size": 2}, False),
        ({}, TWO_RANKS, False),
        ({}, IN_PARTS, True),
        (TWO_RANKS, IN_PARTS, True),
        (GPU, GPU, False),
        (GPU, GPU | TWO_RANKS, True),
        (GPU | TWO_RANKS, GPU | IN_PARTS, True),
        ({}, GPU, True),
    ],
)
def test_a_layout_that_draws_other_masks_is_said(
    before: Values, after: Values, others: bool, experiment_of: ExperimentOf
) -> None:
    assert told(experiment_of, DROPS | before, DROPS | after) == (OTHER_MASKS if others else "")


def test_another_micro_batch_draws_other_masks(experiment_of: ExperimentOf) -> None:
    words = f" with batch.micro_batch_size = 2, which was 1{OTHER_MASKS}"
    assert told(experiment_of, DROPS | {"batch.micro_batch_size": 1}, DROPS | {"batch.micro_batch_size": 2}) == words


@pytest.mark.parametrize(
    ("before", "after", "tokens", "is_said"),
    [
        ("bpe", "bpe", "others", True),
        ("bytes", "bpe", "others", True),
        ("bpe", "bytes", "others", True),
        ("bpe", "bpe", "tokens", False),
        ("bytes", "bytes", "others", False),
    ],
)
def test_a_start_from_other_byte_pairs_is_said(
    before: str, after: str, tokens: str, is_said: bool, experiment_of: ExperimentOf
) -> None:
    saved, _ = facts(experiment_of, {"data.tokenizer": before})
    _, wanted = facts(experiment_of, {"data.tokenizer": after}, tokens)
    words = f"starting from {AT}, whose ids meant other text (tokens, not {tokens}): "
    assert how_it_starts(AT, saved, wanted).startswith(words) if is_said else not how_it_starts(AT, saved, wanted)
