"""verl: what a step generates, and its supervised training."""

from __future__ import annotations

from diagnose.understood import understood
from tests.diagnose.made_up import Write
from tests.diagnose.readers.columns.test_megatron import cells, the_run

GRPO = """python3 -m verl.trainer.main_ppo \\
    data.train_batch_size=1024 data.max_prompt_length=512 data.max_response_length=1024 \\
    actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct \\
    actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \\
    actor_rollout_ref.model.enable_gradient_checkpointing=True \\
    actor_rollout_ref.actor.fsdp_config.param_offload=True \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.n=5 \\
    trainer.n_gpus_per_node=8 trainer.nnodes=2 $@
"""
SFT = """torchrun --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer data.train_batch_size=256 \\
    data.micro_batch_size_per_gpu=4 data.max_length=2048 model.partial_pretrain=Qwen/Qwen2.5-0.5B-Instruct
"""


def test_the_batch_of_a_step_is_all_responses_to_its_prompts(write: Write) -> None:
    run = the_run(write("run.sh", GRPO), given=("gpu=H100",))
    wanted = {"global_batch": "5120", "micro_batch": "8", "seq": "1536", "num_gpus": "16", "layers": "28", "tp": "1"}
    wanted |= {"recompute": "full", "zero_stage": "FULL_SHARD", "cpu_offload": "cpu", "gpus_per_node": "8"}
    assert cells(run, *wanted) == wanted
    assert run.program == "verl"
    told = understood(run, 60.0)
    assert told.configuration is None
    assert "rollout" in told.reason


def test_supervised_training_has_the_batch_that_it_states(write: Write) -> None:
    run = the_run(write("sft.sh", SFT))
    wanted = {"global_batch": "256", "micro_batch": "4", "seq": "2048", "num_gpus": "8", "layers": "24"}
    assert cells(run, *wanted) == wanted
    assert "rollout" not in run.columns


def test_a_rollout_of_other_trainers_has_no_price(write: Write) -> None:
    flags = (
        "--pretrain meta-llama/Meta-Llama-3-8B --micro_train_batch_size 2 --train_batch_size 256 --zero_stage 2 --bf16"
    )
    sft = the_run(write("sft.sh", f"deepspeed --module openrlhf.cli.train_sft --max_len 4096 {flags}\n"))
    wanted = {"layers": "32", "seq": "4096", "micro_batch": "2", "global_batch": "256", "zero_stage": "2"}
    assert cells(sft, *wanted) == wanted
    ppo = the_run(write("ppo.sh", f"python3 -m openrlhf.cli.train_ppo_ray --rollout_batch_size 1024 {flags}\n"))
    assert ("rollout" in sft.columns, "rollout" in ppo.columns) == (False, True)
