"""What a job asks Slurm for where another program is the trainer."""

from __future__ import annotations

import pytest

from launcher.slurm.workplace import device_hours
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import RecordOf
from tests.launcher.conftest import SlurmOf
from tests.launcher.slurm.requested import requested

GPU = ["cluster=frontier", "cluster.num_nodes=4", "precision=bf16", "batch.global_batch_size=16"]
PROGRAM = ["trainer=command", "trainer.command=[train.py]"]
FOLDER = SweepFolder("/shared/runs/175b-site")


@pytest.mark.parametrize(
    ("start", "tasks", "cores", "binds"), [("torchrun", 1, 56, False), ("once", 1, 56, False), ("srun", 8, 7, True)]
)
def test_a_program_that_starts_its_ranks_itself_gets_one_task_with_all_of_the_nodes_devices(
    start: str, tasks: int, cores: int, binds: bool, record_of: RecordOf, slurm_of: SlurmOf
) -> None:
    slurm = slurm_of("slurm=frontier", "slurm.account=ABC123", "slurm.max_array_size=100")
    record = record_of([{"parallel.world_size": 16}], *GPU, *PROGRAM, f"trainer.start={start}")
    (request,) = requested(Sweep(FOLDER, record), slurm)
    lines = request.sbatch.splitlines()
    assert {"#SBATCH --nodes=2", f"#SBATCH --ntasks-per-node={tasks}", "#SBATCH --gpus-per-node=8"} <= set(lines)
    assert f"#SBATCH --cpus-per-task={cores}" in lines
    (srun,) = (line for line in lines if line.startswith("srun "))
    assert f"--cpus-per-task={cores}" in srun
    assert ("--gpus-per-task=1" in srun) is binds  # else the task would see one of the node's GPUs alone
    (trial,) = record.trials
    assert trial.experiment is not None
    assert request.device_hours == device_hours(trial.experiment, slurm) == 16 * 0.5
