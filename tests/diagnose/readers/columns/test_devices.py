"""How many devices a run has, by launchers, schedulers and variables."""

from __future__ import annotations

import pytest

from tests.diagnose.made_up import Write
from tests.diagnose.readers.columns.test_megatron import cells, the_run

SBATCH = "#!/bin/bash\n#SBATCH -N 4\n#SBATCH --ntasks-per-node={tasks}\n#SBATCH --gres=gpu:h100:8\n"
HOST = 'HEAD=$(srun --nodes=1 --ntasks=1 -w "$n" hostname -i)\n'
LAUNCHES = {
    "srun starts torchrun": SBATCH.format(tasks=1)
    + HOST
    + "srun torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 --rdzv_endpoint $HEAD:29500 train.py",
    "a task of torchrun on each node": "#SBATCH --ntasks=4\n#SBATCH --nodes=4\n#SBATCH --gpus-per-task=8\n"
    "srun torchrun --nnodes 4 --nproc_per_node 8 train.py",
    "srun starts each rank": SBATCH.format(tasks=8) + "srun python train.py",
    "a task for each device": "#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\nsrun -N 4 -n 32 python train.py",
    "gpu as the count": SBATCH.format(tasks=1) + "srun torchrun --nnodes=$SLURM_NNODES --nproc_per_node=gpu train.py",
    "hosts counted": SBATCH.format(tasks=1)
    + "N=$(scontrol show hostnames $SLURM_JOB_NODELIST | wc -l)\ntorchrun --nnodes $N --nproc_per_node 8 train.py",
    "accelerate": "accelerate launch --num_machines 4 --num_processes 32 train.py",
    "deepspeed": "deepspeed --num_nodes 4 --num_gpus 8 --hostfile hosts train.py",
    "sums": "NODES=4; PER=8\naccelerate launch --num_machines $NODES --num_processes $((NODES * PER)) train.py",
    "a front end": "FORCE_TORCHRUN=1 NNODES=4 NPROC_PER_NODE=8 llamafactory-cli train sft.yaml",
    "mpirun": "mpirun -np 32 --map-by ppr:8:node -N 8 python train.py",
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_four_nodes_of_eight_are_counted(write: Write, name: str) -> None:
    run = the_run(write("run.sh", LAUNCHES[name]))
    assert cells(run, "num_gpus", "gpus_per_node") == {"num_gpus": "32", "gpus_per_node": "8"}


def test_visible_devices_count_where_nothing_else_does(write: Write) -> None:
    run = the_run(write("run.sh", "CUDA_VISIBLE_DEVICES=1,2,3 llamafactory-cli train sft.yaml"))
    assert run.row()["num_gpus"] == "3"
    run = the_run(write("two.sh", "CUDA_VISIBLE_DEVICES=1,2,3 torchrun --nproc_per_node 2 train.py"))
    assert run.row()["num_gpus"] == "2"


def test_short_flags_are_of_the_launcher_alone(write: Write) -> None:
    run = the_run(write("run.sh", "srun -N 2 --gpus-per-node=8 python train.py -n 3"))
    assert cells(run, "num_gpus") == {"num_gpus": "16"}
    assert run.settings["n"].value == "3"


def test_nodes_that_the_script_does_not_set_are_not_guessed(write: Write) -> None:
    run = the_run(write("run.sh", "torchrun --nnodes $NNODES --nproc_per_node 8 train.py"))
    assert "num_gpus" not in run.columns
