"""Hugging Face's Trainer, its front ends, and DeepSpeed: files, banners, bars, dictionaries and summaries."""

from __future__ import annotations

import json

import pytest

from diagnose.readers import missing_of, read_runs
from diagnose.runs import SaidBy
from diagnose.understood import understood
from tests.diagnose.made_up import Write
from tests.diagnose.readers.columns.test_megatron import cells, the_run
from tests.messages import refused

LLAMA = {
    **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336},
    **{"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256},
    **{
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    },
    **{"hidden_act": "silu", "rope_theta": 500000.0, "attention_bias": False, "bos_token_id": 1, "eos_token_id": 2},
}
SHAPE = {"layers": "32", "hidden": "4096", "ffn_hidden": "14336", "heads": "32", "kv_heads": "8", "vocab": "128256"}
SHAPE |= {"gated_mlp": "yes", "tied_embeddings": "no"}
ZERO = {
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3, "overlap_comm": True, "offload_optimizer": {"device": "none"}},
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
}
BANNER = (
    "[INFO|trainer.py:2409] 2025-03-01 10:00:00,000 >> ***** Running training *****\n"
    "[INFO|trainer.py:2410] 2025-03-01 10:00:00,000 >>   Num examples = 52,002\n"
    "[INFO|trainer.py:2412] 2025-03-01 10:00:00,000 >>   Instantaneous batch size per device = 4\n"
    "[INFO|trainer.py:2415] 2025-03-01 10:00:00,000 >>   Total train batch size (w. parallel, distributed & "
    "accumulation) = 128\n"
    "[INFO|trainer.py:2416] 2025-03-01 10:00:00,000 >>   Gradient Accumulation steps = 4\n"
    "[INFO|trainer.py:2417] 2025-03-01 10:00:00,000 >>   Total optimization steps = 40\n"
    "[INFO|trainer.py:2418] 2025-03-01 10:00:00,000 >>   Number of trainable parameters = 8,030,261,248\n"
)


def bars(seconds: float = 3.69, of: int = 40, every: int = 10) -> str:
    """A bar that overwrites itself, a loss after each tenth step, and a bar of loading before."""
    text = "Loading checkpoint shards: 100%|##########| 4/4 [00:09<00:00,  2.31s/it]\n"
    text += "  0%|          | 0/40 [00:00<?, ?it/s]"
    for step in range(1, of + 1):
        spent = f"{int(step * seconds) // 60:02}:{int(step * seconds) % 60:02}"
        text += f"\r {100 * step // of:2}%|##        | {step}/{of} [{spent}<01:00,  {seconds:.2f}s/it]"
        if step % every == 0:
            losses = {"loss": 2 - step / 100, "grad_norm": 1.2, "learning_rate": 2e-05, "epoch": step / 40}
            text += f"\r{' ' * 60}\r{losses}\n"
    return text


SUMMARY = (
    "{'train_runtime': 152.0, 'train_samples_per_second': 33.68, 'train_steps_per_second': 0.263, 'train_loss': 1.7}\n"
)


def test_a_banner_tells_batch_and_devices(write: Write) -> None:
    run = the_run(
        write("config.json", json.dumps(LLAMA)), write("train.log", BANNER + bars() + SUMMARY), given=("seq=2048",)
    )
    wanted = {**SHAPE, "micro_batch": "4", "global_batch": "128", "num_gpus": "8", "seq": "2048", "tp": "1", "pp": "1"}
    assert cells(run, *wanted) == wanted
    assert run.columns["num_gpus"].said_by is SaidBy.COMPUTED
    assert run.columns["num_gpus"].note == "a batch of 128 from 4 x 4 sequences of each device"
    assert [each.column for each in missing_of(run)] == ["gpu"]
    assert (run.program, run.columns["implementation"].value) == ("hf-trainer", "fsdp")


def test_a_bar_with_carriage_returns_is_a_line_for_each_step(write: Write) -> None:
    run = the_run(write("train.log", BANNER + bars()))
    assert [step.number for step in run.steps] == list(range(1, 41))
    assert {step.seconds for step in run.steps} == {3.69}
    assert [step.loss for step in run.steps if step.loss is not None] == [1.9, 1.8, 1.7, 1.6]


def test_a_fast_bar_counts_steps_a_second(write: Write) -> None:
    run = the_run(write("train.log", bars().replace(" 3.69s/it", " 4.00it/s")))
    assert {step.seconds for step in run.steps} == {0.25}


def test_a_summary_alone_gives_the_mean_of_all_steps(write: Write) -> None:
    run = the_run(write("train.log", BANNER + SUMMARY))
    ((step),) = run.steps
    assert (step.number, step.covers, step.seconds) == (40, 40, 152.0 / 40)


