"""nanoGPT, nanochat, MaxText, torchtune, LitGPT and llm-foundry: their lines about steps, and their sizes."""

from __future__ import annotations

import math

import pytest

from diagnose.readers import read_runs
from tests.diagnose.made_up import Write
from tests.diagnose.readers.columns.test_megatron import cells, the_run

NANO = (
    "Overriding: n_layer = 12\nOverriding: n_head = 12\nOverriding: n_embd = 768\nOverriding: batch_size = 12\n"
    "Overriding: block_size = 1024\nOverriding: gradient_accumulation_steps = 40\nOverriding: dtype = bfloat16\n"
    "tokens per iteration will be: 491,520\nnumber of parameters: 124.34M\n"
    "iter 0: loss 10.9886, time 41245.30ms, mfu -100.00%\n"
    "iter 10: loss 9.4, time 561.94ms, mfu 51.20%\niter 20: loss 8.9, time 562.01ms, mfu 51.19%\n"
)


def test_nanogpt_counts_from_zero_and_by_an_a100(write: Write) -> None:
    run = the_run(write("nano.log", NANO), given=("num_gpus=8", "gpu=H100"))
    wanted = {"layers": "12", "hidden": "768", "heads": "12", "seq": "1024", "micro_batch": "12", "global_batch": "480"}
    wanted |= {"precision": "bf16", "zero_stage": "DDP", "implementation": "fsdp"}
    assert cells(run, *wanted) == wanted
    assert [step.number for step in run.steps] == [1, 11, 21]
    assert run.steps[1].seconds == pytest.approx(0.56194)
    assert run.steps[1].mfu is None
    assert run.steps[1].tflops == pytest.approx(0.512 * 312)


LINES = {
    "nanochat": "step 00010/05000 (0.20%) | loss: 9.1 | lrm: 1.00 | dt: 989.44ms | tok/sec: 529,882 | mfu: 48.2\n",
    "maxtext": "completed step: 10, seconds: 2.167, TFLOP/s/device: 36.7, Tokens/s/device: 3780.5, loss: 10.1\n",
    "litgpt": "Epoch 1 | iter 44 step 11 | loss train: 1.2, val: n/a | iter time: 1288.18 ms (step)\n",
    "torchtune": "Step 10 | loss:1.2 lr:2e-05 tokens_per_second_per_gpu:576.6 peak_memory_active:11.4 "
    "peak_memory_alloc:11.4 peak_memory_reserved:13.5\n",
    "llm-foundry": "[batch=10/4800]:\n\t Train time/batch: 9\n\t Train loss/train/total: 9.5\n"
    "\t Train throughput/device/tokens_per_sec: 11500.5\n\t Train throughput/device/mfu: 0.41\n"
    "\t Train throughput/batches_per_sec: 0.5\n",
}


@pytest.mark.parametrize("program", LINES)
def test_the_line_of_each_program_is_known(write: Write, program: str) -> None:
    run = the_run(write("train.log", LINES[program]), given=("num_gpus=8", "seq=4096", "global_batch=64"))
    (step,) = run.steps
    assert run.program == program
    assert step.number == {"nanochat": 11, "maxtext": 11, "litgpt": 44, "torchtune": 10, "llm-foundry": 10}[program]
    seconds = {"nanochat": 0.98944, "maxtext": 2.167, "litgpt": 1.28818, "llm-foundry": 2.0}
    assert step.seconds == pytest.approx(seconds.get(program, 64 * 4096 / (576.6 * 8)), rel=1e-3)


def test_rates_and_memory_of_these_lines_are_read(write: Write) -> None:
    given = ("num_gpus=8", "seq=4096", "global_batch=64")
    steps = {name: the_run(write(f"{name}.log", line), given=given).steps[0] for name, line in LINES.items()}
    assert steps["nanochat"].tokens_per_second == 529882
    assert steps["nanochat"].mfu == pytest.approx(0.482)
    assert steps["maxtext"].tflops == 36.7
    assert steps["torchtune"].memory_bytes == 13.5 * 2**30
    assert steps["llm-foundry"].mfu == 0.41
    assert steps["llm-foundry"].loss == 9.5


FOUNDRY = """max_seq_len: 2048
global_train_batch_size: 256
device_train_microbatch_size: 4
precision: amp_bf16
model:
  name: mpt_causal_lm
  d_model: 4096
  n_heads: 32
  n_layers: 32
  expansion_ratio: 4
  vocab_size: 50368
  attn_config:
    attn_impl: flash
fsdp_config:
  sharding_strategy: FULL_SHARD
  activation_checkpointing: true
"""
MAXTEXT = (
    "Config param base_emb_dim: 4096\nConfig param base_num_decoder_layers: 32\nConfig param base_num_query_heads: 32\n"
    "Config param base_num_kv_heads: 8\nConfig param base_mlp_dim: 14336\nConfig param max_target_length: 8192\n"
    "Config param per_device_batch_size: 2\nConfig param vocab_size: 128256\nConfig param dtype: bfloat16\n"
)


