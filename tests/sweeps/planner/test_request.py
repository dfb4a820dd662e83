"""From overrides and options to spaces."""

from __future__ import annotations

import pytest

from conf.errors import ConfigError, InfeasiblePlan
from conf.types.recompute import RECOMPUTES
from sweeps.planner.plans.space import recomputations
from sweeps.planner.request import configured_strategy, device_counts, mixed_request, offers, search_request
from tests.composed import composed, load, load_cluster
from tests.messages import refused

GPT_3 = ["model=gpt-175b", "cluster=selene", "precision=bf16", "batch.global_batch_size=1536"]


def test_without_a_sweep_the_whole_cluster_is_searched() -> None:
    (space,) = search_request(composed(GPT_3)).spaces
    assert space.world_size == 3072
    assert space.global_batch_size == 1536
    assert space.setting.dtype == "bf16"
    assert dict(space.pinned) == {}


def test_gradients_are_priced_in_the_width_that_the_configuration_gives() -> None:
    """Whichever cluster, as `estimate` prices a plan of this configuration."""
    spaces = search_request(
        composed([*GPT_3, "precision.gradient_dtype=bf16"]), devices="512", clusters=["selene", "dgx-h100"]
    ).spaces
    assert [space.setting.gradient_bytes for space in spaces] == [2, 2]
    assert search_request(composed(GPT_3)).spaces[0].setting.gradient_bytes == 4


@pytest.mark.parametrize("probability", [0.0, 0.1])
def test_masks_are_priced_where_the_training_drops_values(probability: float) -> None:
    (space,) = search_request(composed([*GPT_3, f"training.dropout={probability}"])).spaces
    assert space.setting.implementation.dropout == (probability > 0)


def test_a_sweep_is_searched_on_as_many_devices_as_its_largest_point_uses() -> None:
    assert [space.world_size for space in search_request(composed(["sweep=175b"])).spaces] == [1024]
    assert [space.world_size for space in search_request(composed(["sweep=smoke"])).spaces] == [8]


def test_an_override_of_the_number_of_devices_is_kept() -> None:
    assert [space.world_size for space in search_request(composed([*GPT_3, "parallel.world_size=512"])).spaces] == [512]


def test_every_cluster_and_number_of_devices_is_a_space() -> None:
    spaces = search_request(composed(GPT_3), devices="256,512", clusters=["selene", "dgx-h100"]).spaces
    found = [(space.setting.cluster.name, space.world_size) for space in spaces]
    assert found == [("selene", 256), ("selene", 512), ("dgx-h100", 256), ("dgx-h100", 512)]


def test_what_a_cluster_lacks_is_left_out_where_there_are_others_and_it_keeps_the_rest() -> None:
    asked = search_request(composed(GPT_3), devices="512,2048,2056", clusters=["frontier", "dgx1-v100", "selene"])
    found = [(space.setting.cluster.name, space.world_size) for space in asked.spaces]
    assert found == [("frontier", 512), ("selene", 512), ("selene", 2048), ("selene", 2056)]
    left_out = [(one.cluster, one.reason.key, one.reason.value) for one in asked.left_out]
    assert left_out == [
        ("frontier", "--devices", 2048),
        ("frontier", "--devices", 2056),
        ("dgx1-v100", "precision.dtype", "bf16"),
    ]


@pytest.mark.parametrize(
    ("clusters", "devices"),
    [
        (["selene"], "512,4096"),
        (["dgx-h100", "selene"], "4096"),
        (["dgx-h100", "selene"], "512,x"),
    ],
)
def test_nothing_is_left_out_of_one_cluster_nor_where_none_is_left(clusters: list[str], devices: str) -> None:
    with refused(ConfigError, "--devices"):
        search_request(composed(GPT_3), devices=devices, clusters=clusters)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("512", [512]),
        ("4", [4]),
        ("256,64,64", [64, 256]),
        ("17-40", [24, 32, 40]),
        ("8-16,512", [8, 16, 512]),
    ],
)
def test_numbers_of_devices_are_read(text: str, counts: list[int]) -> None:
    assert device_counts(load_cluster("selene"), text) == counts


def test_all_numbers_of_devices_are_whole_nodes() -> None:
    assert device_counts(load_cluster("frontier"), "all") == [8 * nodes for nodes in range(1, 129)]


@pytest.mark.parametrize("text", ["", "x", "12", "0", "1e3", "4000", "16-", "3-7", "-8", "8,,16"])
def test_numbers_that_a_job_cannot_have_are_refused(text: str) -> None:
    with refused(ConfigError, "--devices"):
        device_counts(load_cluster("selene"), text)


@pytest.mark.parametrize(
    "overrides",
    [[*GPT_3, "parallel.world_size=12"], ["sweep=smoke", "cluster=selene", "sweep.points=[{parallel.world_size:12}]"]],
)
def test_a_number_of_devices_that_is_refused_is_called_as_it_was_given(overrides: list[str]) -> None:
    with refused(ConfigError, "parallel.world_size"):
        search_request(composed(overrides))


