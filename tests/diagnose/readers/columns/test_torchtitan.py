"""torchtitan's TOML, what it prints of its configuration, and its lines about steps, as columns."""

from __future__ import annotations

import json
from typing import Any

import pytest

from diagnose.readers import missing_of, read_runs
from diagnose.runs import SaidBy
from sweeps.table.configuration import configuration_of
from tests.diagnose.made_up import TITAN, Write, of_ranks, titan_steps
from tests.diagnose.readers.columns.test_megatron import cells, the_run

CONFIG: dict[str, dict[str, Any]] = {
    "job": {"dump_folder": "./outputs", "description": "Llama 3 8B training"},
    "model": {"name": "llama3", "flavor": "8B", "converters": []},
    "optimizer": {"name": "AdamW", "lr": 3e-4},
    "training": {"local_batch_size": 2, "global_batch_size": -1, "seq_len": 8192, "steps": 1000},
    "parallelism": {
        **{"data_parallel_replicate_degree": 1, "data_parallel_shard_degree": -1, "tensor_parallel_degree": 1},
        **{"pipeline_parallel_degree": 1, "context_parallel_degree": 1, "fsdp_reshard_after_forward": "default"},
    },
    "activation_checkpoint": {"mode": "selective", "selective_ac_option": "op"},
    "compile": {"enable": True, "components": ["model", "loss"]},
}
EXPECTED = {
    **{"layers": "32", "hidden": "4096", "ffn_hidden": "14336", "heads": "32", "kv_heads": "8", "vocab": "128256"},
    **{"seq": "8192", "gated_mlp": "yes", "tied_embeddings": "no", "num_gpus": "8", "tp": "1", "pp": "1"},
    **{"micro_batch": "2", "global_batch": "16", "zero_stage": "FSDP2", "recompute": "selective (per op)"},
    **{"precision": "bf16", "compile": "yes", "compile_loss": "yes", "implementation": "torchtitan"},
}
MESH = f"{TITAN.format(0, 0, 1)}Building 1-D device mesh with ['dp_shard'], [8]\n"


def changed(**sections: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: {**values, **sections.get(name, {})} for name, values in CONFIG.items()}


def toml(config: dict[str, dict[str, Any]]) -> str:
    return "\n".join(
        f"[{section}]\n" + "\n".join(f"{name} = {json.dumps(value)}" for name, value in values.items()) + "\n"
        for section, values in config.items()
    )


def printed(config: dict[str, dict[str, Any]], words: str = "Running with configs: ") -> str:
    return f"{TITAN.format(0, 0, 0)}{words}{config}\n"


def test_a_printed_dictionary_fills_every_column(write: Write) -> None:
    run = the_run(write("titan.log", printed(CONFIG) + MESH + titan_steps([2793, 6793, 6800])))
    assert cells(run, *EXPECTED) == EXPECTED
    assert cells(run, "gpu") == {"gpu": "H100-80GB-SXM"}
    assert run.columns["gpu"].said_by is SaidBy.COMPUTED
    assert "989 TFLOPS" in run.columns["gpu"].note
    assert missing_of(run) == []
    assert configuration_of(run.row()).setup.batch.global_batch_size == 16


def test_a_rate_becomes_the_time_of_a_step(write: Write) -> None:
    run = the_run(write("titan.log", printed(CONFIG) + MESH + titan_steps([2793, 6793])))
    first, second = run.steps
    assert (first.number, second.number, second.covers) == (1, 10, 9)
    assert second.seconds == pytest.approx(16 * 8192 / (6793 * 8))
    assert second.tokens_per_second == 6793 * 8
    assert second.memory_bytes == pytest.approx(0.6 * 79.1 * 2**30, rel=1e-3)
    assert second.memory_share == 0.6
    assert second.mfu == pytest.approx(6793 * 0.058 / 989, abs=1e-4)


def test_json_over_many_lines_is_read(write: Write) -> None:
    text = f"{TITAN.format(0, 0, 0)}Running with configs: {json.dumps(CONFIG, indent=2)}\n"
    run = the_run(write("titan.log", text + MESH + titan_steps([6793])))
    assert cells(run, *EXPECTED) == EXPECTED
    assert run.columns["seq"].at is not None
    assert '"seq_len": 8192' in run.columns["seq"].at.text


def test_a_toml_with_its_log_is_one_run(write: Write) -> None:
    run = the_run(write("llama3_8b.toml", toml(CONFIG)), write("titan.log", MESH + titan_steps([6793])))
    assert cells(run, *EXPECTED) == EXPECTED
    assert run.columns["seq"].said_by is SaidBy.FILE
    assert run.columns["seq"].at is not None
    assert run.columns["seq"].at.text == "seq_len = 8192"