def test_auto_in_the_users_json_is_settled_by_the_banner(write: Write) -> None:
    paths = (write("ds_config.json", json.dumps(ZERO)), write("config.json", json.dumps(LLAMA)), write("a.log", BANNER))
    run = the_run(*paths)
    wanted = {**SHAPE, "zero_stage": "3", "micro_batch": "4", "global_batch": "128", "precision": "bf16"}
    assert cells(run, *wanted, "cpu_offload", "offload_optimizer") == wanted
    assert run.columns["implementation"].value == "deepspeed"
    assert "seq" not in run.columns, "positions of a model are no length that was trained"


def test_a_file_for_deepspeed_may_have_remarks_and_a_last_comma(write: Write) -> None:
    text = '{\n  // of http://x\n  "zero_optimization": {"stage": 2, "name": "a // b, }",}, # two\n  "steps": 3, }'
    assert cells(the_run(write("ds.json", text)), "zero_stage") == {"zero_stage": "2"}


def test_the_stage_of_a_file_that_is_not_there_is_missing_and_not_taken(write: Write) -> None:
    command = "deepspeed --num_gpus 8 train.py --deepspeed ds.json --per_device_train_batch_size 1 --bf16 True\n"
    run = the_run(write("run.sh", command))
    assert "zero_stage" in {each.column for each in missing_of(run)}
    assert "zero_stage" not in understood(run, None).taken
    write("ds.json", json.dumps(ZERO))
    run = the_run(write("run.sh", command))
    assert cells(run, "zero_stage") == {"zero_stage": "3"}


def test_auto_without_a_log_is_asked_for_with_its_line(write: Write) -> None:
    run = the_run(write("ds_config.json", json.dumps(ZERO, indent=1)), write("config.json", json.dumps(LLAMA)))
    missing = {each.column: each for each in missing_of(run)}
    assert set(missing) == {"seq", "num_gpus", "micro_batch", "global_batch", "gpu"}
    asked = missing["micro_batch"].at
    assert asked is not None
    assert asked.at is not None
    assert '"train_micro_batch_size_per_gpu": "auto"' in asked.at.text


@pytest.mark.parametrize(
    ("what", "device", "column"),
    [
        ("offload_optimizer", "cpu", "offload_optimizer"),
        ("offload_optimizer", "nvme", "cpu_offload"),
        ("offload_param", "cpu", "cpu_offload"),
    ],
)
def test_an_optimizer_on_the_host_has_a_column_with_a_price(write: Write, what: str, device: str, column: str) -> None:
    changed = {**ZERO, "zero_optimization": {"stage": 2, what: {"device": device}}}
    run = the_run(write("ds_config.json", json.dumps(changed)))
    assert cells(run, "zero_stage", "cpu_offload", "offload_optimizer") == {"zero_stage": "2", column: device}


PRINTED = (
    "[2024-05-01 10:00:00,001] [INFO] [config.py:996:print] DeepSpeedEngine configuration:\n"
    "[2024-05-01 10:00:00,001] [INFO] [config.py:1000:print]   bfloat16_enabled ............. True\n"
    "[2024-05-01 10:00:00,001] [INFO] [config.py:1000:print]   gradient_accumulation_steps .. 2\n"
    "[2024-05-01 10:00:00,001] [INFO] [config.py:1000:print]   train_batch_size ............. 256\n"
    "[2024-05-01 10:00:00,001] [INFO] [config.py:1000:print]   train_micro_batch_size_per_gpu  8\n"
    "[2024-05-01 10:00:00,001] [INFO] [config.py:1000:print]   zero_optimization_stage ...... 2\n"
    "[2024-05-01 10:00:00,001] [INFO] [config.py:986:print_user_config]   json = {\n"
    '    "train_batch_size": 256,\n'
    '    "train_micro_batch_size_per_gpu": 8,\n'
    '    "zero_optimization": {\n        "stage": 2,\n        "reduce_bucket_size": 2.048000e+03\n    }\n'
    "}\n"
    "[2024-05-01 10:00:09,001] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[1e-05]\n"
    "[2024-05-01 10:00:09,001] [INFO] [timer.py:258:stop] epoch=0/micro_step=20/global_step=10, "
    "RunningAvgSamplesPerSec=64.0, CurrSamplesPerSec=64.0, MemAllocated=12.5GB, MaxMemAllocated=40.25GB\n"
    "[2024-05-01 10:00:49,001] [INFO] [timer.py:258:stop] epoch=0/micro_step=40/global_step=20, "
    "RunningAvgSamplesPerSec=64.0, CurrSamplesPerSec=32.0, MemAllocated=12.5GB, MaxMemAllocated=40.25GB\n"
)


