"""One job over several types of devices: how it is configured, and which blocks of stages cannot be."""

from __future__ import annotations

import pytest

from conf.errors import ConfigError
from conf.plan.experiment import Experiment
from tests.composed import load
from tests.messages import refused

SIZES = (
    "model=gpt-22b",
    "precision=bf16",
    "batch.global_batch_size=8",
    "parallel.tensor_parallel_size=4",
    "parallel.pipeline_parallel_size=3",
    "parallel.world_size=24",
)
MIXED = "mixed=selene:16+dgx-h100:8"


def experiment(*overrides: str, cluster: str = "selene") -> Experiment:
    return load([f"cluster={cluster}", *SIZES, *overrides]).experiment()


def test_blocks_hold_as_many_stages_as_their_devices_allow() -> None:
    mixed = experiment(MIXED)
    assert mixed.place == "selene:16+dgx-h100:8"
    assert [block.cluster.name for block in mixed.blocks] == ["selene", "dgx-h100"]
    assert mixed.stages_per_block == (2, 1)
    assert (mixed.num_nodes, mixed.tasks_per_node, mixed.data_parallel_size) == (3, 8, 2)
    peaks = [block.cluster.device.peak_flops_per_second["bf16"] for block in mixed.blocks]
    assert mixed.peak_flops_per_second == pytest.approx((2 * peaks[0] + peaks[1]) / 3)


def test_money_and_power_are_means_over_all_devices() -> None:
    mixed = experiment(MIXED)
    watts = [block.cluster.device.watts for block in mixed.blocks]
    prices = [block.cluster.device.price_per_hour or 0.0 for block in mixed.blocks]
    assert mixed.watts == pytest.approx((2 * watts[0] + watts[1]) / 3)
    assert mixed.price_per_hour == pytest.approx((2 * prices[0] + prices[1]) / 3)
    assert experiment(MIXED, "cluster.device.price_per_hour=null").price_per_hour is None
    assert experiment().watts == watts[0]


def test_any_named_cluster_may_be_the_chosen_one_and_keeps_its_overrides() -> None:
    mixed = experiment(MIXED, "cluster.num_nodes=1", cluster="dgx-h100")
    assert [block.cluster.num_nodes for block in mixed.blocks][1] == 1


def test_the_blocks_are_read_back_and_are_part_of_the_fingerprint() -> None:
    mixed, other = experiment(MIXED), experiment("mixed=dgx-h100:8+selene:16")
    assert Experiment.model_validate_json(mixed.model_dump_json()) == mixed
    prints = [mixed.fingerprint, other.fingerprint, experiment().fingerprint]
    assert len(set(prints)) == 3


def test_without_blocks_there_is_one_of_all_stages() -> None:
    plain = experiment()
    assert plain.mixed is None
    assert (plain.place, plain.stages_per_block) == ("selene", (3,))
    assert [str(block) for block in plain.blocks] == ["selene:24"]


def test_a_list_of_names_means_the_same() -> None:
    assert experiment("mixed=[selene:16,dgx-h100:8]") == experiment(MIXED)


def test_a_world_size_that_is_left_out_is_that_of_all_blocks() -> None:
    assert experiment(MIXED, "parallel.world_size=null").parallel.world_size == 24


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["mixed=selene"], "mixed"),
        (["mixed=selene:8+"], "mixed"),
        (["mixed=5"], "mixed"),
        (["mixed=[]"], "mixed"),
        (["mixed=selene:0+dgx-h100:24"], "mixed"),
        (["mixed=selene:16+nowhere:8"], "cluster"),
        (["mixed=selene:24"], "mixed"),
        (["mixed=jean-zay:16+dgx-h100:8"], "mixed"),
        (["mixed=selene:16+dgx-h100:16"], "mixed"),
        (["mixed=selene:12+dgx-h100:12"], "mixed"),
        ([MIXED, "cluster.num_nodes=1"], "mixed"),
        (["mixed=selene:16+local:8"], "mixed"),
        (["mixed=selene:16+frontier:8"], "mixed"),
        ([MIXED, "parallel.schedule=interleaved", "parallel.virtual_pipeline_size=2"], "parallel.schedule"),
        (["mixed=selene:16+dgx1-v100:8"], "precision.dtype"),
        ([MIXED, "trainer=megatron-lm"], "mixed"),
        ([MIXED, "parallel.tensor_parallel_size=3", "parallel.world_size=24"], "mixed"),
    ],
)
def test_blocks_that_cannot_be_are_named(overrides: list[str], key: str) -> None:
    with refused(ConfigError, key):
        experiment(*overrides)
