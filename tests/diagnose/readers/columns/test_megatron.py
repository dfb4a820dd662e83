"""Megatron's dumps of every age, its scripts and its lines about steps, as columns."""

from __future__ import annotations

from typing import Any

import pytest

from diagnose.readers import missing_of, read_runs
from diagnose.runs import SaidBy, UserRun
from sweeps.table.configuration import configuration_of
from tests.diagnose.made_up import CORE, SIZES, Write, dump, megatron_steps, neox_dump, of_ranks


def the_run(*paths: str, given: tuple[str, ...] = ()) -> UserRun:
    (run,) = read_runs(paths, given)
    return run


def cells(run: UserRun, *columns: str) -> dict[str, str]:
    return {column: run.columns[column].value for column in columns if column in run.columns}


EXPECTED = {
    "layers": "32",
    "hidden": "4096",
    "heads": "32",
    "kv_heads": "8",
    "ffn_hidden": "14336",
    "seq": "8192",
    "vocab": "128256",
    "gated_mlp": "yes",
    "tied_embeddings": "no",
    "num_gpus": "16",
    "dp": "2",
    "tp": "4",
    "pp": "2",
    "cp": "1",
    "micro_batch": "1",
    "global_batch": "128",
    "sequence_parallel": "yes",
    "zero_stage": "1",
    "recompute": "full",
    "precision": "bf16",
    "gradient_dtype": "fp32",
    "flash_attention": "yes",
    "dropout": "no",
    "implementation": "megatron-core",
}
VOCABULARY = " > padded vocab (size: 128256) with 0 dummy tokens (new size: 128256)\n"


def core_log(**changes: Any) -> str:
    return SIZES + dump({**CORE, **changes}) + VOCABULARY + megatron_steps([19.5, 9.5, 9.4])


def test_a_dump_of_megatron_core_fills_every_column(write: Write) -> None:
    run = the_run(write("train.log", core_log()), given=("cluster=dgx-h100",))
    assert cells(run, *EXPECTED) == EXPECTED
    assert missing_of(run) == []
    assert configuration_of(run.row()).setup.parallel.tensor_parallel_size == 4


def test_each_fact_names_its_line(write: Write) -> None:
    text = core_log()
    run = the_run(write("train.log", text))
    fact = run.columns["hidden"]
    assert fact.said_by is SaidBy.RESOLVED
    assert fact.at is not None
    assert fact.at.line is not None
    assert text.splitlines()[fact.at.line - 1].strip() == fact.at.text
    assert "hidden_size" in fact.at.text


def test_steps_are_means_over_the_log_interval(write: Write) -> None:
    run = the_run(write("train.log", core_log()))
    assert [(step.number, step.covers, step.seconds) for step in run.steps] == [
        (10, 10, 19.5),
        (20, 10, 9.5),
        (30, 10, 9.4),
    ]
    assert run.steps[1].tflops == pytest.approx(4000 / 9.5, abs=0.1)
    assert run.steps[0].batch == 128


OLD = {
    "batch_size": 4,
    "checkpoint_activations": True,
    "checkpoint_num_layers": 1,
    "DDP_impl": "local",
    "fp16": True,
    "hidden_size": 3072,
    "model_parallel_size": 8,
    "num_attention_heads": 32,
    "num_layers": 72,
    "seq_length": 1024,
    "world_size": 64,
}


def test_a_dump_of_2020_has_other_names_and_narrower_columns(write: Write) -> None:
    sizes = "using world size: 64 and model-parallel size: 8 \n"
    steps = " iteration      100/  320000 | elapsed time per iteration (ms): 1234.5 | learning rate 1.5E-04 |\n"
    run = the_run(write("old.log", sizes + dump(OLD, width=32) + steps))
    wanted = {"tp": "8", "pp": "1", "micro_batch": "4", "recompute": "full", "precision": "fp16", "num_gpus": "64"}
    assert cells(run, *wanted) == wanted
    assert run.columns["implementation"].value == "megatron-lm"
    assert run.columns["global_batch"].said_by is SaidBy.ASSUMED
    assert run.columns["global_batch"].value == "32"


def test_a_dump_of_2021_says_how_it_recomputes(write: Write) -> None:
    arguments = {
        **{
            key: value
            for key, value in OLD.items()
            if key not in ("batch_size", "model_parallel_size", "checkpoint_activations")
        },
        **{
            "micro_batch_size": 2,
            "global_batch_size": 512,
            "tensor_model_parallel_size": 8,
            "pipeline_model_parallel_size": 8,
        },
        **{"activations_checkpoint_method": "uniform", "activations_checkpoint_num_layers": 1, "data_parallel_size": 1},
        "num_layers_per_virtual_pipeline_stage": 3,
    }
    run = the_run(write("old.log", dump(arguments)))
    wanted = {
        "recompute": "full",
        "vpp": "3",
        "global_batch": "512",
        "pp": "8",
        "dp": "1",
        "implementation": "megatron-lm",
    }
    assert cells(run, *wanted) == wanted


