"""Flags of commands: of launchers, schedulers and programs, in scripts and in logs."""

from __future__ import annotations

import pytest

from diagnose.readers.commands import gpus_of, read_script
from diagnose.runs import UserRun
from tests.diagnose.made_up import Write
from tests.diagnose.readers.columns.test_megatron import the_run


def settings(text: str) -> dict[str, str]:
    run = UserRun("a")
    read_script(run, "a.sh", text)
    return {name: fact.value for name, fact in run.settings.items()}


@pytest.mark.parametrize(
    ("command", "name", "value"),
    [
        ("torchrun --nproc_per_node 8 train.py --x 1", "nproc_per_node", "8"),
        ("torchrun --standalone train.py --x 1", "standalone", "True"),
        ("torchrun --standalone train.py --x 1", "program", "train.py"),
        ("python -m torchtitan.train --training.seq_len=4096", "training.seq_len", "4096"),
        ("python -m torchtitan.train --compile.enable --x 1", "compile.enable", "True"),
        ("deepspeed --num_gpus 8 --num_nodes 2 train.py --deepspeed ds.json", "deepspeed", "ds.json"),
        ("srun -n 16 --nodes 2 bash run.sh\npython pretrain_gpt.py --lr 1.5e-4", "lr", "1.5e-4"),
        ("#SBATCH -J x-N2 -N4 --mem=0\nsrun x.py", "sbatch.nodes", "4"),
        ("srun -N4 -n32 python x.py --bf16", "nodes", "4"),
        ("srun -N4 -n32 python x.py --bf16", "ntasks", "32"),
        ("python x.py --recompute-modules layernorm moe_act --bf16", "recompute_modules", "layernorm moe_act"),
        ("python x.py --recompute-modules layernorm moe_act --bf16", "bf16", "True"),
        ("python x.py --window -1 --y", "window", "-1"),
        ("python x.py --bf16 $EXTRA_ARGS", "bf16", "True"),
        ("python x.py --nnodes $NNODES", "nnodes", "$NNODES"),
        ("python x.py --bf16 2>&1 | tee log", "bf16", "True"),
        ("python nemo.py ++model.fp8=true 'trainer.devices=8'", "model.fp8", "true"),
        ("CUDA_LAUNCH_BLOCKING=1 python x.py --a 1", "CUDA_LAUNCH_BLOCKING", "1"),
        ("export NCCL_IB_DISABLE=1\npython x.py --a 1", "NCCL_IB_DISABLE", "1"),
        ("python run_clm.py --config_overrides n_embd=1024,n_layer=24", "n_layer", "24"),
    ],
)
def test_a_flag_has_its_value(command: str, name: str, value: str) -> None:
    assert settings(command)[name] == value


def test_flags_of_a_part_of_a_script_count_too() -> None:
    assert settings("--num-layers 24 \\\n--hidden-size 2048\n")["hidden_size"] == "2048"
    assert settings('GPT_ARGS="\n --num-layers 24\n"\n')["num_layers"] == "24"


def test_a_variable_that_no_command_names_gives_no_flags() -> None:
    assert "num_layers" not in settings('OLD="--num-layers 24"\ntorchrun pretrain_gpt.py --hidden-size 8\n')


@pytest.mark.parametrize(
    ("text", "count"), [("8", "8"), ("gpu:8", "8"), ("gpu:h100:4", "4"), ("gpu:a100:8(S:0-1)", "8"), ("gpu", "")]
)
def test_the_gpus_that_slurm_is_asked_for(text: str, count: str) -> None:
    assert gpus_of(text) == count


@pytest.mark.parametrize(
    "line",
    [
        "+ torchrun --nproc_per_node=8 -m torchtitan.train --training.seq_len 4096",
        "user@node-1:~/titan$ torchrun --nproc_per_node=8 -m torchtitan.train --training.seq_len 4096",
        "[2024-05-01 10:00:00,001] [INFO] [runner.py:568:main] cmd = /usr/bin/python3 -u -m titan.train "
        "--training.seq_len 4096",
        "$ torchrun --nproc_per_node=8 \\\n   -m torchtitan.train \\\n   --training.seq_len 4096",
    ],
)
def test_a_command_that_a_log_repeats_is_read(write: Write, line: str) -> None:
    run = the_run(write("titan.log", f"some words before\n{line}\nand after\n"))
    assert run.columns["seq"].value == "4096"
    assert run.columns["seq"].at is not None
    assert run.columns["seq"].at.line == 1 + line.count("\n") + 1


def test_a_configuration_that_the_script_writes_is_read_with_its_variables(write: Write) -> None:
    text = (
        'STAGE=2\nMB=4\ncat <<EOT > ds.json\n{\n  "train_micro_batch_size_per_gpu": $MB,\n'
        '  "zero_optimization": {"stage": $STAGE}\n}\nEOT\ndeepspeed --num_gpus 8 train.py --deepspeed_config ds.json\n'
    )
    run = the_run(write("run.sh", text))
    assert (run.row()["zero_stage"], run.row()["micro_batch"]) == ("2", "4")
    said = [run.settings[name].at for name in ("zero_optimization.stage", "num_gpus")]
    assert [at.line for at in said if at] == [6, 9]


def test_variables_of_a_file_that_is_sourced_are_put_in(write: Write) -> None:
    write("sizes.sh", "LAYERS=24\nexport HIDDEN=2048\n")
    command = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers $LAYERS --hidden-size $HIDDEN\n"
    run = the_run(write("run.sh", f"source $(dirname $0)/sizes.sh\n{command}"))
    assert (run.row()["layers"], run.row()["hidden"]) == ("24", "2048")


def test_yaml_that_the_script_writes_is_read(write: Write) -> None:
    text = (
        "LEN=8192\ncat > train.yaml <<EOF\nmodel_name_or_path: mistralai/Mistral-7B-v0.1\n# long\ncutoff_len: $LEN\n"
        "gradient_checkpointing: true\nEOF\ndeepspeed --num_nodes=2 --num_gpus=8 train.py --config train.yaml --bf16\n"
    )
    run = the_run(write("run.sh", text))
    assert {name: run.row()[name] for name in ("seq", "recompute", "layers", "num_gpus", "precision")} == {
        "seq": "8192",
        "recompute": "full",
        "layers": "32",
        "num_gpus": "16",
        "precision": "bf16",
    }
