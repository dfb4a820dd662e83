"""NeMo and Megatron-Bridge: YAML, Hydra overrides, dataclasses and lines about steps."""

from __future__ import annotations

import pytest

from tests.diagnose.made_up import Write, megatron_steps
from tests.diagnose.readers.columns.test_megatron import cells, the_run

NEMO_1 = """defaults:
  - _self_
name: megatron_gpt
trainer:
  devices: 8
  num_nodes: 4
  precision: bf16-mixed
  log_every_n_steps: 10
model:
  mcore_gpt: true
  micro_batch_size: 2
  global_batch_size: 256
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: null
  encoder_seq_length: 4096
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 11008
  num_attention_heads: 32
  activation: fast-swiglu
  sequence_parallel: true
  activations_checkpoint_granularity: selective
  transformer_engine: true
  fp8: true
  share_embeddings_and_output_weights: false
  optim:
    name: distributed_fused_adam
    grad_sync_dtype: bf16
"""
EXPECTED = {
    **{"layers": "32", "hidden": "4096", "heads": "32", "ffn_hidden": "11008", "seq": "4096", "gated_mlp": "yes"},
    **{"num_gpus": "32", "tp": "4", "pp": "2", "micro_batch": "2", "global_batch": "256", "sequence_parallel": "yes"},
    **{"recompute": "selective", "zero_stage": "1", "precision": "bf16", "matmul_precision": "fp8"},
    **{"tied_embeddings": "no", "gpus_per_node": "8", "implementation": "megatron-core"},
}


def steps(seconds: float, count: int = 3) -> str:
    """NeMo 2's line, whose iterations count from 0."""
    return "".join(
        f"Training epoch 0, iteration {index}/99 | lr: 1.499e-07 | global_batch_size: 512 | global_step: {index} | "
        f"peak_memory_usage: 3.4e+10 | max_memory_reserved: 5.1e+10 | reduced_train_loss: 11.03 | "
        f"train_step_timing in s: {seconds} | consumed_samples: {512 * (index + 1)} | TFLOPS_per_GPU: 612.5\n"
        for index in range(count)
    )


def test_a_yaml_of_nemo_fills_every_column(write: Write) -> None:
    run = the_run(write("megatron_gpt_config.yaml", NEMO_1))
    assert cells(run, *EXPECTED) == EXPECTED
    assert run.program == "nemo"


def test_overrides_of_hydra_come_before_the_yaml(write: Write) -> None:
    script = (
        "#!/bin/bash\n#SBATCH --nodes=8\nTP=8\n"
        "srun python /opt/NeMo/megatron_gpt_pretraining.py \\\n"
        "    trainer.num_nodes=${SLURM_NNODES} \\\n"
        "    model.tensor_model_parallel_size=${TP} \\\n"
        "    ++model.tp_comm_overlap=true \\\n"
        "    'model.micro_batch_size=1'\n"
    )
    run = the_run(write("run.sh", script), write("conf.yaml", NEMO_1))
    wanted = {**EXPECTED, "num_gpus": "64", "tp": "8", "micro_batch": "1"}
    assert cells(run, *wanted) == wanted
    assert cells(run, "async_tp") == {"async_tp": "yes"}


def test_lines_of_nemo_count_from_zero(write: Write) -> None:
    run = the_run(write("conf.yaml", NEMO_1), write("nemo.log", steps(12.66)))
    assert [(step.number, step.seconds, step.tflops) for step in run.steps][:2] == [
        (1, 12.66, 612.5),
        (2, 12.66, 612.5),
    ]


def test_a_bar_of_lightning_is_read(write: Write) -> None:
    bar = (
        "\rEpoch 0: :   2%|2         | 20/1000 [03:10<2:35:00, v_num=0, reduced_train_loss=9.1, global_step=19.0, "
        "consumed_samples=10240.0, train_step_timing in s=8.97]"
    )
    run = the_run(write("conf.yaml", NEMO_1), write("nemo.log", bar + "\n"))
    assert [(step.number, step.seconds) for step in run.steps] == [(20, 8.97)]