def test_an_offloaded_optimizer_is_read_from_what_deepspeed_prints(write: Write) -> None:
    config = "zero_config .................. stage=2 offload_param=None offload_optimizer={} sub_group_size=1000000000"
    offloaded = "DeepSpeedZeroOffloadOptimizerConfig(device=<OffloadDeviceEnum.cpu: 'cpu'>, nvme_path=None)"
    for value, found in (("None", {}), (offloaded, {"offload_optimizer": "cpu"})):
        line = f"[2024-05-01 10:00:00,001] [INFO] [config.py:1000:print]   {config.format(value)}\n"
        assert cells(the_run(write("train.log", line + PRINTED)), "cpu_offload", "offload_optimizer") == found


def test_a_name_as_long_as_deepspeeds_column_has_no_dots(write: Write) -> None:
    run = the_run(write("train.log", PRINTED.replace('    "train_micro_batch_size_per_gpu": 8,\n', "")))
    assert cells(run, "micro_batch") == {"micro_batch": "8"}


def test_what_deepspeed_prints_is_believed_before_auto(write: Write) -> None:
    run = the_run(write("ds_config.json", json.dumps(ZERO)), write("train.log", PRINTED), given=("seq=1024",))
    wanted = {"zero_stage": "2", "micro_batch": "8", "global_batch": "256", "num_gpus": "16", "precision": "bf16"}
    assert cells(run, *wanted) == wanted
    assert run.settings["zero_optimization.reduce_bucket_size"].value == "2048"
    assert [step.seconds for step in run.steps] == [4.0, 8.0]
    assert run.steps[0].tokens_per_second == 64 * 1024
    assert run.steps[0].allocated_bytes == 40.25 * 2**30
    assert {fact.value for fact in run.overruled["train_batch_size"]} == {"auto"}


ARGUMENTS = (
    "[rank0]: TrainingArguments(\n_n_gpu=1,\nbf16=True,\ndataloader_num_workers=2,\ndeepspeed=None,\n"
    "fsdp=[<FSDPOption.FULL_SHARD: 'full_shard'>, <FSDPOption.AUTO_WRAP: 'auto_wrap'>],\n"
    "fsdp_config={'min_num_params': 0, 'xla': False},\ngradient_accumulation_steps=2,\n"
    "gradient_checkpointing=True,\nlogging_steps=5,\noptim=OptimizerNames.ADAMW_TORCH,\n"
    "per_device_train_batch_size=1,\ntorch_compile=False,\n)\n"
)


def test_the_arguments_that_every_rank_prints_are_read(write: Write) -> None:
    run = the_run(write("train.log", ARGUMENTS + ARGUMENTS.replace("rank0", "rank1") + bars()), given=("num_gpus=16",))
    wanted = {
        "micro_batch": "1",
        "global_batch": "32",
        "precision": "bf16",
        "recompute": "full",
        "zero_stage": "FULL_SHARD",
    }
    wanted |= {"compile": "no", "implementation": "fsdp"}
    assert cells(run, *wanted) == wanted
    assert "optimizer" not in run.columns


def test_a_printed_configuration_of_a_model_is_read(write: Write) -> None:
    logger = "[INFO|configuration_utils.py:800] 2025-03-01 10:00:00,000 >> "
    text = f"{logger}Model config LlamaConfig {json.dumps(LLAMA, indent=2)}\n"
    run = the_run(write("train.log", text + BANNER))
    assert cells(run, *SHAPE) == SHAPE
    assert run.columns["hidden"].said_by is SaidBy.RESOLVED


STATE = {
    "global_step": 40,
    "logging_steps": 10,
    "max_steps": 40,
    "train_batch_size": 4,
    "log_history": [
        *(
            {"epoch": step / 40, "learning_rate": 2e-5, "loss": 2 - step / 100, "step": step}
            for step in range(10, 41, 10)
        ),
        {"step": 40, "total_flos": 1e18, "train_loss": 1.7, "train_runtime": 152.0, "train_steps_per_second": 0.263},
    ],
}


def test_a_trainer_state_tells_the_mean_step(write: Write) -> None:
    run = the_run(write("trainer_state.json", json.dumps(STATE, indent=2)), write("config.json", json.dumps(LLAMA)))
    ((step),) = run.steps
    assert (step.number, step.covers, step.seconds) == (40, 40, 3.8)
    assert run.settings["total_flos"].value == "1e+18"
    assert cells(run, *SHAPE) == SHAPE


FACTORY = """### model
model_name_or_path: meta-llama/Llama-3.1-8B
flash_attn: fa2
### method
stage: sft
finetuning_type: lora
lora_rank: 8
deepspeed: examples/deepspeed/ds_z3_config.json
### dataset
cutoff_len: 2048
packing: true
### train
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
"""