def test_overrides_of_knobs_pin_them_and_groups_do_not() -> None:
    overrides = ["parallel.tensor_parallel_size=8", "batch.micro_batch_size=2", "parallel=frontier-175b"]
    (space,) = search_request(composed([*GPT_3, *overrides])).spaces
    assert dict(space.pinned) == {"tensor_parallel_size": 8, "micro_batch_size": 2}


def test_a_pinned_schedule_or_number_of_chunks_brings_the_other_along() -> None:
    (space,) = search_request(composed([*GPT_3, "parallel.schedule=interleaved"])).spaces
    assert dict(space.pinned) == {"schedule": "interleaved"}
    (space,) = search_request(composed([*GPT_3, "parallel.virtual_pipeline_size=4"])).spaces
    assert dict(space.pinned) == {"virtual_pipeline_size": 4}
    with refused(ConfigError, "parallel.virtual_pipeline_size"):
        search_request(composed([*GPT_3, "parallel.virtual_pipeline_size=4", "parallel.schedule=1f1b"]))


def test_listed_layers_are_pinned_where_a_search_can_hold_them() -> None:
    (space,) = search_request(composed([*GPT_3, "parallel.layers_per_stage=[20,28,28,20]"])).spaces
    assert space.pinned["layers_per_stage"] == (20, 28, 28, 20)
    with refused(ConfigError, "parallel.layers_per_stage"):
        search_request(composed([*GPT_3, "parallel.layers_per_stage=[20,28,28,19]"]))
    with refused(ConfigError, "parallel.layers_per_stage"):
        search_request(composed([*GPT_3, "parallel.layers_per_stage=[20,29,27,20]"]))


def test_listed_layers_say_how_many_stages_there_are() -> None:
    listed = [*GPT_3, "parallel.layers_per_stage=[48,48]"]
    assert search_request(composed(listed)).settings.parallel.pipeline_parallel_size == 2
    with refused(InfeasiblePlan, "parallel.zero_stage"):
        search_request(composed([*listed, "parallel.zero_stage=3"]))
    with refused(InfeasiblePlan, "parallel.layers_per_stage"):
        search_request(composed([*listed, "parallel.pipeline_parallel_size=4"]))


@pytest.mark.parametrize(
    ("overrides", "options", "key"),
    [
        (["cluster=selen"], {}, "cluster"),
        ([], {"clusters": ["frontir"]}, "cluster"),
        ([], {"implementation": "megatron"}, "--implementation"),
        (["parallel.recompute=some"], {}, "parallel.recompute"),
        ([], {"clusters": ["dgx1-v100"]}, "precision.dtype"),
    ],
)
def test_what_is_unknown_is_named(overrides: list[str], options: dict[str, object], key: str) -> None:
    with refused(ConfigError, key):
        search_request(composed([*GPT_3, *overrides]), **options)  # type: ignore[arg-type]


def test_offers_of_a_mixed_job_are_read() -> None:
    assert offers("selene:512,dgx-h100:256") == [("selene", 512), ("dgx-h100", 256)]
    for text in ("selene", "selene:512", "selene:x,dgx-h100:3", "selene:1,selene:2", ",", "selene:-8,dgx-h100:8"):
        with refused(ConfigError, "--mixed"):
            offers(text)


def test_a_mixed_job_refuses_knobs_that_it_does_not_choose() -> None:
    assert len(mixed_request(composed(GPT_3), "selene:512,dgx-h100:256", "trisweep").spaces) == 2
    with refused(ConfigError, "parallel.schedule"):
        mixed_request(composed([*GPT_3, "parallel.schedule=zero-bubble"]), "selene:512,dgx-h100:256", "trisweep")


def test_the_configured_plan_is_a_strategy() -> None:
    settings = load(["sweep=175b"])
    strategy = configured_strategy(settings, 1024)
    assert strategy.experiment(settings) == settings.experiment()


def test_a_search_among_clusters_leaves_out_those_without_a_peak_for_the_recipe() -> None:
    asked = composed(["model=gpt-22b", "precision=fp8", "batch.global_batch_size=64"])
    found = search_request(asked, devices="64", clusters=["selene", "gb200-nvl72"], implementation="megatron-core")
    assert [space.setting.cluster.name for space in found.spaces] == ["gb200-nvl72"]
    assert "has no peak for fp8" in str(found.left_out[0].reason)


@pytest.mark.slow
def test_compiled_layers_are_searched_without_pointwise_recomputation() -> None:
    overrides = ["model=llama-3.1-8b", "cluster=dgx-h100", "precision=bf16", "parallel.world_size=8"]
    overrides += ["batch.global_batch_size=8", "training.compile_layers=true"]

    def searched(trainer: str, *more: str) -> set[str]:
        (space,) = search_request(composed([*overrides, *more]), implementation=trainer).spaces
        return {RECOMPUTES[index] for index, _ in recomputations(space)}

    assert searched("trisweep") == searched("megatron-core") == {"none", "selective", "full"}
    assert searched("megatron-core", "model=qwen3-30b-a3b") == set(RECOMPUTES)
    with refused(ConfigError, "training.compile_layers"):
        search_request(composed([*overrides, "parallel.recompute=pointwise"]))
