"""A slow run is told why, with evidence and a price; one that is not slow is told so, and nobody is suspected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from diagnose.diagnosis import Diagnosis, RunVerdict, diagnose
from diagnose.runs import LogLine, SaidBy
from diagnose.understood import price_of, with_links
from tests.diagnose.made_run import GIB, fact, made_run, steps_of


def suspected(diagnosis: Diagnosis) -> list[str]:
    return [suspect.name for suspect in diagnosis.suspects]


Case = tuple[str, dict[str, Any], dict[str, Any]]
SMALL = {"tp": "1", "sequence_parallel": None, "hidden": "2048", "heads": "16", "ffn_hidden": "5632", "layers": "24"}
CASES: list[Case] = [
    (
        "overlap of the gradients' reduction",
        {
            "columns": {"global_batch": "64", "num_gpus": "64", "micro_batch": "1"},
            "settings": {"overlap_grad_reduce": "False"},
        },
        {"settings": {"overlap_grad_reduce": "True"}},
    ),
    ("unfused attention", {"columns": {"flash_attention": "no"}}, {"columns": {"flash_attention": "yes"}}),
    (
        "no sequence parallelism",
        {"columns": {"tp": "8", "sequence_parallel": "no"}},
        {"columns": {"tp": "8", "sequence_parallel": "yes"}},
    ),
    (
        "no distributed optimizer",
        {"columns": {"zero_stage": "0", "tp": "8", "global_batch": "32"}},
        {"columns": {"zero_stage": "1", "tp": "8", "global_batch": "32"}},
    ),
    ("full recomputation", {"columns": {"recompute": "full"}}, {"columns": {"recompute": "none"}}),
    (
        "weights sharded without need",
        {"trainer": "fsdp", "columns": {"tp": "1", "sequence_parallel": None, "micro_batch": "1", "zero_stage": "3"}},
        {"trainer": "fsdp", "columns": {"tp": "1", "sequence_parallel": None, "micro_batch": "1", "zero_stage": "2"}},
    ),
    (
        "tensor ranks across nodes",
        {"columns": {"tp": "8", "gpus_per_node": "4"}},
        {"columns": {"tp": "8", "gpus_per_node": "8"}},
    ),
    (
        "few micro-batches",
        {"columns": {"pp": "8", "global_batch": "32", "micro_batch": "1"}},
        {"columns": {"pp": "8", "global_batch": "1024", "micro_batch": "1"}},
    ),
    (
        "micro-batch of one",
        {"columns": {"tp": "8", "micro_batch": "1", "hidden": "1024", "heads": "16", "ffn_hidden": "2816"}},
        {"columns": {"tp": "8", "micro_batch": "2", "hidden": "1024", "heads": "16", "ffn_hidden": "2816"}},
    ),
    (
        "uneven stages",
        {"columns": {"pp": "16", "layers": "36", "global_batch": "1024"}},
        {"columns": {"pp": "16", "layers": "32", "global_batch": "1024"}},
    ),
    (
        "offloading",
        {
            "trainer": "deepspeed",
            "columns": {**SMALL, "num_gpus": "8", "global_batch": "16", "offload_optimizer": "yes"},
        },
        {
            "trainer": "deepspeed",
            "columns": {**SMALL, "num_gpus": "8", "global_batch": "16", "offload_optimizer": "no"},
        },
    ),
    ("fp32 products", {"columns": {"precision": "fp32"}}, {"columns": {"precision": "bf16"}}),
    (
        "host-bound layers",
        {"columns": {"tp": "8", "hidden": "512", "heads": "8", "ffn_hidden": "1408", "micro_batch": "1"}},
        {},
    ),
    ("power limit", {"columns": {"power_limit_watts": "400"}}, {"columns": {"power_limit_watts": None}}),
    (
        "layers not compiled",
        {"trainer": "torchtitan", "columns": {**SMALL, "zero_stage": "2", "compile": "no"}},
        {"trainer": "torchtitan", "columns": {**SMALL, "zero_stage": "2", "compile": "yes"}},
    ),
    (
        "one connection to the device",
        {
            "trainer": "torchtitan",
            "columns": {"tp": "1", "sequence_parallel": None, "zero_stage": "3", "global_batch": "128"},
            "settings": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        },
        {
            "trainer": "torchtitan",
            "columns": {"tp": "1", "sequence_parallel": None, "zero_stage": "3", "global_batch": "128"},
            "settings": {"CUDA_DEVICE_MAX_CONNECTIONS": "32"},
        },
    ),
    (
        "launch blocking",
        {"columns": {"tp": "8"}, "settings": {"CUDA_LAUNCH_BLOCKING": "1"}},
        {"columns": {"tp": "8"}, "settings": {"CUDA_LAUNCH_BLOCKING": "0"}},
    ),
    ("launch blocking", {"columns": {"tp": "8", "launch_blocking": "yes"}}, {"columns": {"tp": "8"}}),
    ("async_tp off", {"columns": {"tp": "8", "async_tp": "no"}}, {"columns": {"tp": "8", "async_tp": "yes"}}),
]


@pytest.mark.parametrize(("name", "slow", "fast"), CASES, ids=[name for name, _, _ in CASES])
def test_a_suspect_has_evidence_and_a_price_and_without_evidence_nobody_is_suspected(
    name: str, slow: Mapping[str, Any], fast: Mapping[str, Any]
) -> None:
    found = diagnose(made_run(**slow))
    suspect = next(each for each in found.suspects if each.name == name)
    assert suspect.seconds is not None
    assert suspect.seconds > 0
    assert any(evidence.at and evidence.at.line for evidence in suspect.evidence)
    assert suspect.remedy
    assert found.verdict is RunVerdict.BY_CONFIGURATION
    assert name not in suspected(diagnose(made_run(**fast)))


CONTROLS: list[tuple[str, dict[str, str | None], float]] = [
    ("megatron-core", {}, 0.97),
    ("megatron-core", {}, 1.2),
    ("megatron-core", {"tp": "4", "layers": "80", "hidden": "8192", "heads": "64", "kv_heads": "8", "pp": "4"}, 1.05),
    ("megatron-core", {"gpu": "A100-80GB", "tp": "4", "num_gpus": "128", "global_batch": "512"}, 1.1),
    ("torchtitan", {"tp": "1", "sequence_parallel": None, "zero_stage": "2", "compile": "yes"}, 1.1),
    ("deepspeed", {"tp": "1", "sequence_parallel": None, "micro_batch": "4"}, 1.15),
    ("megatron-core", {"num_experts": "8", "top_k": "2", "ep": "8", "tp": "1", "num_gpus": "64"}, 1.0),
]


@pytest.mark.parametrize(("trainer", "columns", "factor"), CONTROLS)
def test_a_run_that_is_not_slow_is_told_so_without_a_suspect(
    trainer: str, columns: Mapping[str, str | None], factor: float
) -> None:
    if columns.get("layers") == "80":
        columns = {**columns, "ffn_hidden": "28672", "micro_batch": "1", "global_batch": "512", "vpp": "5"}
    if "num_experts" in columns:
        columns = {**columns, "sequence_parallel": None, "moe_ffn": "4096", "micro_batch": "1"}
    found = diagnose(made_run(factor, trainer, columns))
    assert (found.verdict, suspected(found)) == (RunVerdict.NOT_SLOW, [])
    assert found.unexplained_seconds is None


def test_a_run_that_is_faster_than_predicted_has_no_suspect_whatever_its_choices_cost() -> None:
    found = diagnose(made_run(0.6, columns={"recompute": "full"}))
    assert (found.verdict, suspected(found)) == (RunVerdict.FASTER, [])


def test_an_h100_whose_rate_is_a_third_too_low_is_asked_about_its_power() -> None:
    (asked,) = diagnose(made_run(1.5)).suspects
    assert (asked.name, asked.seconds) == ("power limit?", None)
    assert "419 of 700 W would explain the step" in asked.title
    assert "its rate is 33% below the prediction" in asked.evidence[0].says
    assert diagnose(made_run(1.5, columns={"power_limit_watts": "600"})).suspects[0].seconds is not None
    for factor, columns in ((1.0, {}), (4.0, {}), (1.5, {"gpu": "A100-80GB-SXM"}), (1.5, {"power_limit_watts": "600"})):
        assert "power limit?" not in suspected(diagnose(made_run(factor, columns=columns)))
    run = made_run(1.5)
    run.marks["recompilation"] = [LogLine("run.log", 8, "torch._dynamo hit config.recompile_limit")]
    assert suspected(diagnose(run)) == ["recompilation"]


SHARDED = {"tp": "1", "sequence_parallel": None, "zero_stage": "3", "micro_batch": "1", "global_batch": "64"}


def test_one_port_a_ring_is_asked_about_where_it_would_explain_the_step() -> None:
    case = diagnose(made_run(trainer="fsdp", columns=SHARDED)).case
    assert case is not None
    cluster = case.configuration.setup.cluster.with_fewest_ports()
    assert cluster is not None
    slower = price_of([with_links(case.configuration, cluster.links)])[0].step_seconds / case.predicted.step_seconds
    assert slower > 2
    found = diagnose(made_run(slower, "fsdp", SHARDED))
    asked = next(each for each in found.suspects if each.name == "one port a ring?")
    assert asked.seconds == pytest.approx((slower - 1) * case.predicted.step_seconds)
    assert "one of its 8 ports" in asked.title
    # Another network, or none between nodes, is not asked about.
    for factor, columns in ((1.4 * slower, {}), (1.0, {}), (slower, {"num_gpus": "8", "global_batch": "8"})):
        assert "one port a ring?" not in suspected(diagnose(made_run(factor, "fsdp", {**SHARDED, **columns})))


GPT_2 = {"layers": "12", "hidden": "768", "heads": "12", "ffn_hidden": None, "gated_mlp": None, "vocab": "50257"}
GPT_2 |= {"seq": "1024", "gpu": "A100-80GB-SXM", "num_gpus": "8", "tp": "1", "sequence_parallel": None}
GPT_2 |= {"micro_batch": "12", "global_batch": "480", "zero_stage": "0", "tied_embeddings": "yes"}


def test_a_vocabulary_that_is_not_padded_costs_gpt_2_about_what_nanogpt_gained_by_padding() -> None:
    """nanoGPT: 50,304 rows in place of 50,257 made it about 25 % faster (Karpathy, in February 2023)."""
    found = diagnose(made_run(trainer="fsdp", columns=GPT_2))
    suspect = found.suspects[0]
    assert (suspect.name, suspect.remedy) == ("vocabulary padding", "config.json: vocab_size = 50304")
    assert found.understood.predicted is not None
    assert suspect.seconds is not None
    assert 0.18 < suspect.seconds / found.understood.predicted.step_seconds < 0.28
    assert found.advice[0].proposal.what == ("a vocabulary of 50,304 rows instead of 50,257",)
    assert found.advice[-1].proposal.configuration.setup.model.vocab_size == 50304


@pytest.mark.parametrize(("trainer", "vocab"), [("fsdp", "50304"), ("megatron-core", "50257")])
def test_a_padded_vocabulary_and_one_that_the_trainer_pads_are_no_suspects(trainer: str, vocab: str) -> None:
    assert "vocabulary padding" not in suspected(diagnose(made_run(1.0, trainer, {**GPT_2, "vocab": vocab})))


def test_what_nothing_explains_is_named_not_explained() -> None:
    found = diagnose(made_run(4.0))
    assert found.verdict is RunVerdict.SLOWER
    assert found.suspects == ()
    assert found.understood.predicted is not None
    assert found.unexplained_seconds == pytest.approx(3 * found.understood.predicted.step_seconds)


@pytest.mark.parametrize("name", ["NCCL_P2P_DISABLE", "detect_anomaly", "log_params_norm"])
def test_debugging_is_suspected_where_a_run_is_late(name: str) -> None:
    assert name in suspected(diagnose(made_run(1.6, settings={name: "1"})))
    assert name not in suspected(diagnose(made_run(1.0, settings={name: "1"})))
    assert name not in suspected(diagnose(made_run(1.6, settings={name: "0"})))


def test_devices_without_nvlink_are_suspected_where_the_run_is_late() -> None:
    run = made_run(factor=2.0)
    run.marks["no_nvlink"] = [LogLine("topo.txt", 3, "GPU1\tPIX\t X \tSYS\tSYS\t0-23")]
    assert "no NVLink" in suspected(diagnose(run))
    assert "no NVLink" not in suspected(diagnose(replace(run, steps=made_run().steps)))


def test_sockets_are_suspected_with_the_network_that_would_explain_the_step() -> None:
    run = made_run(3.0, columns={"global_batch": "64", "micro_batch": "1"})
    assert "sockets" not in suspected(diagnose(run))
    run.marks["socket"] = [LogLine("run.log", 5, "node1:12:34 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>")]
    suspect = next(each for each in diagnose(run).suspects if each.name == "sockets")
    assert "Gb/s a node would explain the step" in suspect.title
    assert suspect.evidence[0].at == run.marks["socket"][0]
    run.columns["num_gpus"] = fact("8", 20)
    assert "sockets" not in suspected(diagnose(run))  # of one node


def test_a_softmax_that_the_log_says_is_not_fused_is_suspected_where_the_run_is_late() -> None:
    run = made_run(1.6)
    run.marks["unfused_softmax"] = [LogLine("run.log", 8, "WARNING: constraints for invoking fused softmax not met")]
    assert suspected(diagnose(run)) == ["unfused softmax"]
    run.steps = steps_of([step.seconds / 1.6 for step in run.steps])
    assert suspected(diagnose(run)) == []


def test_slow_steps_beside_saving_are_priced_by_the_log() -> None:
    run = made_run()
    one = run.steps[0].seconds
    run.steps = steps_of([one * (6 if place % 10 == 9 else 1) for place in range(40)])
    run.marks["saving"] = [LogLine("run.log", 100 + place, "saving checkpoint") for place in range(9, 40, 10)]
    suspect = next(each for each in diagnose(run).suspects if each.name == "slow steps")
    assert suspect.seconds == pytest.approx(0.5 * one)
    assert suspect.title.startswith("single steps are slower, every 10 steps, beside saving")
    run.steps = steps_of([one] * 40)
    assert suspected(diagnose(run)) == []


def test_waiting_for_data_is_priced_by_its_timer_and_explains_its_part() -> None:
    run = made_run(4.0)
    one = run.steps[0].seconds
    run.timers = {"batch-generator": 0.4 * one, "forward-compute": 0.3 * one}
    found = diagnose(run)
    assert suspected(found) == ["reading data"]
    assert found.unexplained_seconds == pytest.approx(0.35 * one)


def test_a_pace_that_falls_is_suspected_and_one_that_stays_is_not() -> None:
    run = made_run()
    one = run.steps[0].seconds
    run.steps = steps_of([one * (1 + 0.002 * (place % 3)) * (1.5 if place >= 20 else 1) for place in range(40)])
    found = diagnose(run)
    assert suspected(found) == ["uneven pace"]
    assert found.suspects[0].evidence[0].at == LogLine("run.log", 120, "")
    assert found.verdict is RunVerdict.NOT_SLOW


def test_gaps_in_memory_are_suspected_only_where_it_is_full() -> None:
    run = made_run(1.5, allocated_gib=30)
    run.steps = [step._replace(memory_bytes=77 * GIB) for step in run.steps]
    assert "fragmented memory" in suspected(diagnose(run))
    run.steps = [step._replace(memory_bytes=40 * GIB) for step in run.steps]
    assert "fragmented memory" not in suspected(diagnose(run))


def test_flags_without_effect_are_said_and_are_no_suspects() -> None:
    columns = {"tp": "8", "pp": "1", "num_gpus": "8", "global_batch": "32"}
    found = diagnose(made_run(columns=columns, settings={"overlap_grad_reduce": "True", "use_flash_attn": "True"}))
    assert [one.says for one in found.without_effect] == [
        "overlap_grad_reduce = True has no effect: there is one replica, whose gradients nobody reduces"
    ]
    assert "overlap" not in "".join(suspected(found))


def test_a_command_that_lacks_a_flag_is_evidence_and_a_printed_block_without_it_is_none() -> None:
    columns = {"global_batch": "64", "micro_batch": "1"}
    flags = {"num_layers": "40", "micro_batch_size": "1"}
    found = diagnose(made_run(1.0, columns=columns, settings=flags, said_by=SaidBy.FLAG))
    evidence = next(each for each in found.suspects if "overlap" in each.name).evidence[0]
    assert evidence.says == "the command has no --overlap-grad-reduce"
    assert not any("overlap" in name for name in suspected(diagnose(made_run(1.0, columns=columns, settings=flags))))


def test_work_without_a_price_still_gets_what_was_measured_and_suspected() -> None:
    run = made_run(columns={"lora": "yes"}, settings={"CUDA_LAUNCH_BLOCKING": "1"})
    found = diagnose(run)
    assert found.verdict is RunVerdict.NO_PRICE
    assert "lora" in found.understood.reason
    assert found.measured is not None
    assert suspected(found) == ["CUDA_LAUNCH_BLOCKING"]
    assert found.advice == ()


def test_what_is_missing_is_named() -> None:
    found = diagnose(made_run(columns={"gpu": None, "hidden": None}))
    assert found.verdict is RunVerdict.NO_PRICE
    assert [each.column for each in found.understood.missing] == ["hidden", "gpu"]


def test_launch_blocking_is_priced_once_and_every_proposal_is_without_it() -> None:
    found = diagnose(made_run(1.6, columns={"tp": "8"}, settings={"CUDA_LAUNCH_BLOCKING": "1"}))
    assert [name for name in suspected(found) if "blocking" in name.lower()] == ["launch blocking"]
    assert found.understood.left_out == ()
    assert not found.advice[-1].proposal.configuration.implementation.blocks_launches
    assert "unset CUDA_LAUNCH_BLOCKING" in found.advice[-1].proposal.what


@pytest.mark.parametrize("column", ["cpu_offload", "offload", "activation_offload"])
def test_offloading_without_a_price_is_suspected_of_a_late_run_alone(column: str) -> None:
    late = diagnose(made_run(factor=2.0, columns={column: "yes"}))
    assert [each.seconds for each in late.suspects if each.name == "offloading"] == [None]
    assert "offloading" not in suspected(diagnose(made_run(columns={column: "yes"})))
    assert "offloading" not in suspected(diagnose(made_run(factor=2.0, columns={column: "no"})))
    assert diagnose(made_run(columns={column: "no"})).understood.left_out == ()


def test_offloaded_activations_are_left_out_of_the_price_and_said() -> None:
    found = diagnose(made_run(columns={"activation_offload": "yes"}))
    assert found.understood.left_out == ("activation_offload",)
    assert found.factor == pytest.approx(1.0)