def test_the_sizes_of_llm_foundry_and_maxtext_are_read(write: Write) -> None:
    foundry = the_run(write("mpt-7b.yaml", FOUNDRY))
    wanted = {"layers": "32", "hidden": "4096", "heads": "32", "seq": "2048", "micro_batch": "4", "global_batch": "256"}
    wanted |= {"precision": "bf16", "recompute": "full", "zero_stage": "FULL_SHARD", "flash_attention": "flash"}
    assert cells(foundry, *wanted) == wanted
    maxtext = the_run(write("max.log", MAXTEXT + LINES["maxtext"]), given=("num_gpus=16",))
    wanted = {
        "layers": "32",
        "kv_heads": "8",
        "ffn_hidden": "14336",
        "seq": "8192",
        "micro_batch": "2",
        "global_batch": "32",
    }
    assert cells(maxtext, *wanted) == wanted


def test_the_devices_of_maxtext_and_its_sharding_are_read(write: Write) -> None:
    lines = "Num_devices: 16, shape (1, 1, 16, 1, 1, 1)\n" + MAXTEXT + LINES["maxtext"]
    run = the_run(write("max.log", lines + "Config param ici_fsdp_parallelism: -1\n"))
    assert cells(run, "num_gpus", "zero_stage") == {"num_gpus": "16", "zero_stage": "FULL_SHARD"}
    run = the_run(write("max.log", lines + "Config param ici_fsdp_parallelism: 1\n"))
    assert "zero_stage" not in run.columns


TUNE = """model:
  _component_: torchtune.models.llama3_1.llama3_1_8b
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  max_seq_len: 4096
batch_size: 2
gradient_accumulation_steps: 8
compile: true
enable_activation_checkpointing: true
dtype: bf16
"""
LIT = """model_name: tiny-llama-1.1b
precision: bf16-mixed
devices: 8
num_nodes: 2
train:
  global_batch_size: 512
  micro_batch_size: 4
  max_seq_length: 2048
"""


def test_the_files_of_torchtune_and_litgpt_are_read(write: Write) -> None:
    tune = the_run(write("8B_full.yaml", TUNE), given=("num_gpus=8", "model=llama-3.1-8b"))
    wanted = {
        "layers": "32",
        "seq": "4096",
        "micro_batch": "2",
        "global_batch": "128",
        "recompute": "full",
        "compile": "yes",
    }
    assert cells(tune, *wanted) == wanted
    lit = the_run(write("pretrain.yaml", LIT))
    wanted = {"seq": "2048", "micro_batch": "4", "global_batch": "512", "num_gpus": "16", "precision": "bf16"}
    assert cells(lit, *wanted) == wanted


LIGHTNING = """trainer:
  devices: 8
  num_nodes: 2
  strategy: {}
  precision: bf16-mixed
  accumulate_grad_batches: 4
model:
  class_path: my.GPT
  init_args: {{n_layer: 24, n_head: 16, n_embd: 2048, block_size: 2048, vocab_size: 50304}}
data:
  class_path: my.Data
  init_args: {{batch_size: 8}}
"""


@pytest.mark.parametrize(
    ("strategy", "stage"), [("fsdp", "FULL_SHARD"), ("deepspeed_stage_2", "2"), ("auto", "DDP"), ("ddp_spawn", "DDP")]
)
def test_the_file_of_lightnings_command_line_is_not_taken_for_nemos(write: Write, strategy: str, stage: str) -> None:
    run = the_run(write("config.yaml", LIGHTNING.format(strategy)))
    wanted = {"layers": "24", "hidden": "2048", "heads": "16", "seq": "2048", "vocab": "50304", "num_gpus": "16"}
    wanted |= {"micro_batch": "8", "global_batch": "512", "precision": "bf16", "zero_stage": stage, "tp": "1"}
    assert cells(run, *wanted) == wanted
    assert run.program == "lightning"


def test_an_unknown_program_is_read_by_the_patterns_of_a_trainer(write: Write) -> None:
    text = "".join(f"epoch 1 step {step}/100 loss 4.{step} time 0.2{step} s\n" for step in range(1, 6))
    run = the_run(write("mine.log", text))
    assert [(step.number, step.seconds, step.loss) for step in run.steps][:2] == [(1, 0.21, 4.1), (2, 0.22, 4.2)]
    assert run.program is None


def test_a_line_without_a_time_has_none(write: Write) -> None:
    (run,) = read_runs([write("mine.log", "step 1/100 loss 4.5\nstep 2/100 loss 4.4\n")])
    assert [step.loss for step in run.steps] == [4.5, 4.4]
    assert all(math.isnan(step.seconds) for step in run.steps)


def test_a_value_that_stands_elsewhere_in_the_file_is_put_in(write: Write) -> None:
    text = "variables:\n  length: 2048\nmax_seq_len: ${variables.length}\nmodel:\n  n_layers: 24\n"
    assert the_run(write("mpt.yaml", text + "global_train_batch_size: 8\n")).row()["seq"] == "2048"