def test_a_front_ends_yaml_is_read(write: Write) -> None:
    run = the_run(write("llama3_lora.yaml", FACTORY), given=("num_gpus=8",))
    wanted = {"seq": "2048", "micro_batch": "1", "global_batch": "64", "precision": "bf16", "zero_stage": "3"}
    wanted |= {"flash_attention": "yes", "lora_rank": "8", "recompute": "full", "implementation": "deepspeed"}
    assert cells(run, *wanted) == wanted
    assert run.columns["recompute"].said_by is SaidBy.ASSUMED


AXOLOTL = """base_model: meta-llama/Llama-3.1-8B
sequence_len: 8192
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
bf16: auto
flash_attention: true
gradient_checkpointing: false
optimizer: adamw_torch
"""
ACCELERATE = """distributed_type: FSDP
mixed_precision: bf16
num_machines: 2
num_processes: 16
fsdp_config:
  fsdp_sharding_strategy: HYBRID_SHARD
"""


def test_two_yaml_files_of_one_run_are_one_run(write: Write) -> None:
    run = the_run(write("axolotl.yml", AXOLOTL), write("accelerate.yaml", ACCELERATE))
    wanted = {"seq": "8192", "micro_batch": "2", "global_batch": "128", "num_gpus": "16", "precision": "bf16"}
    wanted |= {"zero_stage": "HYBRID_SHARD", "recompute": "none", "flash_attention": "yes"}
    assert cells(run, *wanted) == wanted


def test_two_logs_are_two_runs_with_one_model(write: Write) -> None:
    model = write("config.json", json.dumps(LLAMA))
    runs = read_runs([write("a.log", BANNER + bars()), write("b.log", BANNER + bars(5.0)), model])
    assert [run.steps[-1].seconds for run in runs] == [3.69, 5.0]
    assert all(cells(run, *SHAPE) == SHAPE for run in runs)


def test_each_of_two_logs_has_its_own_configuration(write: Write) -> None:
    one, two = (json.dumps({**ZERO, "zero_optimization": {"stage": stage}}) for stage in (2, 3))
    runs = read_runs(
        [write("a.log", BANNER), write("a.json", one), write("b.log", BANNER + bars()), write("b.json", two)]
    )
    assert [run.columns["zero_stage"].value for run in runs] == ["2", "3"]


@pytest.mark.parametrize("cut", [0.3, 0.5, 0.9])
def test_a_cut_json_is_one_message(write: Write, cut: float) -> None:
    from conf.errors import ConfigError

    text = json.dumps(LLAMA, indent=1)
    with refused(ConfigError, "run"):
        read_runs([write("config.json", text[: int(len(text) * cut)])])


UNSLOTH = """   Num GPUs used = 1
 Batch size per device = 4 | Gradient accumulation steps = 4
 Data Parallel GPUs = 1 | Total batch size (4 x 4 x 1) = 16
 Trainable parameters = 41,943,040/8,000,000,000 (0.52% trained)
  1%|          | 5/625 [00:15<31:22,  3.04s/it]
"""


@pytest.mark.parametrize(
    "text",
    [UNSLOTH, BANNER + bars() + "trainable params: 41,943,040 || all params: 8,072,204,288 || trainable%: 0.51\n"],
)
def test_a_run_that_trains_a_part_of_its_parameters_is_no_full_one(write: Write, text: str) -> None:
    assert the_run(write("train.log", text)).row()["lora"] == "yes"


def test_the_banner_of_unsloth_tells_the_batch(write: Write) -> None:
    wanted = {"micro_batch": "4", "global_batch": "16", "num_gpus": "1"}
    assert cells(the_run(write("train.log", UNSLOTH)), *wanted) == wanted


OF_FACTORY = """[INFO] parser:143 >> Process rank: 0, world size: 8, device: cuda:0, compute dtype: torch.bfloat16
[INFO|2025-05-01 10:00:10] checkpointing:143 >> Gradient checkpointing enabled.
"""


def test_what_llama_factory_prints_is_read(write: Write) -> None:
    loss = "{'loss': 1.2, 'memory/device_mem_reserved(gib)': 71.5, 'epoch': 0.02}\n"
    run = the_run(write("train.log", OF_FACTORY + BANNER + loss))
    wanted = {"num_gpus": "8", "recompute": "full", "precision": "bf16"}
    assert cells(run, *wanted) == wanted
    assert run.steps[0].memory_bytes == 71.5 * 2**30


def test_the_stage_of_a_dictionary_for_deepspeed_is_its_stage(write: Write) -> None:
    text = {"micro_batch_size": 2, "base_model": "x", "deepspeed": {"zero_optimization": {"stage": 2}}}
    assert the_run(write("train.log", f"config:\n{json.dumps(text, indent=1)}\n")).row()["zero_stage"] == "2"
