"""Models by their names alone: the sizes have the parameters that the name says, and no other word is overruled."""

from __future__ import annotations

import pytest

from diagnose.readers.columns.named_models import ROWS
from diagnose.runs import SaidBy
from tests.diagnose.made_up import Write
from tests.diagnose.readers.columns.test_megatron import the_run

BILLIONS = {
    "TinyLlama/TinyLlama-1.1B-step-50K-105b": 1.1,
    "meta-llama/Llama-3.2-1B": 1.24,
    "Llama-3.2-3B-Instruct": 3.21,
    "/models/Meta-Llama-3-8B": 8.03,
    "meta-llama/Llama-3.1-8B-Instruct": 8.03,
    "meta-llama/Llama-3.3-70B-Instruct": 70.6,
    "meta-llama/Llama-3.1-405B": 405.9,
    "Llama-2-70b-hf": 69.0,
    "decapoda-research/llama-7b-hf": 6.74,
    "llama2-7b": 6.74,
    "converted_llama_7B": 6.74,
    "lmsys/vicuna-13b-v1.5": 13.0,
    "huggyllama/llama-30b": 32.5,
    "llama_65b": 65.3,
    "mistralai/Mistral-7B-v0.1": 7.24,
    "Qwen/Qwen2.5-0.5B": 0.494,
    "Qwen/Qwen2-1.5B": 1.54,
    "Qwen2.5-3B": 3.09,
    "Qwen/Qwen2.5-7B-Instruct": 7.62,
    "Qwen/Qwen2.5-14B": 14.8,
    "Qwen2.5-32B-Base-mcore": 32.8,
    "Qwen/Qwen2-72B": 72.7,
    "Qwen/Qwen3-0.6B": 0.596,
    "Qwen/Qwen3-1.7B": 1.72,
    "Qwen/Qwen3-4B": 4.02,
    "/model/Qwen3-8B": 8.19,
    "Qwen/Qwen3-14B": 14.8,
    "Qwen/Qwen3-32B": 32.8,
    "01-ai/Yi-34B": 34.4,
    "/data/LLMs/baichuan-13b": 13.3,
    "mosaicml/mpt-7b": 6.65,
    "EleutherAI/gpt-neox-20b": 20.6,
    "openai-community/gpt2-xl": 1.56,
    "gpt2-large": 0.774,
    "gpt2-medium": 0.355,
    "torchtune.models.llama3_1.llama3_1_8b": 8.03,
}
COMMAND = "torchrun --nproc_per_node 8 train.py --model_name_or_path {} --per_device_train_batch_size 1 --bf16 True\n"


@pytest.mark.parametrize("name", BILLIONS)
def test_the_sizes_of_a_named_model_have_its_parameters(write: Write, name: str) -> None:
    run = the_run(write("run.sh", COMMAND.format(name)))
    assert run.columns["layers"].said_by is SaidBy.ASSUMED
    assert "by its name alone" in run.columns["layers"].note
    row = run.row()
    layers, hidden, heads, kv, ffn, vocab = (
        int(row[column]) for column in ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab")
    )
    width = int(row.get("head_dim", hidden // heads))
    attention = 2 * hidden * width * heads + 2 * hidden * width * kv
    feed_forward = hidden * ffn * (3 if row["gated_mlp"] == "yes" else 2)
    embeddings = vocab * hidden * (1 if row["tied_embeddings"] == "yes" else 2)
    assert (layers * (attention + feed_forward) + embeddings) / 1e9 == pytest.approx(BILLIONS[name], rel=0.03)


def test_every_row_is_named_by_a_test() -> None:
    names = [name.lower().replace("/", "-").replace("_", "-").replace(".", "-") for name in BILLIONS]
    assert [pattern.pattern for pattern, _ in ROWS if not any(pattern.search(name) for name in names)] == []


@pytest.mark.parametrize(
    "name",
    ["Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen3-30B-A3B", "mixtral-8x7b", "my-model", "llama-7b-13b", "llama-70b"],
)
def test_other_models_are_asked_for(write: Write, name: str) -> None:
    assert "layers" not in the_run(write("run.sh", COMMAND.format(name))).columns


def test_what_a_file_says_is_believed_before_the_name(write: Write) -> None:
    command = COMMAND.format("llama-7b").replace("\n", " --num_hidden_layers 4\n")
    run = the_run(write("run.sh", command))
    assert run.row()["layers"] == "4"
    assert "hidden" not in run.columns


def test_what_a_file_leaves_out_is_the_named_models_where_the_rest_is(write: Write) -> None:
    log = "model=llama-7b hidden_size=4096 num_layers=32 num_heads=32 seq_len=4096 dtype=bf16 zero_stage=1 remat=True\n"
    run = the_run(write("train.log", log + "step=1 loss=9.1 step_time=5.2s\n" * 3))
    assert (run.row()["ffn_hidden"], run.columns["ffn_hidden"].said_by) == ("11008", SaidBy.ASSUMED)
    assert run.columns["hidden"].said_by is SaidBy.PROSE
    said = {column: run.row()[column] for column in ("precision", "zero_stage", "recompute")}
    assert said == {"precision": "bf16", "zero_stage": "1", "recompute": "full"}
