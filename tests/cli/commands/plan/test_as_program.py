"""`trisweep plan ... --as PROGRAM`: what is printed can be given to a shell."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sweeps.planner.choosing.choice import choose_plans
from sweeps.planner.choosing.objectives import Training
from sweeps.planner.request import search_request
from tests.cli.commands.plan.conftest import FEW, GPT_22B, Plan
from tests.composed import composed
from tests.messages import said

EVEN = "parallel.layers_per_stage=null"
ONE_PLAN = (
    *("parallel.tensor_parallel_size=8", "parallel.pipeline_parallel_size=1", "parallel.zero_stage=3"),
    *("parallel.sequence_parallel=true", "batch.micro_batch_size=1", "parallel.recompute=full"),
)


def words_of(script: str, tmp_path: Path) -> list[str]:
    """The words with which a shell that runs the script starts the program."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "torchrun").write_text(f"#!{sys.executable}\nimport json, sys; print(json.dumps(sys.argv[1:]))\n")
    (tools / "torchrun").chmod(0o755)
    meeting = {"NODE_RANK": "1", "MASTER_ADDR": "node 0", "MASTER_PORT": "29500"}
    environment = {**os.environ, **meeting, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["bash", "-n", "-c", script], check=True)
    ran = subprocess.run(["bash", "-eu", "-c", script], env=environment, cwd=tmp_path, capture_output=True, check=True)
    return json.loads(ran.stdout)


def test_the_files_that_a_program_wants_are_written_by_the_shell(plan: Plan, tmp_path: Path) -> None:
    words = words_of(plan("175b", "--as", "deepspeed"), tmp_path)
    written = tmp_path / words[words.index("--deepspeed_config") + 1]
    assert json.loads(written.read_text())["train_batch_size"] == 5120


@pytest.mark.slow
def test_a_program_with_hugging_faces_trainer_is_started_by_the_script_that_has_it_print_its_steps(
    plan: Plan, tmp_path: Path
) -> None:
    own = tmp_path / "config.json"
    own.write_text("{}")
    words = words_of(plan(*GPT_22B, "parallel.zero_stage=3", "--as", "hf-deepspeed"), tmp_path)
    assert own.read_text() == "{}", "a file of the user's is another now"
    starter = words.index("train.py") - 1
    assert words[starter - 1] == "--nproc-per-node=8"
    assert Path(words[starter]).is_file()
    written = {flag: tmp_path / words[words.index(flag) + 1] for flag in ("--deepspeed", "--config_name")}
    assert json.loads(written["--deepspeed"].read_text())["zero_optimization"]["stage"] == 3
    assert json.loads(written["--config_name"].read_text())["num_hidden_layers"] == 48


@pytest.mark.slow
def test_what_serves_a_measurement_is_apart_from_what_a_training_needs(plan: Plan, tmp_path: Path) -> None:
    """Uneven stages have characters in their flag that a shell would read."""
    stages = ("parallel.pipeline_parallel_size=4", "parallel.layers_per_stage=[11,13,13,11]", "parallel.zero_stage=1")
    script = plan(*GPT_22B, *stages, "parallel.schedule=1f1b", "--as", "megatron-core")
    words = words_of(script, tmp_path)
    assert words[:4] == ["--nnodes=2", "--node-rank=1", "--master-addr=node 0", "--master-port=29500"]
    assert words[4:6] == ["--nproc-per-node=8", "pretrain_gpt.py"]
    layout = words.index("--pipeline-model-parallel-layout")
    assert words[layout + 1] == "Et*11|(t*13|)*2t*11L"
    assert {"--overlap-grad-reduce", "--overlap-param-gather"} <= set(words)
    of_a_measurement = script.partition("measuring=(\n")[2].partition("\n)\n")[0].split("\n")
    flags = [line.split()[0] for line in of_a_measurement]
    assert flags[:3] == ["--train-iters", "--lr-warmup-iters", "--mock-data"]
    assert words[-len(" ".join(of_a_measurement).split()) :] == " ".join(of_a_measurement).split()
    without = script.replace("torchrun", "measuring=(); echo", 1)
    training = subprocess.check_output(["bash", "-c", without], text=True)
    assert "--hidden-size" in training
    assert not set(flags) & set(training.split())


