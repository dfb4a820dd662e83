"""The terms of a step: what each plan pays for, and in which direction every change goes."""

from __future__ import annotations

from dataclasses import replace
from math import log
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from costs import num_parameters
from costs.collectives import pair_seconds
from costs.price import Prices
from costs.setting import Setting
from tests.costs.priced import (
    priced,
    seconds,
    setting_of,
    unscaled,
    with_device,
    with_efficiency,
    with_links,
    with_model,
    with_trainer,
)

TERMS = ("compute", "tensor", "pipeline", "bubble", "data", "optimizer", "waiting")
ROUNDING = 1e-12
BOOLEAN_OVERLAPS = ("overlaps_weight_gradient", "overlaps_chunk_transfers")


def gpt() -> Setting:
    return setting_of("gpt-22b", "frontier")


def llama() -> Setting:
    return setting_of("llama-2-70b", "dgx-h100", trainer="fsdp")


forty = settings(max_examples=40, derandomize=True)


def term(prices: Prices, name: str) -> float:
    return float(getattr(prices.step, f"{name}_seconds")[0])


@some.composite
def plans(draw: Any) -> tuple[Setting, dict[str, Any]]:
    """A legal plan of 48 layers, which five stages share unevenly, or of 80."""
    setting = draw(some.sampled_from([gpt(), llama(), with_trainer(gpt(), overlaps_weight_gradient=False)]))
    p = draw(some.sampled_from([1, 2, 4, 5, 8]))
    schedules = ["1f1b"] + (["zero-bubble"] if p > 1 else []) + (["interleaved"] if p in (2, 4, 8) else [])
    schedule = draw(some.sampled_from(schedules))
    zero_stages = [0, 1, 2] + ([3] if p == 1 else [])
    t = draw(some.sampled_from([1, 2, 4, 8]))
    return setting, {
        "tensor_parallel_size": t,
        "pipeline_parallel_size": p,
        "virtual_pipeline_size": 2 if schedule == "interleaved" else 1,
        "data_parallel_size": draw(some.sampled_from([1, 2, 3, 8, 24])),
        "micro_batch_size": draw(some.sampled_from([1, 2, 3])),
        "num_micro_batches": p * draw(some.integers(1, 8)),
        "sequence_parallel": t > 1 and draw(some.booleans()),
        "zero_stage": draw(some.sampled_from(zero_stages)),
        "recompute": draw(some.sampled_from(["none", "selective", "full"])),
        "schedule": schedule,
    }


FASTER: dict[str, tuple[Setting, dict[str, Any], str]] = {
    "launches bind a zero-bubble": (
        with_model(setting_of("gpt-175b-proxy", "frontier", trainer="trisweep"), num_layers=24, seq_length=1024),
        {"schedule": "zero-bubble", "pipeline_parallel_size": 4, "num_micro_batches": 8, "data_parallel_size": 16},
        "peak",
    ),
    "many ranks have little to send": (
        with_model(setting_of("gpt-175b-proxy", "mosaicml-a100-40gb", trainer="megatron-core"), num_layers=24),
        {"data_parallel_size": 4096, "micro_batch_size": 8, "zero_stage": 1},
        "network",
    ),
    "a gather and a scatter have one backward pass beside them": (
        with_model(setting_of("llama-3.1-70b", "selene", "fp32", "trisweep"), num_layers=2, seq_length=64),
        {"tensor_parallel_size": 2, "data_parallel_size": 12, "zero_stage": 2, "recompute": "full"},
        "peak",
    ),
    "launches outlast tensor-parallel collectives": (
        with_model(
            setting_of("long-context-proxy", "perlmutter", trainer="megatron-deepspeed"), num_layers=11, seq_length=64
        ),
        {"tensor_parallel_size": 4, "data_parallel_size": 4, "micro_batch_size": 4, "num_micro_batches": 8}
        | {"pipeline_parallel_size": 2, "sequence_parallel": True, "first_stage_layers": 9, "last_stage_layers": 2},
        "latency",
    ),
    "another stage becomes the slowest": (
        with_model(setting_of("bloom-176b", "lumi", "fp32", "trisweep"), num_layers=16, seq_length=16384),
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 3, "context_parallel_size": 4, "micro_batch_size": 2}
        | {"data_parallel_size": 2, "first_stage_layers": 2, "last_stage_layers": 1, "recompute": "selective"},
        "latency",
    ),
}


