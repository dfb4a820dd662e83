"""`trisweep plan ... --as PROGRAM --sbatch`: a file that sbatch takes, and a job that starts the program."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands.plan.conftest import Plan
from tests.messages import said

JOB = ("model=llama-3.1-8b", "precision=bf16", "batch.global_batch_size=64", "parallel.world_size=16")
ONE_PLAN = (
    *("parallel.tensor_parallel_size=1", "parallel.pipeline_parallel_size=1", "parallel.recompute=full"),
    *("batch.micro_batch_size=1", "parallel.recompute_every=1", "parallel.context_parallel_size=1"),
)
ON_SLURM = ("cluster=jupiter", "slurm.account=abc", "slurm.setup=[module load PyTorch]", "+slurm.environment.WHO='a b'")
PLAN = (*JOB, *ONE_PLAN, *ON_SLURM)
ZERO = {"torchtitan": "3", "hf-trainer": "3"}
TOOLS = {
    "module": 'echo "$@" > modules',
    "scontrol": "printf 'node7\\nnode8\\n'",
    # Each task that srun starts runs what stands behind its options, with the variables of a task.
    "srun": """
import json, os, subprocess, sys
words = sys.argv[1:]
own = [words.pop(0) for word in list(words) if word.startswith("-") and words[0] == word]
json.dump(own, open("srun.json", "w"))
seat = {"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_NTASKS": "16"}
sys.exit(subprocess.run(words, env=os.environ | seat).returncode)
""",
    "program": """
import json, os, sys
json.dump({"words": sys.argv[1:], "environment": dict(os.environ)}, open("started.json", "w"))
""",
}


def ran(script: str, folder: Path, program: str) -> tuple[list[str], dict[str, str], list[str]]:
    """The words and the environment with which a job of this script starts the program, and srun's own options."""
    tools = folder / "tools"
    tools.mkdir()
    for name, body in TOOLS.items():
        interpreter = sys.executable if "import" in body else "/bin/bash"
        path = tools / (program if name == "program" else name)
        path.write_text(f"#!{interpreter}\n{body}\n")
        path.chmod(0o755)
    job = {"SLURM_JOB_NODELIST": "node[7-8]", "SLURM_JOB_ID": "20071"}
    environment = {**os.environ, **job, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["bash"], input=script, text=True, env=environment, cwd=folder, check=True)
    started = json.loads((folder / "started.json").read_text())
    return started["words"], started["environment"], json.loads((folder / "srun.json").read_text())


@pytest.mark.one_in(2)
@pytest.mark.parametrize("program", ["megatron-lm", "torchtitan", "deepspeed", "hf-trainer", "hf-deepspeed"])
def test_a_job_starts_each_program_as_its_command_says(plan: Plan, tmp_path: Path, program: str) -> None:
    zero = f"parallel.zero_stage={ZERO.get(program, '1')}"
    model = ("model.rotary_scaling=null",) if program == "deepspeed" else ()
    script = plan(*PLAN, *model, zero, "--as", program, "--sbatch")
    assert script.startswith("#!/bin/bash\n")
    options = set(re.findall(r"(?m)^#SBATCH --(\S+)$", script))
    asked = {"account=abc", "partition=booster", "gres=gpu:4", "nodes=4", "ntasks-per-node=1", "time=30"}
    assert asked | {f"job-name={program}-llama-3.1-8b", "output=%x-%j.out"} <= options
    words, environment, srun = ran(script, tmp_path, "torchrun")
    assert words[:5] == [
        *("--nnodes=4", "--node-rank=1", "--master-addr=node7", "--master-port=20071"),
        "--nproc-per-node=4",
    ]
    assert environment["WHO"] == "a b"
    assert (tmp_path / "modules").read_text() == "load PyTorch\n"
    assert "--cpus-per-task=288" in srun
    alone = plan(*PLAN, *model, zero, "--as", program)
    flags = re.findall(r"(?m)^  (--?[\w.-]+)", alone.partition("torchrun")[2] + alone.partition("measuring=(")[2])
    assert set(flags) - {"--node-rank", "--master-addr", "--master-port"} <= {word.split("=")[0] for word in words}


MINE = ("trainer=command", "trainer.command=[train.sh]", "trainer.flags={rank: '{rank}'}", "trainer.log.done=null")


@pytest.mark.parametrize(("start", "tasks"), [("srun", "4"), ("once", "1")])
def test_a_program_of_the_users_own_gets_the_tasks_that_it_asks_for(
    plan: Plan, tmp_path: Path, start: str, tasks: str
) -> None:
    own = MINE if start == "srun" else (*MINE[:2], *MINE[3:])
    script = plan(*PLAN, "parallel.zero_stage=3", *own, f"trainer.start={start}", "--as", "command", "--sbatch")
    assert f"#SBATCH --ntasks-per-node={tasks}\n" in script
    words, environment, srun = ran(script, tmp_path, "train.sh")
    assert environment["MASTER_ADDR"] == "node7"
    if start == "srun":
        assert words == ["--rank", "1"]
        assert (environment["RANK"], environment["LOCAL_RANK"], environment["WORLD_SIZE"]) == ("1", "1", "16")
    assert ("--ntasks=1" in srun) == (start == "once")


def test_a_job_too_short_for_the_training_is_said_and_a_container_starts_around_the_program(plan: Plan) -> None:
    container = ("slurm.container=apptainer", "slurm.container_image=/images/a.sif")
    script = plan(*PLAN, *container, "parallel.zero_stage=1", "--steps", "100000", "--as", "megatron-lm", "--sbatch")
    assert "! The job ends after slurm.time_limit_minutes = 30" in script
    assert re.search(r"(?m)^srun .*apptainer exec .*/images/a.sif bash -c ", script)


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ((*PLAN, "--sbatch"), "--as"),
        ((*PLAN, "--as", "megatron-lm", "--sbatch", "slurm.scheduler=pbs"), "slurm.scheduler"),
        (
            ("model=llama-3.1-8b", "parallel.world_size=1", "--as", "megatron-lm", "--sbatch"),
            "",
        ),
    ],
)
def test_what_no_job_can_be_made_of_is_refused(refusal: Plan, arguments: tuple[str, ...], key: str) -> None:
    said(refusal(*arguments), key)