def test_megatron_deepspeed_prints_seconds_and_its_own_words(write: Write) -> None:
    arguments = {
        **OLD,
        **{
            "micro_batch_size": 2,
            "global_batch_size": 2048,
            "tensor_model_parallel_size": 4,
            "pipeline_model_parallel_size": 12,
        },
        **{
            "deepspeed_config": "./ds_config.json",
            "zero_stage": 1,
            "bf16": True,
            "fp16": False,
            "params_dtype": "torch.bfloat16",
        },
        "world_size": 384,
    }
    steps = (
        "[default7]: iteration     1001/  115311 | consumed samples: 2050048 | consumed tokens: 4198498304 | "
        "elapsed time per iteration (s): 105.16 | learning rate: 6.0E-05 | global batch size:  2048 | "
        "lm loss: 2.1E+00 | grad norm: 0.2 | samples per second: 19.475 | TFLOPs: 149.10 |\n"
    )
    run = the_run(write("main.log", dump(arguments) + steps))
    wanted = {
        "implementation": "megatron-deepspeed",
        "zero_stage": "1",
        "precision": "bf16",
        "tp": "4",
        "global_batch": "2048",
    }
    assert cells(run, *wanted) == wanted
    assert (run.program, run.steps[0].seconds, run.steps[0].tflops) == ("megatron-deepspeed", 105.16, 149.1)
    assert run.steps[0].tokens_per_second == pytest.approx(19.475 * 1024)


def test_gpt_neox_has_dots_on_both_sides(write: Write) -> None:
    arguments = {
        **{
            "num_layers": 44,
            "hidden_size": 6144,
            "num_attention_heads": 64,
            "seq_length": 2048,
            "pipe_parallel_size": 4,
        },
        **{
            "model_parallel_size": 2,
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": 32,
            "precision": "fp16",
        },
        **{
            "train_batch_size": 1536,
            "zero_stage": 1,
            "attention_config": "['global', 'global']",
            "no_weight_tying": True,
        },
        "checkpoint_activations": True,
    }
    run = the_run(
        write("neox.log", neox_dump(arguments) + "world_size: 96\nusing world size: 96 and model-parallel size: 2\n")
    )
    wanted = {"layers": "44", "tp": "2", "pp": "4", "micro_batch": "4", "global_batch": "1536", "precision": "fp16"}
    wanted |= {"recompute": "full", "zero_stage": "1", "num_gpus": "96", "tied_embeddings": "no"}
    assert cells(run, *wanted) == wanted
    assert run.program == "gpt-neox"


SCRIPT = """#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES}
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
TP=2
DISTRIBUTED_ARGS="
    --nproc_per_node $GPUS_PER_NODE \\
    --nnodes $NNODES
"
MODEL_ARGS=(
    --use-mcore-models
    --num-layers 24   # of 24
    --hidden-size 2048
    --num-attention-heads 16
    --swiglu
    --seq-length 4096
    --max-position-embeddings 4096
)
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py \\
    ${MODEL_ARGS[@]} \\
    --tensor-model-parallel-size ${TP} \\
    # --sequence-parallel \\
    --micro-batch-size 2 --global-batch-size=256 \\
    --bf16 --no-async-tensor-model-parallel-allreduce \\
    --recompute-activations \\
    $EXTRA 2>&1 | tee train.log
"""


def test_a_launch_script_gives_flags_with_its_own_variables(write: Write) -> None:
    run = the_run(write("pretrain.sh", SCRIPT))
    wanted = {
        "layers": "24",
        "hidden": "2048",
        "ffn_hidden": "5440",
        "tp": "2",
        "pp": "1",
        "num_gpus": "32",
        "gpus_per_node": "8",
    }
    wanted |= {"micro_batch": "2", "global_batch": "256", "precision": "bf16", "recompute": "selective"}
    wanted |= {"gated_mlp": "yes", "implementation": "megatron-core"}
    assert cells(run, *wanted) == wanted
    assert "sequence_parallel" not in run.columns, "a commented-out flag is not given"
    assert run.settings["CUDA_DEVICE_MAX_CONNECTIONS"].value == "1"
    assert run.columns["tp"].said_by is SaidBy.FLAG
    assert run.columns["pp"].said_by is SaidBy.ASSUMED
    assert run.columns["hidden"].at is not None
    assert run.columns["hidden"].at.line == 16