@pytest.mark.thorough  # than the best plan that is printed
@pytest.mark.slow
def test_what_a_plan_does_not_say_is_a_comment(plan: Plan) -> None:
    model = ("model=qwen3-30b-a3b", "cluster=dgx-h100", "precision=bf16", "batch.global_batch_size=64")
    printed = plan(*model, "parallel.world_size=16", "--as", "megatron-lm")
    comments = [line for line in printed.splitlines() if line.startswith("#")]
    assert "--qk-layernorm" in printed.partition("torchrun")[2]
    for flag in ("--mtp-num-layers", "--moe-router-score-function sigmoid"):
        assert any(flag in line for line in comments)
        assert flag not in "\n".join(line for line in printed.splitlines() if not line.startswith("#"))
    assert any("router_aux_loss_coef" in line for line in comments)
    assert "router_aux_loss_coef" not in plan(
        *model, "parallel.world_size=16", "model.experts.balance_loss=0.001", "--as", "megatron-lm"
    )


@pytest.mark.slow
def test_a_plan_is_priced_at_the_costs_of_the_trainer_that_will_run_it(plan: Plan) -> None:
    pinned = ("parallel.tensor_parallel_size=8", "parallel.pipeline_parallel_size=1", "parallel.zero_stage=1")
    plans = [plan(*GPT_22B, *pinned, "--search", "--as", name) for name in ("megatron-lm", "megatron-core")]
    assert plans[0] == plans[1]
    assert "at the costs of megatron-core." in " ".join(plans[0].replace("#", " ").split())
    predicted = re.search(r"not measured: ([\d.]+) s a step", plans[0])
    assert predicted is not None
    asked = composed([*GPT_22B, *pinned, "trainer=megatron-lm"])
    for implementation, is_same in (("megatron-core", True), ("trisweep", False)):
        spaces = search_request(asked, implementation=implementation).spaces
        seconds = choose_plans(spaces, "time", Training(), top=1).best[0].step_seconds
        assert (f"{seconds:.3g}" == predicted[1]) is is_same


@pytest.mark.thorough  # than the best plan that is printed
@pytest.mark.slow
def test_values_of_the_users_own_change_the_command(plan: Plan, tmp_path: Path) -> None:
    script = plan(*GPT_22B, "trainer.flags.seed=7", "+trainer.flags.data-path='a $(b)'", "--as", "megatron-lm")
    words = words_of(script, tmp_path)
    assert words[words.index("--seed") + 1] == "7"
    assert words[words.index("--data-path") + 1] == "a $(b)"


@pytest.mark.slow
def test_the_best_plan_that_the_program_runs_is_printed_and_a_faster_one_that_it_does_not_named(plan: Plan) -> None:
    job = ("model=gpt-175b", "cluster=selene", *FEW)
    searched = ("--devices", "96", "--search", "--as")
    printed = plan(*job, "parallel.tensor_parallel_size=8", *searched, "megatron-lm")
    comments = " ".join(line.strip("# ") for line in printed.splitlines() if line.startswith("#"))
    assert "The best plan of all" not in comments  # it is this one, as the search reads the limits of the program
    assert "Predicted, not measured" in comments
    assert all(len(line) <= 80 for line in printed.splitlines())
    others = plan(*job, *searched, "deepspeed")
    assert "faster: parallel.schedule = interleaved: trainer deepspeed" in re.sub(r"\n# +", " ", others)
    # Nobody gave a batch and a precision, and nobody is given a command of eight sequences in fp32.
    assert "--bf16" in printed
    assert "--global-batch-size 1536" in printed
    rate = re.search(r"([\d.]+) TFLOPS a device", printed)
    assert rate is not None
    assert 100 < float(rate[1]) < 312  # an A100's peak; 0.27 before


def test_a_plan_with_a_pinned_value_is_no_faster_than_the_best_of_all(plan: Plan) -> None:
    job = ("model=llama-3.1-8b", "cluster=dgx-h100", "precision=bf16", "batch.global_batch_size=512", "--devices", "64")
    searched = (*job, "--as", "torchtitan", "parallel.pipeline_parallel_size=4", "parallel.recompute=none")
    seconds = [
        float(plan(*searched, *pinned).partition("not measured: ")[2].split()[0])
        for pinned in ((), ("parallel.layers_per_stage=[8,9,9,6]",))
    ]
    assert seconds[0] <= seconds[1]


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["--as", "megatron"], "--as"),
        (["--as", "trisweep"], ""),
        (["--as", "fsdp"], "--implementation"),
        (["--as", "megatron-lm", "--pareto"], "--as"),
        (["--as", "megatron-lm", "--top", "3", "--budget", "9"], "--top"),
        (["--as", "command"], ""),
        (
            ["--as", "megatron-lm", "--steps", "500", "training.num_steps=400"],
            "training.num_steps",
        ),
    ],
)
def test_what_cannot_be_printed_is_one_sentence(refusal: Plan, arguments: list[str], key: str) -> None:
    said(refusal(*GPT_22B, *arguments), key)


