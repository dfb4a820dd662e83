"""Python files as configurations."""

from __future__ import annotations

import pytest

from conf.errors import ConfigError
from diagnose.readers import read_runs
from tests.diagnose.made_up import Write
from tests.diagnose.readers.columns.test_megatron import cells, the_run
from tests.messages import refused

RECIPE = """from nemo.collections import llm
def main():
    recipe = llm.llama3_8b.pretrain_recipe(name="x", num_nodes=2, num_gpus_per_node=8)
    recipe.trainer.strategy.tensor_model_parallel_size = 2
    recipe.trainer.strategy.context_parallel_size = 2
    recipe.data.global_batch_size = 16 * 8
    recipe.data.micro_batch_size = 1
    recipe.data.seq_length = 8192
"""
NANO = (
    "batch_size = 12\nblock_size = 1024\ngradient_accumulation_steps = 5 * 8\nn_layer = 12\nn_head = 12\nn_embd = 768\n"
)
TRAINER = """MODEL = "mistralai/Mistral-7B-v0.1"
parser.add_argument("--max-seq-length", type=int, default=4096)
model = AutoModelForCausalLM.from_pretrained(MODEL, torch_dtype=torch.bfloat16)
args = TrainingArguments(per_device_train_batch_size=4, gradient_checkpointing=True, bf16=True, deepspeed="zero3.json")
"""
FILES = {
    "recipe.py": (
        RECIPE,
        {
            "num_gpus": "16",
            "tp": "2",
            "cp": "2",
            "global_batch": "128",
            "seq": "8192",
            "layers": "32",
            "precision": "bf16",
        },
    ),
    "train_gpt2.py": (
        NANO,
        {"layers": "12", "hidden": "768", "seq": "1024", "micro_batch": "12", "global_batch": "480"},
    ),
    "sft.py": (
        TRAINER,
        {
            "layers": "32",
            "seq": "4096",
            "micro_batch": "4",
            "recompute": "full",
            "precision": "bf16",
            "zero_stage": "3",
        },
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_python_file_is_read_without_running_it(write: Write, name: str) -> None:
    text, wanted = FILES[name]
    run = the_run(write(name, text + "raise SystemExit(3)\n"))
    assert cells(run, *wanted) == wanted


def test_sizes_of_a_python_file_tell_no_trainer(write: Write) -> None:
    text = (
        "SEQ = 2048\nmodel = dict(num_layers=24, hidden_size=2048, num_attention_heads=16)\ndata = dict(seq_len=SEQ)\n"
    )
    run = the_run(write("7b.py", text))
    assert (run.program, run.trainer, run.row()["seq"], run.row()["layers"]) == (None, None, "2048", "24")
    assert {"tp", "pp", "precision"} & run.columns.keys() == set()


def test_a_flag_of_the_command_corrects_a_default_of_its_parser(write: Write) -> None:
    script = write("run.sh", "torchrun --nproc_per_node 8 sft.py --max-seq-length 2048\n")
    assert the_run(write("sft.py", TRAINER), script).row()["seq"] == "2048"


def test_what_is_not_python_is_one_message(write: Write) -> None:
    with refused(ConfigError, "run"):
        read_runs([write("train.py", "def x(:\n")])
