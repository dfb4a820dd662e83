"""What is set for a GPU where nothing is, and which pipelines AMD's GPUs refuse with too few hardware queues."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conf.errors import ConfigError
from tests.composed import load
from tests.messages import refused
from tests.train_core.conftest import ExperimentOf, TrialOf
from tests.train_core.training.layouts import MIXTURE
from train_core.job.rank import run_rank
from train_core.process.gpu_settings import (
    ENOUGH_QUEUES,
    HARDWARE_QUEUES,
    HIGH_PRIORITY,
    num_communicators,
    require_hardware_queues,
    set_defaults,
)
from train_core.process.world import Seat

EIGHT_RANKS: dict[str, Any] = {
    "parallel.world_size": 8,
    "parallel.pipeline_parallel_size": 2,
    "parallel.tensor_parallel_size": 2,
    "parallel.schedule": "interleaved",
    "parallel.virtual_pipeline_size": 2,
    "batch.global_batch_size": 8,
}


def test_sums_have_priority_and_segments_grow() -> None:
    environment: dict[str, str] = {}
    set_defaults(environment, is_hip=False)
    assert environment[HIGH_PRIORITY] == "1"
    assert environment["PYTORCH_CUDA_ALLOC_CONF"] == environment["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"


def test_what_the_user_has_set_stays() -> None:
    environment = {HIGH_PRIORITY: "0", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512"}
    set_defaults(before := dict(environment), is_hip=False)
    assert before == environment


def test_segments_stay_as_they_are_where_hip_has_no_others() -> None:
    environment: dict[str, str] = {}
    set_defaults(environment, is_hip=True)
    assert environment == {HIGH_PRIORITY: "1"}


def test_a_ring_with_all_axes_needs_eight_queues_and_names_the_variable(experiment_of: ExperimentOf) -> None:
    experiment = experiment_of(EIGHT_RANKS)
    assert num_communicators(experiment) == ENOUGH_QUEUES
    require_hardware_queues(experiment, {HARDWARE_QUEUES: "8"})
    with refused(ConfigError, "parallel.schedule"):
        require_hardware_queues(experiment, {})
    with refused(ConfigError, "parallel.schedule"):
        require_hardware_queues(experiment, {HARDWARE_QUEUES: "8", HIGH_PRIORITY: "0"})


def test_ranks_that_share_out_experts_or_replicate_them_have_communicators_too(experiment_of: ExperimentOf) -> None:
    shared_out = {"parallel.expert_parallel_size": 2, "parallel.expert_tensor_parallel_size": 1}
    experiment = experiment_of(EIGHT_RANKS | MIXTURE | shared_out | {"parallel.sequence_parallel": True})
    assert num_communicators(experiment) == num_communicators(experiment_of(EIGHT_RANKS)) + 2


@pytest.mark.parametrize(("schedule", "least"), [("1f1b", 5), ("zero-bubble", 5), ("gpipe", 1)])
def test_other_schedules_need_fewer(schedule: str, least: int, experiment_of: ExperimentOf) -> None:
    """Six communicators: four channels of a stage inside, tensor ranks and the world."""
    changes = {"parallel.schedule": schedule, "parallel.virtual_pipeline_size": 1, "parallel.pipeline_parallel_size": 4}
    experiment = experiment_of(EIGHT_RANKS | changes)
    require_hardware_queues(experiment, {HARDWARE_QUEUES: str(least)})
    if least > 1:
        with refused(ConfigError, "parallel.schedule"):
            require_hardware_queues(experiment, {HARDWARE_QUEUES: str(least - 1)})


def test_without_a_pipeline_nothing_is_demanded(experiment_of: ExperimentOf) -> None:
    require_hardware_queues(experiment_of({"parallel.world_size": 2}), {})


def test_frontiers_file_sets_enough() -> None:
    environment = load(["slurm=frontier"]).slurm.environment
    assert int(environment[HARDWARE_QUEUES]) == ENOUGH_QUEUES


def test_a_rank_on_rocm_is_refused_before_it_joins(trial_of: TrialOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.2")
    monkeypatch.delenv(HARDWARE_QUEUES, raising=False)
    with refused(ConfigError, "parallel.schedule"):
        run_rank(trial_of(EIGHT_RANKS), Seat(0, 8, 0, "tcp://nobody:1"), "gpu", 0)