def test_a_model_that_the_program_does_not_have_is_not_said_to_need_another_plan(refusal: Plan) -> None:
    refused = refusal(*GPT_22B, *ONE_PLAN, "--as", "torchtitan")
    named = "(trainer.values.flavor.otherwise=FLAVOR names one of a module of yours)"
    assert f"none of its models of Llama 3.1 has this shape {named}; the nearest, 70B, has model." in refused
    assert "no other plan" not in refused
    assert refused.endswith("Choose another value, or another trainer.")


@pytest.mark.parametrize(
    ("program", "flags"),
    [
        ("megatron-lm", ["--train-iters", "--lr-warmup-iters"]),
        ("deepspeed", ["--train-iters", "--lr-warmup-iters"]),
        ("hf-deepspeed", ["--max_steps", "--warmup_steps"]),
    ],
)
@pytest.mark.parametrize(
    ("length", "steps", "warmup"),
    [
        (["--tokens", "300e9"], "2288819", "2000"),  # 64 sequences of 2,048 tokens, the last step not whole
        (["--steps", "5000"], "5000", "50"),
        (["--steps", "1"], "1", "0"),
        (["--steps", "5000", "training.learning_rate_warmup_steps=7"], "5000", "7"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_the_length_of_a_training_is_the_commands(
    plan: Plan, tmp_path: Path, program: str, flags: list[str], length: list[str], steps: str, warmup: str
) -> None:
    pinned = (*ONE_PLAN, "parallel.tensor_parallel_size=1", "parallel.sequence_parallel=false")
    model = () if program == "megatron-lm" else ("parallel.zero_stage=1",)
    script = plan(*GPT_22B, *pinned, "cluster.device.memory_bytes=900000000000", *model, "--as", program, *length)
    words = words_of(script, tmp_path)
    assert [words[words.index(flag) + 1] for flag in flags] == [steps, warmup]
    measuring = script.partition("measuring=(\n")[2].partition("\n)\n")[0]
    assert not [flag for flag in flags if flag in measuring]
    assert f"in {int(steps):,} steps, the first {int(warmup):,} of them" in " ".join(
        line.strip("# ") for line in script.splitlines() if line.startswith("#")
    )


@pytest.mark.parametrize(("gib", "is_likely"), [(80, True), (73, False)])
def test_a_command_says_how_much_memory_its_plan_needs_and_whether_it_may_not_fit(
    plan: Plan, gib: int, is_likely: bool
) -> None:
    sizes = ("parallel.tensor_parallel_size=4", "parallel.pipeline_parallel_size=2", "batch.micro_batch_size=8")
    others = ("parallel.zero_stage=1", "parallel.sequence_parallel=true", "parallel.recompute=none", EVEN)
    device = (f"cluster.device.memory_bytes={gib * 2**30}", "parallel.virtual_pipeline_size=1")
    here = "parallel.offload_optimizer=false"
    printed = plan(*GPT_22B, *sizes, *others, *device, here, "--as", "megatron-lm")
    comments = " ".join(line.strip("# ") for line in printed.splitlines() if line.startswith("#"))
    assert f"TFLOPS a device, 70.2 of {gib}.0 GiB, at" in comments
    assert bool(re.search(r"! It is \d\d% likely to fit, by what predicted memory was off", comments)) != is_likely
    assert ("No plan is 90% likely to fit; what fits on paper is shown." in comments) != is_likely


@pytest.mark.parametrize("key", ["otherwise", "to.gpt-22b"])
def test_a_model_of_a_module_of_the_users_own_is_named_beside_the_program(plan: Plan, key: str) -> None:
    named = f"trainer.values.flavor.{key}=mine"
    assert "--model.flavor mine" in plan(*GPT_22B, *ONE_PLAN, named, "--as", "torchtitan")


def test_a_stated_warm_up_is_held_against_the_length_that_the_command_gets(plan: Plan, refusal: Plan) -> None:
    stated = (*GPT_22B, "training.learning_rate_warmup_steps=2000", "--as", "megatron-lm")
    assert "--lr-warmup-iters 2000" in plan(*stated, "--steps", "100000")
    assert "2000: is more than training.num_steps = 1000, " in refusal(*stated, "--steps", "1000")
    assert "2000: is more than training.num_steps = 10, " in refusal(*stated)