DATACLASSES = (
    "[NeMo I 2025-03-01 10:00:00 nemo_logging:393] GPTConfig(num_layers=32, hidden_size=4096, ffn_hidden_size=14336, "
    "num_attention_heads=32, num_query_groups=8, seq_length=8192, gated_linear_unit=True, "
    "activation_func=<function silu at 0x7f>, share_embeddings_and_output_weights=False, hidden_dropout=0.0)\n"
    "MegatronStrategy(tensor_model_parallel_size=4, pipeline_model_parallel_size=1, context_parallel_size=2, "
    "sequence_parallel=True, ddp=DistributedDataParallelConfig("
    "use_distributed_optimizer=True, grad_reduce_in_fp32=False))\n"
)


def test_dataclasses_in_a_log_are_read(write: Write) -> None:
    run = the_run(
        write("nemo.log", DATACLASSES + steps(4.5)), given=("num_gpus=16", "micro_batch=1", "global_batch=512")
    )
    wanted = {
        "layers": "32",
        "hidden": "4096",
        "kv_heads": "8",
        "ffn_hidden": "14336",
        "seq": "8192",
        "gated_mlp": "yes",
    }
    wanted |= {"tp": "4", "pp": "1", "cp": "2", "zero_stage": "1", "tied_embeddings": "no", "dropout": "no"}
    assert cells(run, *wanted) == wanted


BRIDGE = """model:
  _target_: megatron.bridge.models.llama.llama_provider.LlamaModelProvider
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 14336
  num_attention_heads: 32
  num_query_groups: 8
  gated_linear_unit: true
  seq_length: 8192
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 1
  context_parallel_size: 1
  share_embeddings_and_output_weights: false
  recompute_granularity: full
  recompute_method: uniform
  recompute_num_layers: 1
train:
  micro_batch_size: 1
  global_batch_size: 128
  train_iters: 50
ddp:
  use_distributed_optimizer: true
  overlap_grad_reduce: true
  grad_reduce_in_fp32: true
dataset:
  sequence_length: 8192
mixed_precision: bf16_with_fp8_current_scaling_mixed
"""


def test_megatron_bridge_has_sections_of_its_own(write: Write) -> None:
    log = "Step Time : 9.50s GPU utilization: 421.1MODEL_TFLOP/s/GPU\n" + megatron_steps([9.5]).replace(
        "throughput per GPU (TFLOP/s/GPU): 421.1 | ", ""
    )
    run = the_run(write("config.yaml", BRIDGE), write("bridge.log", log), given=("num_gpus=8",))
    wanted = {"layers": "32", "kv_heads": "8", "gated_mlp": "yes", "seq": "8192", "tp": "2", "micro_batch": "1"}
    wanted |= {"global_batch": "128", "zero_stage": "1", "recompute": "full", "matmul_precision": "fp8"}
    wanted |= {
        "fp8_recipe": "current",
        "precision": "bf16",
        "gradient_dtype": "fp32",
        "implementation": "megatron-core",
    }
    assert cells(run, *wanted) == wanted
    assert run.program == "megatron-bridge"
    assert (run.steps[0].seconds, run.steps[0].tflops) == (9.5, 421.1)


@pytest.mark.parametrize(
    "line", ["  num_layers: 48 (Mcore default: 0)\n", "[default0]:num_layers: 48 (Mcore default: 0)\n"]
)
def test_a_list_of_what_differs_is_believed_before_the_yaml(write: Write, line: str) -> None:
    run = the_run(write("config.yaml", BRIDGE), write("bridge.log", line + megatron_steps([9.5])))
    assert run.columns["layers"].value == "48"


def test_the_model_of_a_recipe_is_that_of_its_name(write: Write) -> None:
    flags = "--recipe llama3_8b_pretrain_config model.tensor_model_parallel_size=2 train.global_batch_size=64"
    run = the_run(write("run.sh", f"torchrun --nproc-per-node=8 scripts/training/run_recipe.py {flags}\n"))
    assert (run.row()["layers"], run.row()["tp"], run.row()["precision"]) == ("32", "2", "bf16")
