"""nanotron: its YAML, what it prints, and its lines about steps with suffixes."""

from __future__ import annotations

import pytest

from tests.diagnose.made_up import Write, of_ranks
from tests.diagnose.readers.columns.test_megatron import cells, the_run

CONFIG = """general:
  project: smol
  run: three
model:
  dtype: bfloat16
  model_config:
    hidden_size: 2048
    intermediate_size: 11008
    num_attention_heads: 16
    num_hidden_layers: 36
    num_key_value_heads: 4
    tie_word_embeddings: true
    vocab_size: 128256
optimizer:
  accumulate_grad_in_fp32: true
  zero_stage: 0
parallelism:
  dp: 192
  pp: 1
  tp: 2
  expert_parallel_size: 1
  recompute_layer: false
  tp_linear_async_communication: true
  tp_mode: REDUCE_SCATTER
tokens:
  batch_accumulation_per_replica: 1
  micro_batch_size: 3
  sequence_length: 4096
"""
EXPECTED = {
    **{"layers": "36", "hidden": "2048", "ffn_hidden": "11008", "heads": "16", "kv_heads": "4", "vocab": "128256"},
    **{
        "gated_mlp": "yes",
        "tied_embeddings": "yes",
        "seq": "4096",
        "num_gpus": "384",
        "dp": "192",
        "tp": "2",
        "pp": "1",
    },
    **{"micro_batch": "3", "global_batch": "576", "sequence_parallel": "yes", "recompute": "none", "zero_stage": "0"},
    **{"gradient_dtype": "fp32", "precision": "bf16"},
}
PREFIX = "03/01/2025 10:00:00 [INFO|DP={}|PP=0|TP=0|node-1]: "
STEP = (
    "iteration: 327281 / 378950 | consumed_tokens: 85.8G | elapsed_time_per_iteration_ms: 2.3K | "
    "tokens_per_sec: 1.03M | tokens_per_sec_per_gpu: 2.67K | global_batch_size: 2.36M | lm_loss: 2.13 | lr: 0.0002 | "
    "model_tflops_per_gpu: 401 | hardware_tflops_per_gpu: 401 | grad_norm: 0.25\n"
)


def test_a_yaml_of_nanotron_fills_every_column(write: Write) -> None:
    run = the_run(write("config.yaml", CONFIG))
    assert cells(run, *EXPECTED) == EXPECTED
    assert run.program == "nanotron"


def test_suffixes_are_read_and_copies_count_once(write: Write) -> None:
    run = the_run(write("config.yaml", CONFIG), write("train.log", of_ranks(STEP, PREFIX, range(4))))
    (step,) = run.steps
    assert (step.number, step.seconds, step.tokens_per_second, step.tflops) == (327281, 2.3, 1.03e6, 401)
    assert step.loss == 2.13
    assert step.batch is None, "its batch is in tokens"


def test_the_printed_configuration_is_read(write: Write) -> None:
    printed = (
        "Config(general=GeneralArgs(project='smol', run='three'), parallelism=ParallelismArgs(dp=4, pp=2, tp=2, "
        "tp_mode=<TensorParallelLinearMode.ALL_REDUCE: 1>, recompute_layer=True), "
        "model=ModelArgs(model_config=LlamaConfig(hidden_size=2048, num_hidden_layers=24, num_attention_heads=32, "
        "intermediate_size=8192, vocab_size=49152)), tokens=TokensArgs(sequence_length=2048, micro_batch_size=4, "
        "batch_accumulation_per_replica=8))\n"
    )
    run = the_run(write("train.log", PREFIX.format(0) + printed + PREFIX.format(0) + STEP))
    wanted = {"layers": "24", "hidden": "2048", "heads": "32", "tp": "2", "pp": "2", "num_gpus": "16", "seq": "2048"}
    wanted |= {"micro_batch": "4", "global_batch": "128", "recompute": "full", "sequence_parallel": "no"}
    assert cells(run, *wanted) == wanted


def test_a_coloured_log_that_is_cut_still_tells_its_steps(write: Write) -> None:
    text = f"\x1b[32m{PREFIX.format(0)}\x1b[0m{STEP}" + PREFIX.format(0) + STEP.replace("327281", "327282")[:60]
    run = the_run(write("train.log", text))
    assert [step.number for step in run.steps][:1] == [327281]
    assert run.steps[0].seconds == pytest.approx(2.3)


def test_what_is_allocated_between_steps_is_not_the_most_that_was(write: Write) -> None:
    memory = STEP.rstrip("\n") + " | cuda_memory_allocated: 5.9G | cuda_max_memory_reserved: 41.2G\n"
    (step,) = the_run(write("nano.log", memory)).steps
    assert (step.allocated_bytes, step.memory_bytes) == (None, 41.2e9)