def test_a_toml_alone_is_asked_for_its_devices(write: Write) -> None:
    run = the_run(write("llama3_8b.toml", toml(CONFIG)))
    assert {each.column for each in missing_of(run)} == {"num_gpus", "global_batch", "gpu"}
    assert run.steps == []


def test_flags_of_the_command_come_before_the_toml(write: Write) -> None:
    command = "+ torchrun --nproc_per_node=8 --rdzv_backend c10d -m torchtitan.train --job.config_file x.toml"
    flags = " --compile.enable --training.seq_len 4096 --parallelism.tensor_parallel_degree=2\n"
    config = {name: values for name, values in CONFIG.items() if name not in ("training", "compile")}
    run = the_run(write("x.toml", toml(config)), write("titan.log", command + flags + titan_steps([6793])))
    wanted = {"seq": "4096", "compile": "yes", "tp": "2", "num_gpus": "8", "sequence_parallel": "yes"}
    assert cells(run, *wanted) == wanted


def test_the_shape_that_is_printed_comes_before_the_flavor(write: Write) -> None:
    shape = (
        f"{TITAN.format(0, 0, 2)}Building llama3 tiny with TransformerModelArgs(dim=2048, n_layers=16, n_heads=32, "
        "n_kv_heads=8, vocab_size=128256, multiple_of=1024, ffn_dim_multiplier=1.5, norm_eps=1e-05, max_seq_len=8192)\n"
    )
    run = the_run(write("titan.log", printed(changed(model={"flavor": "1B"})) + shape + MESH + titan_steps([6793])))
    wanted = {"layers": "16", "hidden": "2048", "ffn_hidden": "8192", "heads": "32", "kv_heads": "8"}
    assert cells(run, *wanted) == wanted


def test_ranks_and_colours_count_once(write: Write) -> None:
    text = printed(CONFIG) + MESH + titan_steps([2793, 6793], colour=True)
    plain = text.replace("[rank0]:", "")
    run = the_run(write("titan.log", of_ranks(plain, "[rank{}]:", range(8))))
    assert cells(run, *EXPECTED) == EXPECTED
    assert [step.number for step in run.steps] == [1, 10]


def test_colours_without_their_escape_sign_change_nothing(write: Write) -> None:
    text = (printed(CONFIG) + MESH + titan_steps([2793, 6793], colour=True)).replace("\x1b", "")
    assert [step.number for step in the_run(write("titan.log", text)).steps] == [1, 10]


def test_devices_are_counted_by_their_ranks_where_nothing_else_says_them(write: Write) -> None:
    text = printed(CONFIG) + titan_steps([6793])
    run = the_run(write("titan.log", of_ranks(text.replace("[rank0]:", ""), "[rank{}]:", range(8))))
    assert (run.columns["num_gpus"].value, run.columns["num_gpus"].said_by) == ("8", SaidBy.COMPUTED)


def test_a_restart_without_a_configuration_keeps_it(write: Write) -> None:
    text = printed(CONFIG) + MESH + titan_steps([6793] * 6) + titan_steps([3000, 3000, 3000])
    first, second = read_runs([write("titan.log", text)])
    assert (len(first.steps), len(second.steps)) == (6, 3)
    assert cells(second, *EXPECTED) == EXPECTED


@pytest.mark.parametrize(
    ("sections", "column", "value"),
    [
        ({"activation_checkpoint": {"selective_ac_option": "2"}}, "recompute", "selective (every 2 layer)"),
        ({"activation_checkpoint": {"mode": "full"}}, "recompute", "full"),
        ({"activation_checkpoint": {"mode": "none"}}, "recompute", "none"),
        ({"compile": {"enable": False}}, "compile", "no"),
        ({"compile": {"components": ["model"]}}, "compile_loss", "no"),
        ({"model": {"converters": ["float8"]}}, "matmul_precision", "fp8"),
        ({"training": {"mixed_precision_param": "float32"}}, "precision", "fp32"),
        ({"parallelism": {"fsdp_reshard_after_forward": "never"}}, "reshard_after_forward", "no"),
        (
            {"parallelism": {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 4}},
            "zero_group_size",
            "4",
        ),
        ({"parallelism": {"data_parallel_replicate_degree": 8, "data_parallel_shard_degree": 1}}, "zero_stage", "DDP"),
        ({"training": {"global_batch_size": 64}}, "global_batch", "64"),
        ({"parallelism": {"pipeline_parallel_degree": 2, "pipeline_parallel_microbatch_size": 1}}, "micro_batch", "1"),
        ({"parallelism": {"pipeline_parallel_degree": 2, "pipeline_parallel_schedule": "Interleaved1F1B"}}, "vpp", "2"),
        ({"parallelism": {"enable_async_tensor_parallel": True}}, "async_tp", "yes"),
    ],
)
def test_a_choice_has_its_column(write: Write, sections: dict[str, Any], column: str, value: str) -> None:
    degrees = sections.get("parallelism", {})
    replicas, shards = (degrees.get(f"data_parallel_{kind}_degree", 0) for kind in ("replicate", "shard"))
    mesh = (
        MESH.replace("'dp_shard'], [8]", f"'dp_replicate', 'dp_shard'], [{replicas}, {shards}]") if replicas else MESH
    )
    run = the_run(write("titan.log", printed(changed(**sections)) + mesh + titan_steps([6793])))
    assert cells(run, column) == {column: value}