@pytest.mark.parametrize("name", FASTER)
def test_nothing_that_is_faster_makes_a_step_longer(name: str) -> None:
    """Each did so once; tests/sweeps/planner/test_laws.py looks for others."""
    setting, plan, what = FASTER[name]
    peaks = {dtype: 2 * peak for dtype, peak in setting.cluster.device.peak_flops_per_second.items()}
    first, *others = setting.cluster.links
    wide = others[-1].model_copy(update={"bandwidth_bytes_per_second": 4 * others[-1].bandwidth_bytes_per_second})
    quick = first.model_copy(update={"latency_seconds": 0.4 * first.latency_seconds})
    links = {"network": (first, *others[:-1], wide), "latency": (quick, *others)}
    faster = with_device(setting, peak_flops_per_second=peaks)
    if what in links:
        faster = replace(setting, cluster=setting.cluster.model_copy(update={"links": links[what]}))
    assert seconds(faster, **plan) <= seconds(setting, **plan) * (1 + ROUNDING)


@forty
@given(plans(), some.sampled_from([*BOOLEAN_OVERLAPS, "transfers_overlap", "data_overlap", "sharded_overlap"]))
def test_overlap_is_never_slower(drawn: tuple[Setting, dict[str, Any]], overlap: str) -> None:
    setting, plan = drawn
    without, whole = (with_trainer(setting, **{overlap: kind(share)}) for kind, share in _range_of(overlap))
    assert seconds(whole, **plan) <= seconds(without, **plan) * (1 + ROUNDING)


def _range_of(overlap: str) -> tuple[tuple[type, int], tuple[type, int]]:
    kind = bool if overlap in BOOLEAN_OVERLAPS else float
    return (kind, 0), (kind, 1)


@forty
@given(plans())
def test_more_layers_take_longer(drawn: tuple[Setting, dict[str, Any]]) -> None:
    setting, plan = drawn
    deeper = with_model(setting, num_layers=2 * setting.model.num_layers)
    assert seconds(deeper, **plan) > seconds(setting, **plan)


@forty
@given(plans())
def test_one_more_round_of_micro_batches_takes_longer(drawn: tuple[Setting, dict[str, Any]]) -> None:
    setting, plan = drawn
    more = plan | {"num_micro_batches": plan["num_micro_batches"] + plan["pipeline_parallel_size"]}
    assert seconds(setting, **more) > seconds(setting, **plan)


@pytest.mark.parametrize("num_stages", [2, 4, 8])
@pytest.mark.parametrize("num_rounds", [1, 2, 8])
def test_zero_bubble_waits_less_than_1f1b(num_stages: int, num_rounds: int) -> None:
    plan = {"pipeline_parallel_size": num_stages, "num_micro_batches": num_rounds * num_stages}
    plain, zero_bubble = (term(priced(gpt(), **plan, schedule=name), "bubble") for name in ("1f1b", "zero-bubble"))
    assert 0 < zero_bubble < plain


@pytest.mark.parametrize("num_stages", [2, 4, 8])
def test_more_chunks_wait_less_and_send_more(num_stages: int) -> None:
    """Between 1F1B, two and three chunks; every chunk of a micro-batch is sent."""
    plan = {"pipeline_parallel_size": num_stages, "num_micro_batches": 4 * num_stages}
    chunked = [
        priced(gpt(), **plan, virtual_pipeline_size=chunks, schedule="interleaved" if chunks > 1 else "1f1b")
        for chunks in (1, 2, 3)
    ]
    bubbles = [term(prices, "bubble") for prices in chunked]
    assert bubbles == sorted(bubbles, reverse=True)
    assert [term(prices, "pipeline") / term(chunked[0], "pipeline") for prices in chunked] == pytest.approx([1, 2, 3])


def test_the_bubble_of_equal_stages_is_the_textbooks() -> None:
    """(p - 1) / m of the busy time. A vocabulary of nothing, almost, makes the ends as the other stages are."""
    setting = with_trainer(with_model(gpt(), vocab_size=8), scattered_transfers=False)
    prices = priced(setting, pipeline_parallel_size=4, num_micro_batches=12)
    busy = sum(term(prices, name) for name in ("compute", "tensor", "pipeline"))
    assert term(prices, "bubble") / busy == pytest.approx(3 / 12, rel=0.02)


def test_one_stage_neither_waits_nor_sends() -> None:
    prices = priced(gpt(), tensor_parallel_size=8, num_micro_batches=8)
    assert term(prices, "bubble") == term(prices, "pipeline") == 0


def test_sending_in_parts_sends_an_eighth_and_gathers_inside_the_node() -> None:
    """Source: arXiv 2104.04473, section 4.1. Inter-node links are an order slower than those inside a node."""
    setting = unscaled(with_links(setting_of("gpt-175b", "selene"), latency_seconds=0.0))
    plan = {"tensor_parallel_size": 8, "pipeline_parallel_size": 12, "num_micro_batches": 12}
    parts, whole = (
        term(priced(with_trainer(setting, scattered_transfers=scattered), **plan), "pipeline")
        for scattered in (True, False)
    )
    assert parts / whole == pytest.approx(1 / 8 + (7 / 8) * 25 / 300)


