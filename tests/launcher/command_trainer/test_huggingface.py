"""Programs with Hugging Face's Trainer: what the callback prints of a step, and what the presets tell such programs.

The Trainer itself is run by `make test-trainers`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
import torch

from conf.errors import InfeasiblePlan
from conf.plan.experiment import Experiment
from conf.plan.trainer_call import JOB_NAMES, Call, call_of
from costs import num_parameters
from launcher.command_trainer.log_parser import StepParser
from tests.composed import load
from tests.messages import refused
from train_core.optimizers.learning_rate import learning_rate_at

STEPS = ["training.num_steps=3", "training.num_warmup_steps=1"]
LLAMA = ["model=llama-2-7b", "cluster=dgx-h100", "precision=bf16", "batch.global_batch_size=64"]
LLAMA += ["parallel.world_size=16", *STEPS]


@pytest.fixture(scope="module")
def huggingface() -> ModuleType:
    """The callback's module, imported here: it takes `transformers` and so many seconds in everybody's collection."""
    return import_module("launcher.command_trainer.huggingface")


def experiment_of(trainer: str, *overrides: str) -> Experiment:
    return load([f"trainer={trainer}", *STEPS, *overrides]).experiment()


def call(trainer: str, *overrides: str) -> Call:
    experiment = experiment_of(trainer, *overrides)
    return call_of(experiment.trainer, experiment, dict.fromkeys(JOB_NAMES, "X") | {"trial_folder": "/runs/t"})


def has(words: Sequence[str], *expected: str) -> bool:
    return any(tuple(words[start : start + len(expected)]) == expected for start in range(len(words)))


def take_steps(huggingface: ModuleType, monkeypatch: pytest.MonkeyPatch, *, is_first: bool) -> None:
    """Three steps of half a second; after the second one, weights are saved for ten seconds."""
    from transformers import TrainerControl, TrainerState, TrainingArguments

    lines, arguments, control = huggingface.StepLines(), object.__new__(TrainingArguments), TrainerControl()
    clock = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    state = TrainerState(max_steps=3, is_world_process_zero=is_first)
    lines.on_train_begin(arguments, state, control)
    for step in (1, 2, 3):
        state.global_step, clock[0] = step, clock[0] + 0.5
        lines.on_step_end(arguments, state, control)
        lines.on_log(arguments, state, control, {"loss": 5.0 - step, "grad_norm": 1.25, "learning_rate": 3e-4})
        if step == 2:
            clock[0] += 10.0
            lines.on_save(arguments, state, control)
    lines.on_log(arguments, state, control, {"train_runtime": 11.5, "train_loss": 3.0})


def test_what_the_callback_prints_is_what_the_preset_reads(
    huggingface: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(huggingface, "_peak_memory_gib", lambda: 0.375)
    take_steps(huggingface, monkeypatch, is_first=True)
    book = StepParser(experiment_of("hf-trainer"))
    for line in capsys.readouterr().out.splitlines():
        list(book.hear(line))
    assert [step.step_seconds for step in book.steps] == [0.5, 0.5, 0.5]
    assert [step.loss for step in book.steps] == [4.0, 3.0, 2.0]
    assert {(step.gradient_norm, step.learning_rate) for step in book.steps} == {(1.25, 3e-4)}
    assert book.memory_bytes == 0.375 * 2**30
    assert book.matched == set(book.patterns)


def test_other_ranks_print_their_memory_where_it_grows(
    huggingface: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    memory = iter([0.5, 0.25, 0.75])
    monkeypatch.setattr(huggingface, "_peak_memory_gib", lambda: next(memory))
    take_steps(huggingface, monkeypatch, is_first=False)
    assert capsys.readouterr().out.splitlines() == ["memory 0.500 GiB", "memory 0.750 GiB"]


@pytest.mark.parametrize(
    ("code", "ends_well"), [("", True), ("0", True), ("None", True), ("3", False), ("'no'", False)]
)
def test_a_script_that_leaves_by_itself_has_ended_where_it_says_so(
    code: str,
    ends_well: bool,
    huggingface: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import sys\nsys.exit({code})\n")
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setattr(import_module("transformers.trainer"), "DEFAULT_CALLBACKS", [])
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit):
        huggingface.run_program([str(script)])
    assert capsys.readouterr().out.splitlines() == ([huggingface.END] if ends_well else [])


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_script_finds_its_words_and_its_neighbours_and_the_first_rank_says_when_it_has_ended(
    rank: str,
    huggingface: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "neighbour.py").write_text("NAME = 'beside it'\n")
    script = tmp_path / "train.py"
    script.write_text("import neighbour, sys\nif __name__ == '__main__': print(neighbour.NAME, *sys.argv[1:])\n")
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    callbacks: list[object] = []
    monkeypatch.setattr(import_module("transformers.trainer"), "DEFAULT_CALLBACKS", callbacks)
    monkeypatch.setenv("RANK", rank)
    huggingface.run_program([str(script), "--seed", "1"])
    end = [huggingface.END] if rank == "0" else []
    assert capsys.readouterr().out.splitlines() == ["beside it --seed 1", *end]
    assert callbacks == [huggingface.StepLines]
    monkeypatch.delitem(sys.modules, "neighbour")


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (["model=gpt-1.4b"], "gpt2"),
        (["model=llama-2-7b"], "llama"),
        (["model=llama-3.1-8b"], "llama"),
        (["model=llama-2-7b", "model.qkv_bias=true"], "qwen2"),
    ],
)
def test_the_model_of_the_file_has_as_many_parameters_as_ours(model: list[str], kind: str, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    experiment = experiment_of("hf-trainer", *LLAMA, *model)
    job = dict.fromkeys(JOB_NAMES, "X")
    (tmp_path / "config.json").write_text(call_of(experiment.trainer, experiment, job).files["config.json"])
    config = AutoConfig.from_pretrained(tmp_path / "config.json")
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config)
    assert config.model_type == kind
    assert sum(parameter.numel() for parameter in built.parameters()) == num_parameters(experiment.model)


def test_the_file_says_how_positions_are_stretched() -> None:
    positions = json.loads(call("hf-trainer", *LLAMA, "model=llama-3.1-8b").files["config.json"])["rope_parameters"]
    stretched = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    length = {"original_max_position_embeddings": 8192}
    assert positions == {"rope_type": "llama3", "rope_theta": 500_000, **stretched, **length}


def test_flags_say_the_plan() -> None:
    words = call("hf-trainer", *LLAMA, "parallel.recompute=full", "batch.micro_batch_size=2").words
    assert words[:2] == ("X", "train.py")
    assert has(words, "--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2")
    assert {"--bf16", "--gradient_checkpointing"} <= set(words)
    assert not {"--fsdp", "--use_cpu", "--save_steps", "--deepspeed"} & set(words)
    sharded = call("hf-trainer", *LLAMA, "parallel.zero_stage=3", "parallel.recompute=full").words
    settings = json.loads(sharded[sharded.index("--fsdp_config") + 1])
    assert settings == {"reshard_after_forward": True, "activation_checkpointing": True}
    assert "--gradient_checkpointing" not in sharded
    saved = call("hf-trainer", *LLAMA, "checkpoint.every_steps=2").words
    assert has(saved, "--save_strategy", "steps", "--save_steps", "2", "--save_total_limit", "2")


def test_deepspeeds_file_and_flags_say_the_plan() -> None:
    zero = call("hf-deepspeed", *LLAMA, "parallel.zero_stage=2", "parallel.recompute=full")
    assert json.loads(zero.files["deepspeed.json"])["zero_optimization"]["stage"] == 2
    assert has(zero.words, "--deepspeed", "/runs/t/deepspeed.json")
    assert "--gradient_checkpointing" in zero.words
    assert not {"--fsdp", "--fsdp_config"} & set(zero.words)


def test_deepspeeds_schedule_has_a_share_as_its_optimizer_tells_no_rate() -> None:
    rates = ["training.learning_rate=0.0004", "training.min_learning_rate=0.0001"]
    assert has(call("hf-deepspeed", *LLAMA, *rates).words, "--lr_scheduler_kwargs", '{"min_lr_rate": 0.25}')


@pytest.mark.parametrize("trainer", ["hf-trainer", "hf-deepspeed"])
@pytest.mark.parametrize("schedule", ["constant", "cosine", "wsd"])
def test_the_rates_of_a_schedule_are_those_of_the_plan(trainer: str, schedule: str) -> None:
    from transformers.optimization import get_scheduler

    plan = ["training.num_steps=12", "training.learning_rate_warmup_steps=4", f"training.schedule={schedule}"]
    plan += ["training.learning_rate_decay_steps=3"] if schedule == "wsd" else []
    training, words = experiment_of(trainer, *LLAMA, *plan).training, call(trainer, *LLAMA, *plan).words
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=training.learning_rate)
    told = dict(pairwise(words))
    options = json.loads(told.get("--lr_scheduler_kwargs", "{}"))
    rates = get_scheduler(told["--lr_scheduler_type"], optimizer, 4, 12, options).lr_lambdas[0]
    # Theirs count from 0. The warm-up of `wsd` begins elsewhere, which `differs` says.
    steps = range(4 if schedule == "wsd" else 1, 13)
    theirs = [rates(step) * training.learning_rate for step in steps]
    assert theirs == pytest.approx([learning_rate_at(step, training) for step in steps])


@pytest.mark.parametrize(
    ("trainer", "plan", "key"),
    [
        ("hf-trainer", ["parallel.zero_stage=1"], "parallel.zero_stage"),
        ("hf-trainer", ["parallel.tensor_parallel_size=2"], "parallel.tensor_parallel_size"),
        ("hf-deepspeed", ["parallel.pipeline_parallel_size=2"], "parallel.pipeline_parallel_size"),
        ("hf-deepspeed", ["parallel.zero_group_size=4", "parallel.zero_stage=1"], "parallel.zero_group_size"),
        ("hf-deepspeed", ["parallel.offload_optimizer=true"], "parallel.offload_optimizer"),
        ("hf-trainer", ["model=mixtral-8x7b"], "model.experts"),
        ("hf-trainer", ["training.dropout=0.1"], "model.family"),
        ("hf-trainer", ["training.schedule=linear"], "training.schedule"),
        ("hf-deepspeed", ["training.schedule=inverse-square-root"], "training.schedule"),
    ],
)
def test_a_plan_that_the_trainer_cannot_carry_out_says_why(trainer: str, plan: list[str], key: str) -> None:
    with refused(InfeasiblePlan, key):
        experiment_of(trainer, *LLAMA, *plan)