def test_names_of_2024_are_known(write: Write) -> None:
    old: dict[str, dict[str, Any]] = {
        "model": {"name": "llama3", "flavor": "70B"},
        "training": {
            "batch_size": 1,
            "seq_len": 8192,
            "tensor_parallel_degree": 8,
            "compile": True,
            "data_parallel_shard_degree": 8,
        },
        "experimental": {"pipeline_parallel_degree": 1, "context_parallel_degree": 1},
    }
    steps = titan_steps([700], peak=312.0, capacity=79.15).replace("tps:", "wps:")
    run = the_run(write("titan.log", printed(old, "Running with args: ") + steps))
    wanted = {"layers": "80", "tp": "8", "num_gpus": "64", "micro_batch": "1", "global_batch": "8", "compile": "yes"}
    assert cells(run, *wanted) == wanted
    assert run.columns["gpu"].value == "A100-80GB-SXM"
    assert run.steps[0].tokens_per_second == 700 * 64


def test_the_sentence_of_2024_says_batch_sequence_and_by_them_the_devices(write: Write) -> None:
    """A log of rank 0 alone names one rank, and is not a job of one device."""
    starts = (
        "Training starts at step 1, with local batch size 5, global batch size 20, sequence length 8192, total steps 9"
    )
    run = the_run(write("titan.log", f"{TITAN.format(0, 0, 1)}{starts} (warmup 2)\n" + titan_steps([5380, 6793, 6800])))
    found = cells(run, "micro_batch", "global_batch", "seq", "num_gpus")
    assert found == {"micro_batch": "5", "global_batch": "20", "seq": "8192", "num_gpus": "4"}


def test_a_log_of_some_ranks_does_not_say_how_many_there_are(write: Write) -> None:
    lines = titan_steps([876, 876, 876])
    assert "num_gpus" not in the_run(write("one.log", lines)).columns
    assert "num_gpus" not in the_run(write("some.log", lines.replace("[rank0]", "[rank3]"))).columns


def test_a_device_is_the_one_with_the_memory_that_its_driver_reports(write: Write) -> None:
    capacity = "{}CUDA capacity: NVIDIA H100 with {}GiB memory\n"
    for gib, name in (("95.00", "H100-96GB-HBM2e-500W"), ("79.10", "H100-80GB-SXM"), ("40.00", "H100-80GB-SXM")):
        log = capacity.format(TITAN.format(0, 0, 0), gib) + printed(CONFIG) + MESH + titan_steps([2793, 6793, 6800])
        assert cells(the_run(write("titan.log", log)), "gpu") == {"gpu": name}


def test_the_ranks_that_were_heard_are_those_of_a_second_start_too(write: Write) -> None:
    start = "[rank0]:Starting job: Llama 3 8B training\n" + "".join(
        titan_steps([2793, 6793, 6800]).replace("[rank0]", f"[rank{rank}]") for rank in (0, 1)
    )
    runs = read_runs([write("titan.log", start + start)])
    assert [cells(run, "num_gpus") for run in runs] == [{"num_gpus": "2"}] * 2


def test_the_model_of_a_configuration_that_is_not_there_is_that_of_its_name(write: Write) -> None:
    script = "torchrun --nproc_per_node=8 -m torchtitan.train --job.config_file ./train_configs/llama3_8b.toml\n"
    run = the_run(write("run.sh", script))
    assert (run.row()["layers"], run.row()["hidden"], "seq" in run.columns) == ("32", "4096", False)


def test_a_flavor_of_another_model_is_known_by_the_whole_name(write: Write) -> None:
    run = the_run(write("train.toml", '[model]\nname = "qwen3"\nflavor = "4B"\n[training]\nseq_len = 4096\n'))
    wanted = {"layers": "36", "hidden": "2560", "heads": "32", "kv_heads": "8", "head_dim": "128"}
    wanted |= {"ffn_hidden": "9728"}
    assert cells(run, *wanted, "tied_embeddings") == wanted | {"tied_embeddings": "yes"}
    assert "layers" not in the_run(write("other.toml", '[model]\nname = "mine"\nflavor = "4B"\n')).columns