def test_what_a_script_leaves_open_is_asked_for_with_its_line(write: Write) -> None:
    script = SCRIPT.replace("NNODES=${SLURM_NNODES}\n", "").replace("#SBATCH --nodes=4\n", "")
    path = write("pretrain.sh", script)
    missing = {each.column: each for each in missing_of(the_run(path))}
    assert set(missing) == {"num_gpus", "gpu"}
    assert missing["num_gpus"].at is not None
    assert missing["num_gpus"].at.at is not None
    assert "--nnodes $NNODES" in missing["num_gpus"].at.at.text
    assert missing_of(the_run(path, given=("num_gpus=32", "cluster=dgx-h100"))) == []


def test_the_dump_is_believed_before_the_script(write: Write) -> None:
    run = the_run(write("pretrain.sh", SCRIPT), write("train.log", core_log()))
    assert run.columns["tp"].value == "4"
    assert [fact.value for fact in run.overruled["tensor_model_parallel_size"]] == ["2"]
    assert run.settings["CUDA_DEVICE_MAX_CONNECTIONS"].value == "1"
    assert run.name == "train.log + pretrain.sh"


def test_a_later_sentence_is_believed_before_the_dump(write: Write) -> None:
    text = core_log(overlap_p2p_comm=True) + "WARNING: Setting args.overlap_p2p_comm to False since no interleaving\n"
    run = the_run(write("train.log", text))
    assert run.settings["overlap_p2p_comm"].value == "False"
    assert run.overruled["overlap_p2p_comm"][0].value == "True"


def test_every_start_has_its_own_arguments_and_steps(write: Write) -> None:
    text = core_log() + core_log(micro_batch_size=2, recompute_granularity=None).replace("elapsed", "elapsed")
    first, second = read_runs([write("train.log", text)])
    assert (first.columns["micro_batch"].value, second.columns["micro_batch"].value) == ("1", "2")
    assert (first.columns["recompute"].value, second.columns["recompute"].value) == ("full", "none")
    assert [len(first.steps), len(second.steps)] == [3, 3]


def test_a_start_that_ran_out_of_memory_is_another_run(write: Write) -> None:
    failed = (
        SIZES
        + dump({**CORE, "micro_batch_size": 4})
        + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate\n"
    )
    first, second = read_runs([write("train.log", failed + core_log())])
    assert (first.columns["micro_batch"].value, second.columns["micro_batch"].value) == ("4", "1")
    assert first.marks["out_of_memory"]
    assert (len(first.steps), len(second.steps)) == (0, 3)


@pytest.mark.parametrize("prefix", ["[default{}]:", "{}: ", "[rank{}]: ", "(RayActor pid={}) "])
def test_copies_of_several_ranks_count_once(write: Write, prefix: str) -> None:
    run = the_run(write("train.log", of_ranks(core_log(), prefix, range(8))))
    assert cells(run, *EXPECTED) == EXPECTED
    assert [step.number for step in run.steps] == [10, 20, 30]


def test_colours_and_carriage_returns_change_nothing(write: Write) -> None:
    plain = core_log()
    coloured = "".join(f"\x1b[32m{line}\x1b[0m\r\n" for line in plain.splitlines())
    run = the_run(write("train.log", coloured))
    assert cells(run, *EXPECTED) == EXPECTED
    assert [step.seconds for step in run.steps] == [19.5, 9.5, 9.4]


def test_decimals_with_a_comma_are_read(write: Write) -> None:
    run = the_run(write("train.log", dump(CORE) + megatron_steps([9.5, 9.4], decimal=",")))
    assert [step.seconds for step in run.steps] == [9.5, 9.4]
    assert run.steps[0].tflops == pytest.approx(421.1)


def test_memory_timers_and_marks_are_taken_down(write: Write) -> None:
    text = core_log() + (
        "[Rank 4] (after 10 iterations) memory (MB) | allocated: 1.5 | max allocated: 50000.5 | reserved: 6.0 | "
        "max reserved: 61000.0\n"
        "time (ms) | forward-compute: 123.5 | backward-embedding-all-reduce: 0.5\n"
        "saving checkpoint at iteration      30 to /x in torch format\n"
        "node1:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB\n"
        "node1:1:1 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0\n"
    )
    run = the_run(write("train.log", text))
    assert (run.memory[0].rank, run.memory[0].allocated, run.memory[0].reserved) == (4, 50000.5 * 2**20, 61000 * 2**20)
    assert run.timers == {"forward-compute": 0.1235, "backward-embedding-all-reduce": 0.0005}
    assert set(run.marks) == {"saving", "infiniband"}
    assert run.settings["NCCL_SOCKET_IFNAME"].value == "eth0"


