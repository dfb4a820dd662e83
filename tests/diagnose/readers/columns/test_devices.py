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


def test_the_gpus_of_a_configuration_are_all_and_those_of_a_launchers_flag_a_nodes(write: Write) -> None:
    run = the_run(write("mine.json", '{"num_gpus": 16, "seq_len": 2048, "n_layers": 24}'))
    assert cells(run, "num_gpus", "gpus_per_node") == {"num_gpus": "16"}
    run = the_run(write("run.sh", "deepspeed --num_gpus 8 train.py --zero-stage 1\n"))
    assert cells(run, "num_gpus", "gpus_per_node") == {"num_gpus": "8", "gpus_per_node": "8"}


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


SMI = """| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:19:00.0 Off |                    0 |
| N/A   34C    P0            412W /  500W |   61234MiB /  81559MiB |    100%      Default |
|   1  NVIDIA H100 80GB HBM3          On  |   00000000:3B:00.0 Off |                    0 |
| N/A   34C    P0            415W /  500W |   61234MiB /  81559MiB |    100%      Default |
"""


def test_the_device_and_its_limit_of_power_are_those_of_nvidia_smi(write: Write) -> None:
    run = the_run(
        write("train.log", SMI + " iteration       10/     100 | elapsed time per iteration (ms): 5580.9 |\n")
    )
    wanted = {"gpu": "H100-80GB-SXM", "power_limit_watts": "500"}
    assert cells(run, *wanted) == wanted
    queried = the_run(
        write("q.log", "    Product Name  : NVIDIA A100-SXM4-80GB\n    Current Power Limit   : 300.00 W\n")
    )
    assert queried.row()["power_limit_watts"] == "300"


def test_what_one_machine_says_of_its_devices_is_not_the_count_of_all(write: Write) -> None:
    run = the_run(write("issue.md", "- GPU type: NVIDIA A800-SXM4-80GB\n- GPU number: 8\n"))
    assert cells(run, "gpu", "gpus_per_node") == {"gpu": "A800-80GB-SXM", "gpus_per_node": "8"}
    assert "num_gpus" not in run.columns


QUERY = "index, name, power.draw [W], power.limit [W], memory.total [MiB]\n" + "".join(
    f"{place}, NVIDIA A100-SXM4-80GB, 301.21 W, 400.00 W, 81920 MiB\n" for place in range(4)
)
TOPOLOGY = "\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\n" + "".join(
    f"GPU{place}\t{{0}}\t{{0}}\t X \t{{0}}\tPXB\t0-23\t0\t\tN/A\n" for place in range(4)
)
LISTED = "".join(f"GPU {place}: NVIDIA A100-PCIE-40GB (UUID: GPU-1{place})\n" for place in range(4))


@pytest.mark.parametrize(
    ("name", "text", "per_node", "gpu", "watts"),
    [
        ("smi.txt", SMI, "2", "H100-80GB-SXM", "500"),
        ("smi.csv", QUERY, "4", "A100-80GB-SXM", "400"),
        ("topo.txt", TOPOLOGY.format("NV12"), "4", None, None),
        ("list.txt", LISTED, "4", "NVIDIA A100-PCIE-40GB", None),
    ],
)
def test_the_devices_that_nvidia_smi_lists_are_those_of_a_node(
    write: Write, name: str, text: str, per_node: str, gpu: str | None, watts: str | None
) -> None:
    row = the_run(write(name, text)).row()
    assert (row["gpus_per_node"], row.get("gpu"), row.get("power_limit_watts")) == (per_node, gpu, watts)
    assert "num_gpus" not in row


def test_devices_without_nvlink_are_marked(write: Write) -> None:
    assert "no_nvlink" not in the_run(write("nv.txt", TOPOLOGY.format("NV12"))).marks
    assert len(the_run(write("pcie.txt", TOPOLOGY.format("PIX"))).marks["no_nvlink"]) == 3


def test_kubernetes_commands_are_read(write: Write) -> None:
    text = "spec:\n  replicas: 4\n  containers:\n    - command: [torchrun]\n      args:\n"
    flags = ("--nnodes=4", "--nproc_per_node=8", "pretrain_gpt.py", "--num-layers=32", "--tensor-model-parallel-size=2")
    run = the_run(write("job.yaml", text + "".join(f"        - {flag}\n" for flag in flags)))
    assert cells(run, "num_gpus", "layers", "tp") == {"num_gpus": "32", "layers": "32", "tp": "2"}


@pytest.mark.parametrize(
    ("name", "stage"), [("fsdp.yaml", "FULL_SHARD"), ("ds_zero3.yaml", "3"), ("multi.yaml", "DDP")]
)
def test_an_accelerate_file_that_is_not_there_tells_by_its_name(write: Write, name: str, stage: str) -> None:
    flags = "--num_processes 8 train.py --per_device_train_batch_size 2 --bf16 True"
    run = the_run(write("run.sh", f"accelerate launch --config_file {name} {flags}\n"))
    assert (run.row()["zero_stage"], name in run.columns["zero_stage"].note) == (stage, True)


@pytest.mark.parametrize(
    ("printed", "gpu"),
    [
        ("Tesla V100-SXM2-32GB", "V100-32GB"),
        ("NVIDIA A100-SXM-64GB", "A100-64GB-SXM"),
        ("NVIDIA GH200 480GB", "GH200-96GB"),
        ("AMD Instinct MI250X", "MI250X GCD"),
        ("NVIDIA H100 PCIe", "NVIDIA H100 PCIe"),
        ("NVIDIA H100 NVL", "NVIDIA H100 NVL"),
        ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090"),
        ("NVIDIA RTX 6000 Ada Generation", "NVIDIA RTX 6000 Ada Generation"),
        ("NVIDIA L4", "NVIDIA L4"),
    ],
)
def test_a_device_is_that_of_a_cluster_or_said_as_its_driver_calls_it(write: Write, printed: str, gpu: str) -> None:
    assert the_run(write("list.txt", f"GPU 0: {printed} (UUID: GPU-1)\n")).row()["gpu"] == gpu


SKY = """resources:
  accelerators: H100:8
num_nodes: 2
run: |
  MASTER=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
  torchrun --nnodes=$SKYPILOT_NUM_NODES --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE run_clm.py \\
    --block_size 4096 --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --bf16 True
"""


def test_the_command_and_the_devices_of_a_file_of_skypilot_are_read(write: Write) -> None:
    run = the_run(write("sky.yaml", SKY))
    wanted = {"gpu": "H100-80GB-SXM", "gpus_per_node": "8", "num_gpus": "16", "seq": "4096", "global_batch": "128"}
    assert cells(run, *wanted) == wanted
    at = run.columns["seq"].at
    assert at is not None
    assert at.line == 7