def test_a_tied_embedding_is_added_up_over_its_two_stages_and_only_in_a_pipeline() -> None:
    setting = with_links(setting_of("gpt-175b", "selene"), latency_seconds=0.0)
    alone, piped = (
        term(priced(setting, tensor_parallel_size=8, pipeline_parallel_size=p, num_micro_batches=8), "data")
        for p in (1, 8)
    )
    copies = setting.model.vocab_size // 8 * setting.model.hidden_size * setting.implementation.reduced_bytes
    assert alone == 0
    assert piped == pytest.approx(pair_seconds(setting, np.array([float(copies)]), np.array([64]))[0])
    untied = with_model(setting, tied_embeddings=False)
    assert term(priced(untied, tensor_parallel_size=8, pipeline_parallel_size=8, num_micro_batches=8), "data") == 0


def test_two_stages_of_one_node_add_up_their_embedding_inside_it() -> None:
    setting = setting_of("gpt-22b", "selene")
    plan = {"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "num_micro_batches": 8}
    inside = term(priced(setting, **plan), "data")
    nvlink, infiniband = setting.cluster.links
    slower = infiniband.model_copy(update={"bandwidth_bytes_per_second": infiniband.bandwidth_bytes_per_second / 10})
    cluster = setting.cluster.model_copy(update={"links": (nvlink, slower)})
    assert term(priced(replace(setting, cluster=cluster), **plan), "data") == inside


def test_replicas_reduce_gradients_once_a_step_however_many_micro_batches() -> None:
    few, many = (term(priced(gpt(), data_parallel_size=8, num_micro_batches=count), "data") for count in (1, 16))
    assert few == many > 0


@pytest.mark.parametrize("reduced_bytes", [2, 4])
@pytest.mark.parametrize(
    ("zero_stage", "of_gradients", "of_weights"),
    [
        (0, 2, 0),  # an all-reduce
        (1, 1, 1),
        (2, 2, 1),  # a scatter for each micro-batch
        (3, 2, 4),  # and two gathers of weights for each
    ],
)
def test_zero_moves_gradients_and_weights_as_often_as_it_must(
    zero_stage: int, of_gradients: int, of_weights: int, reduced_bytes: int
) -> None:
    """In collectives that each pass all of them once, for two micro-batches. Source: arXiv 1910.02054, section 7."""
    at_once = with_efficiency(with_links(setting_of("gpt-22b", "selene"), latency_seconds=0.0), start=0.0)
    setting = with_trainer(at_once, reduced_bytes=reduced_bytes)
    prices = priced(setting, data_parallel_size=8, num_micro_batches=2, zero_stage=zero_stage)
    link = setting.cluster.links[0].bandwidth_bytes_per_second * setting.cluster.efficiency.link
    num_bytes = num_parameters(setting.model) * (of_gradients * reduced_bytes + of_weights * 2)
    assert term(prices, "data") == pytest.approx(num_bytes * 7 / 8 / link)


def test_on_a_cpu_zero_1_reduces_gradients_whole_as_the_trainer_does() -> None:
    """In fp32, where weights and gradients are as wide: three gathers' worth instead of two."""
    setting = with_links(setting_of("gpt-175b-proxy", "local", "fp32", "trisweep"), latency_seconds=0.0)
    whole, sharded = (term(priced(setting, data_parallel_size=4, zero_stage=stage), "data") for stage in (0, 1))
    assert sharded / whole == pytest.approx(3 / 2)


def test_a_later_stage_with_more_layers_reduces_and_updates_them_after_the_pipeline() -> None:
    """The gradients of 40 layers take as long wherever they are; behind 8 they are complete a backward pass earlier."""
    setting = with_trainer(gpt(), data_overlap=0.0)
    plan = {"pipeline_parallel_size": 2, "data_parallel_size": 8, "num_micro_batches": 4}
    light_first, heavy_first = (
        priced(setting, **plan, first_stage_layers=layers, last_stage_layers=48 - layers) for layers in (8, 40)
    )
    assert term(light_first, "optimizer") == pytest.approx(term(heavy_first, "optimizer"), rel=0.01)
    waited = term(heavy_first, "data") - term(light_first, "data")
    assert 0 < waited < 0.5 * term(heavy_first, "data")


def test_zero_1_updates_a_share_of_the_parameters() -> None:
    setting = with_efficiency(gpt(), kernel_seconds=0.0)
    setting = with_trainer(setting, whole_gradient_bytes=0.0)
    whole, sharded = (term(priced(setting, data_parallel_size=8, zero_stage=stage), "optimizer") for stage in (0, 1))
    assert sharded == pytest.approx(whole / 8)


def test_passes_over_whole_gradients_are_not_shared_out() -> None:
    rate = gpt().cluster.device.memory_bandwidth_bytes_per_second * gpt().cluster.efficiency.memory
    without, with_passes = (with_trainer(gpt(), whole_gradient_bytes=each) for each in (0.0, 16.0))
    for stage in (0, 1):
        plan = {"data_parallel_size": 8, "zero_stage": stage}
        more = term(priced(with_passes, **plan), "optimizer") - term(priced(without, **plan), "optimizer")
        assert more == pytest.approx(16.0 * num_parameters(gpt().model) / rate)


def test_each_stage_waits_for_its_host_once_a_micro_batch() -> None:
    plan = {"pipeline_parallel_size": 4, "num_micro_batches": 8}
    without, waiting = (priced(with_trainer(gpt(), micro_batch_seconds=each), **plan) for each in (0.0, 1e-3))
    assert waiting.step.total_seconds[0] - without.step.total_seconds[0] == pytest.approx((8 + 4 - 1) * 1e-3, rel=0.05)


def test_a_device_alone_waits_for_nobody_and_many_wait_for_the_slowest_of_them() -> None:
    """Of n normal values the largest lies `sqrt(2 ln n)` standard deviations above their mean, for large n."""
    shares = [
        term(prices, "waiting") / term(prices, "compute")
        for prices in (
            priced(with_trainer(gpt(), micro_batch_seconds=0.0), data_parallel_size=number) for number in (1, 8, 1024)
        )
    ]
    assert shares == pytest.approx([gpt().scale.slowest * (2 * log(number)) ** 0.5 for number in (1, 8, 1024)])


def test_transfers_show_in_part_beside_the_computation_of_another_chunk_which_one_chunk_has_not() -> None:
    alone = with_trainer(gpt(), overlaps_chunk_transfers=False)
    beside = with_trainer(gpt(), overlaps_chunk_transfers=True)
    stages = {"pipeline_parallel_size": 4, "num_micro_batches": 8}
    assert term(priced(beside, **stages), "pipeline") == term(priced(alone, **stages), "pipeline")
    chunks = {**stages, "virtual_pipeline_size": 2, "schedule": "interleaved"}
    shown = gpt().scale.shown * term(priced(alone, **chunks), "pipeline")
    assert term(priced(beside, **chunks), "pipeline") == pytest.approx(shown)


@pytest.mark.parametrize(("cluster", "hides"), [("dgx-h100", True), ("local", False)])
def test_this_trainers_sums_over_replicas_run_beside_its_passes_but_not_on_the_cores_that_make_them(
    cluster: str, hides: bool
) -> None:
    setting = setting_of("gpt-1.4b", cluster, trainer="trisweep")
    after = with_trainer(setting, data_overlap=0.0, sharded_overlap=0.0)
    for zero_stage in range(4):
        plan = {"data_parallel_size": 8, "zero_stage": zero_stage}
        beside, alone = (term(priced(one, **plan), "data") for one in (setting, after))
        assert 0 < beside <= alone
        assert (beside < alone) == hides


def test_ranks_that_share_a_core_take_turns() -> None:
    """Eight ranks on two cores: four times the work for each, and nobody waits while another one works."""
    setting = setting_of("gpt-175b-proxy", "local", "fp32", "trisweep")
    shared = Setting(
        setting.model, setting.cluster.model_copy(update={"cores_per_node": 2}), "fp32", setting.implementation
    )
    plan = {"data_parallel_size": 8, "num_micro_batches": 4}
    alone, turns = (term(priced(one, **plan), "compute") for one in (setting, shared))
    assert turns == pytest.approx(4 * alone)


def test_chunks_that_are_done_early_reduce_their_gradients_beside_those_of_a_whole_group_of_micro_batches() -> None:
    """On slow links the reduction is longer than any computation, so that what hides it is what it is shorter by."""
    slow = with_links(with_trainer(gpt(), data_overlap=1.0), bandwidth_bytes_per_second=1e-3)
    free = with_trainer(slow, data_overlap=0.0)
    stages = {"pipeline_parallel_size": 4, "data_parallel_size": 8, "num_micro_batches": 8}
    chunks = {**stages, "virtual_pipeline_size": 4, "schedule": "interleaved"}
    hidden = [term(priced(free, **plan), "data") - term(priced(slow, **plan), "data") for plan in (stages, chunks)]
    assert hidden[1] == pytest.approx(4 * 3 / 4 * hidden[0])