MIXTURE = {
    **{
        "num_experts": 64,
        "moe_router_topk": 6,
        "moe_ffn_hidden_size": 1408,
        "moe_shared_expert_intermediate_size": 2816,
    },
    **{"moe_layer_freq": "([0]*1+[1]*31)", "expert_model_parallel_size": 8, "moe_token_dispatcher_type": "flex"},
    **{
        "moe_flex_dispatcher_backend": "deepep",
        "moe_grouped_gemm": True,
        "multi_latent_attention": True,
        "kv_lora_rank": 512,
    },
    **{"q_lora_rank": 1536, "qk_head_dim": 128, "qk_pos_emb_head_dim": 64, "v_head_dim": 128, "mtp_num_layers": 1},
}


def test_experts_and_latent_attention_are_read(write: Write) -> None:
    run = the_run(write("moe.log", core_log(**MIXTURE)))
    wanted = {
        "num_experts": "64",
        "top_k": "6",
        "moe_ffn": "1408",
        "shared_expert_ffn": "2816",
        "dense_layers": "1",
        "ep": "8",
    }
    wanted |= {
        "dispatcher": "deepep",
        "grouped_gemm": "yes",
        "mla": "128+64 / v 128, q_lora 1536, kv_lora 512",
        "mtp_layers": "1",
    }
    assert cells(run, *wanted) == wanted


@pytest.mark.parametrize(
    ("changes", "column", "value"),
    [
        ({"recompute_granularity": "selective", "recompute_modules": "['core_attn']"}, "recompute", "selective"),
        (
            {"recompute_granularity": "selective", "recompute_modules": "['layernorm', 'moe_act']"},
            "recompute",
            "layernorm, moe_act",
        ),
        ({"recompute_method": "block", "recompute_num_layers": 4}, "recompute", "block of 4 layers"),
        ({"recompute_method": "block", "recompute_num_layers": 16}, "recompute", "full"),
        ({"attention_backend": "AttnBackend.unfused"}, "flash_attention", "no"),
        ({"fp8": "hybrid", "fp8_recipe": "tensorwise"}, "matmul_precision", "fp8"),
        ({"use_distributed_optimizer": False}, "zero_stage", "0"),
        ({"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}, "zero_stage", "3"),
        ({"bf16": False, "params_dtype": "torch.float32"}, "precision", "fp32"),
        ({"optimizer": "sgd"}, "optimizer", "sgd"),
        ({"optimizer_cpu_offload": True}, "offload_optimizer", "yes"),
        ({"optimizer_cpu_offload": True, "optimizer_offload_fraction": 0.5}, "cpu_offload", "yes"),
        ({"cuda_graph_impl": "local"}, "cuda_graphs", "yes"),
        ({"window_size": "(128, 0)"}, "attention_window", "128"),
        ({"tp_comm_overlap": False}, "async_tp", "no"),
    ],
)
def test_a_choice_has_its_column(write: Write, changes: dict[str, Any], column: str, value: str) -> None:
    assert cells(the_run(write("train.log", core_log(**changes))), column) == {column: value}


def test_steps_without_arguments_say_the_batch_and_assume_no_layout(write: Write) -> None:
    line = " iteration {:8}/ 100 | elapsed time per iteration (ms): 5361.6 | global batch size: 128 |\n"
    run = the_run(write("steps.log", "".join(line.format(number) for number in range(71, 75))))
    assert cells(run, "global_batch") == {"global_batch": "128"}
    assert {missing.column for missing in missing_of(run)} >= {"tp", "pp", "layers", "num_gpus"}


def test_a_fork_that_writes_names_with_underscores_is_read(write: Write) -> None:
    line = (
        "[2024-06-16 18:24:28][INFO][training:1885] - iteration=      10/  317892 | consumed_samples=        7680 | "
        "elapsed_time_per_iteration_ms=1234.5 | lm_loss=11.1 | tokens_per_gpu_per_second_tgs=8192.5 | TFLOPs=42.5 |\n"
    )
    run = the_run(write("train.log", dump(CORE) + line))
    (step,) = run.steps
    assert (step.number, step.seconds, step.tflops, step.loss) == (10, 1.2345, 42.5, 11.1)
    assert step.tokens_per_second == pytest.approx(8192.5 * 16)


def test_what_is_taken_for_granted_is_marked(write: Write) -> None:
    run = the_run(write("pretrain.sh", SCRIPT.replace("    --swiglu\n", "")))
    taken = {name: fact for name, fact in run.columns.items() if fact.said_by is SaidBy.ASSUMED}
    assert {name: taken[name].value for name in ("vocab", "ffn_hidden", "pp")} == {
        "vocab": "51200",
        "ffn_hidden": "8192",
        "pp": "1",
    }
    assert all(fact.note for fact in taken.values())


def test_a_flag_whose_variable_nobody_sets_is_missing_and_not_one(write: Write) -> None:
    run = the_run(write("run.sh", "torchrun pretrain_gpt.py --num-layers 24 --tensor-model-parallel-size $TP\n"))
    assert "tp" not in run.columns
    assert run.row()["pp"] == "1"
