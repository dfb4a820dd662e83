"""Fences, quoted lines and YAML in logs and in reports on the web."""

from __future__ import annotations

import json

from tests.diagnose.made_up import CORE, SIZES, Write, dump, megatron_steps
from tests.diagnose.readers.columns.test_huggingface import ARGUMENTS, AXOLOTL, ZERO, bars
from tests.diagnose.readers.columns.test_megatron import cells, the_run
from tests.diagnose.readers.columns.test_torchtitan import CONFIG, toml


def fenced(text: str, language: str = "") -> str:
    return f"```{language}\n{text.rstrip()}\n```\n"


def test_a_report_with_yaml_json_and_a_command_in_fences_is_read(write: Write) -> None:
    text = (
        "### My run is slow\n\nThis is my configuration:\n\n"
        + fenced(AXOLOTL, "yaml")
        + "and DeepSpeed's:\n"
        + fenced(json.dumps(ZERO, indent=2))
        + "which I start with\n"
        + fenced("NGPU=8\ntorchrun --nnodes 2 \\\n  --nproc_per_node $NGPU train.py x.yaml", "bash")
        + "It says:\n`  1%|▏         | 20/1218 [04:23<4:23:11, 13.18s/it]`\n"
    )
    run = the_run(write("issue.md", text))
    wanted = {"seq": "8192", "micro_batch": "2", "zero_stage": "3", "num_gpus": "16", "gpus_per_node": "8"}
    assert cells(run, *wanted) == wanted
    assert [step.seconds for step in run.steps] == [13.18]
    at = run.columns["seq"].at
    assert at is not None
    assert at.line is not None
    assert text.splitlines()[at.line - 1].startswith("sequence_len")


def test_a_log_in_a_fence_is_a_log(write: Write) -> None:
    text = "I see\n" + fenced(SIZES + dump(CORE) + megatron_steps([9.5, 9.4] * 300)) + "Why?\n"
    run = the_run(write("issue.md", text))
    assert (run.row()["tp"], len(run.steps)) == ("4", 600)


def test_lines_that_an_answer_quotes_are_read(write: Write) -> None:
    text = "".join(f">> {line}\n" for line in (SIZES + dump(CORE) + megatron_steps([9.5, 9.4])).splitlines())
    run = the_run(write("answer.md", text))
    assert (run.row()["layers"], len(run.steps)) == ("32", 2)


NEMO = """    ************** Experiment configuration ***********
    name: megatron_gpt
    trainer:
      devices: 4
      num_nodes: 2
      precision: bf16
    exp_manager:
      explicit_log_dir: null
    model:
      micro_batch_size: 6
      global_batch_size: 192
      tensor_model_parallel_size: 2
      encoder_seq_length: 2048
      num_layers: 12
      hidden_size: 768
      num_attention_heads: 12
      optim:
        name: fused_adam
GPU available: True (cuda), used: True
"""


def test_yaml_that_a_program_prints_is_read(write: Write) -> None:
    text = "".join(f"{rank}: {line}\n" for line in NEMO.splitlines() for rank in (0, 1))
    for name, each in (("plain.log", NEMO), ("ranks.log", text)):
        run = the_run(write(name, each))
        wanted = {"num_gpus": "8", "tp": "2", "layers": "12", "seq": "2048", "micro_batch": "6", "precision": "bf16"}
        assert cells(run, *wanted) == wanted


def test_what_only_looks_like_a_block_is_read_as_lines(write: Write) -> None:
    text = "model:\n" + SIZES + "trainer:\n```\n" + megatron_steps([9.5, 9.4]) + "```\n```yaml\na: [1\n"
    run = the_run(write("odd.log", text))
    assert (run.row()["tp"], len(run.steps)) == ("4", 2)


def test_a_front_end_is_known_by_its_command(write: Write) -> None:
    run = the_run(write("issue.md", "I ran\nNNODES=2 NPROC_PER_NODE=8 llamafactory-cli train sft.yaml\n"))
    assert (run.program, run.row()["num_gpus"]) == ("hf-trainer", "16")
    assert "zero_stage" not in run.columns


def test_a_configuration_that_lies_beside_is_read(write: Write) -> None:
    write("sft.yaml", "cutoff_len: 2048\nper_device_train_batch_size: 2\nbf16: true\n")
    run = the_run(write("run.sh", "llamafactory-cli train configs/sft.yaml\n"))
    assert (run.row()["seq"], run.row()["micro_batch"]) == ("2048", "2")
    assert run.columns["seq"].at is not None
    assert run.columns["seq"].at.file == "sft.yaml beside run.sh"


def test_arguments_of_the_trainer_and_its_bar_in_one_report(write: Write) -> None:
    text = fenced(ARGUMENTS) + fenced(bars(13.0))
    run = the_run(write("issue.md", text))
    assert run.steps[-1].seconds == 13.0


def test_a_configuration_behind_its_announcement_is_read_from_its_first_line(write: Write) -> None:
    text = (
        "INFO:torchtune:Running FullFinetuneRecipe with resolved config:\n\nbatch_size: 2\ncompile: false\n"
        "dtype: bf16\nenable_activation_checkpointing: true\ngradient_accumulation_steps: 4\nmodel:\n"
        "  _component_: torchtune.models.llama3_1.llama3_1_8b\ntokenizer:\n  max_seq_len: 8192\n\n"
        "1|1|Loss: 1.6:   1%|          | 1/100 [00:22<33:00,  9.21s/it]\n"
    )
    run = the_run(write("tune.log", text), given=("num_gpus=8",))
    wanted = {"micro_batch": "2", "recompute": "full", "precision": "bf16", "seq": "8192", "global_batch": "64"}
    assert cells(run, *wanted) == wanted
    assert [step.seconds for step in run.steps] == [9.21]


def test_a_fence_behind_an_announced_configuration_is_a_fence(write: Write) -> None:
    text = f"This is my config:\n{fenced(toml(CONFIG), 'toml')}and I start it with\n"
    text += fenced("torchrun --nnodes 2 --nproc_per_node 8 -m torchtitan.train", "bash")
    run = the_run(write("issue.md", text))
    wanted = {"seq": "8192", "recompute": "selective (per op)", "num_gpus": "16"}
    assert cells(run, *wanted) == wanted
