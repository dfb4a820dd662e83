"""The place of this process among those of its job, and the address where they meet. No torch."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from conf.plan.experiment import Experiment
from launcher.executor import PBS_JOB
from train_core.process.meeting import port_of_step, reachable_host

THIS_MACHINE = "127.0.0.1"
OF_A_SEAT = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_JOB_NAME", "SLURM_JOB_ID", PBS_JOB)
"""The variables that tell a rank of a PBS job its seat, and are wrong for other processes that it starts."""


@dataclass(frozen=True, slots=True)
class ProgramSeat:
    """The place of one started process: of one device with `start: srun`, else of all devices of a node.

    Attributes:
        first_rank: the rank of its device, or of the first of its devices.
        size: ranks of the whole job.
        local_rank: that of its device among those of the node; 0 for a whole node.
    """

    node_rank: int
    num_nodes: int
    first_rank: int
    size: int
    local_rank: int
    ranks_per_node: int
    master_addr: str
    master_port: int

    @property
    def is_first(self) -> bool:
        return self.first_rank == 0


def seats_here(experiment: Experiment) -> list[ProgramSeat]:
    """The seats on this one machine, which holds the whole job, whatever nodes the plan is for."""
    size, port = experiment.parallel.world_size, free_port()
    ranks = range(size) if experiment.trainer.start == "srun" else range(1)
    return [ProgramSeat(0, 1, rank, size, rank, size, THIS_MACHINE, port) for rank in ranks]


def seat_in_slurm(experiment: Experiment, environment: Mapping[str, str] = os.environ) -> ProgramSeat:
    """The seat that srun, or the mpiexec of a PBS job, gave this task."""
    of_a_rank, task = experiment.trainer.start == "srun", int(environment["SLURM_PROCID"])
    if PBS_JOB in environment:
        # With -ppn mpiexec fills one node after the other. It says nothing of nodes, and the script where to meet.
        node = task // experiment.tasks_per_node if of_a_rank else task
        local_rank, address = environment["LOCAL_RANK"], environment["MASTER_ADDR"]
        port = int(environment["MASTER_PORT"])
    else:
        nodes = environment.get("SLURM_STEP_NODELIST") or environment["SLURM_JOB_NODELIST"]
        node, local_rank = int(environment["SLURM_NODEID"]), environment["SLURM_LOCALID"]
        address = reachable_host(nodes, environment.get("SLURM_LAUNCH_NODE_IPADDR"))
        port = port_of_step(environment)
    return ProgramSeat(
        node_rank=node,
        num_nodes=experiment.num_nodes,
        first_rank=task if of_a_rank else node * experiment.tasks_per_node,
        size=experiment.parallel.world_size,
        local_rank=int(local_rank) if of_a_rank else 0,
        ranks_per_node=experiment.tasks_per_node,
        master_addr=address,
        master_port=port,
    )


def without_seat(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process that a rank of a PBS job starts; that of any other process as it is."""
    is_rank = PBS_JOB in environment
    return {name: value for name, value in environment.items() if not (is_rank and name in OF_A_SEAT)}


def ranks_to_read(experiment: Experiment, seats: Sequence[ProgramSeat]) -> list[int]:
    """The first ranks of the processes whose logs the process of these seats reads.

    Steps are printed by the first rank, or by the last one, where the loss is.
    """
    first, of_a_rank = seats[0], experiment.trainer.start == "srun"
    if not first.is_first:
        return [first.first_rank]
    alone = experiment.trainer.start == "once" or (first.num_nodes == 1 and not of_a_rank)
    last = 0 if alone else first.size - (1 if of_a_rank else first.ranks_per_node)
    return sorted({0, last})


def free_port() -> int:
    """A port of this machine that nobody uses just now."""
    with socket.socket() as probe:
        # Port 0 has the system choose one that is free.
        probe.bind((THIS_MACHINE, 0))
        return int(probe.getsockname()[1])
