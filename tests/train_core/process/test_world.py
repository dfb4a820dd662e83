"""Seats from torchrun and srun, and the arithmetic of the mesh."""

from __future__ import annotations

import os
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conf.errors import UsageError
from costs.axes import Layout
from tests.messages import refused
from tests.train_core.conftest import Worlds
from train_core.parallel.groups import build_mesh
from train_core.process.gpu_settings import ALLOCATOR, HIGH_PRIORITY
from train_core.process.machine import first_host, slurm_port
from train_core.process.world import Seat, World, choose_device, seat_from_launcher

SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "4242",
    "SLURM_JOB_NODELIST": "no-such-host-[07-08]",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7",
}


@pytest.mark.parametrize(
    ("node_list", "host"),
    [
        ("node1", "node1"),
        ("gpu[007-009,12],login1", "gpu007"),
        ("frontier[00012,00014-00020]", "frontier00012"),
        ("a1,b[1-2]", "a1"),
        ("rack[1-2]-ib", "rack1-ib"),
    ],
)
def test_the_first_host_of_a_node_list(node_list: str, host: str) -> None:
    assert first_host(node_list) == host


def test_srun_gives_a_seat_and_an_unknown_name_falls_back_to_the_launch_address() -> None:
    seat = seat_from_launcher(SRUN)
    assert seat is not None
    assert (seat.rank, seat.size, seat.local_rank) == (5, 8, 1)
    assert seat.rendezvous == f"tcp://10.0.0.7:{slurm_port(4242, 0)}"


def test_ranks_of_a_heterogeneous_job_meet_on_the_first_node_of_its_first_component() -> None:
    step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "127.0.0.[1,3-4]", "SLURM_STEP_NUM_TASKS": "4"}
    groups = {"SLURM_JOB_NODELIST_HET_GROUP_0": "127.0.0.[3-4]", "SLURM_JOB_ID_HET_GROUP_0": "40"}
    own = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "41"}
    seat = seat_from_launcher(step | groups | own)
    assert seat == Seat(3, 4, 1, f"tcp://127.0.0.3:{slurm_port(40, 0)}", may_be_bound=True)


def test_torchrun_goes_before_the_slurm_job_it_runs_in() -> None:
    torchrun = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
    seat = seat_from_launcher(SRUN | torchrun)
    assert seat is not None
    assert (seat.rank, seat.size, seat.local_rank, seat.rendezvous) == (2, 4, 0, "tcp://n1:29500")
    assert not seat.may_be_bound


def test_a_batch_script_without_srun_is_alone() -> None:
    assert seat_from_launcher({"SLURM_JOB_ID": "1"}) is None
    assert seat_from_launcher({}) is None


@given(st.integers(1, 10**8), st.integers(0, 10**5))
def test_ports_stay_below_the_ephemeral_range(job_id: int, task_id: int) -> None:
    assert 15000 <= slurm_port(job_id, task_id) < 30000


def test_neighbouring_jobs_get_other_ports() -> None:
    assert len({slurm_port(job, task) for job in range(100, 120) for task in range(5)}) == 100


def test_on_a_cpu_a_rank_computes_with_one_thread() -> None:
    torch.set_num_threads(2)
    assert choose_device("cpu", 3).type == "cpu"
    assert torch.get_num_threads() == 1


@pytest.fixture
def visible(monkeypatch: pytest.MonkeyPatch) -> Any:
    """visible(2) has this process see two GPUs; the result lists those that were made current."""

    def arrange(count: int) -> list[torch.device]:
        chosen: list[torch.device] = []
        gpus = SimpleNamespace(device_count=lambda: count, set_device=chosen.append)
        monkeypatch.setattr(torch, "cuda", gpus)
        for name in (HIGH_PRIORITY, *ALLOCATOR):  # which is set, and is to be as it was after the test
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)
        return chosen

    return arrange


def test_each_rank_takes_the_gpu_of_its_number(visible: Any) -> None:
    chosen = visible(4)
    assert choose_device("gpu", 3) == torch.device("cuda", 3)
    assert choose_device("gpu", 3, may_be_bound=True) == torch.device("cuda", 3)
    assert chosen == [torch.device("cuda", 3)] * 2


def test_the_allocator_has_its_settings_when_the_driver_is_first_asked_for_a_device(
    visible: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    visible(1)
    seen: list[str | None] = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: seen.append(os.environ.get("PYTORCH_CUDA_ALLOC_CONF")))
    choose_device("gpu", 0)
    assert seen == ["expandable_segments:True"]


def test_two_ranks_do_not_share_the_only_gpu_unless_srun_may_have_given_each_its_own(visible: Any) -> None:
    visible(1)
    assert choose_device("gpu", 0) == torch.device("cuda", 0)
    with refused(UsageError):
        choose_device("gpu", 1)
    srun = seat_from_launcher(SRUN)
    assert srun is not None
    assert choose_device("gpu", srun.local_rank, may_be_bound=srun.may_be_bound) == torch.device("cuda", 0)


@pytest.mark.parametrize("may_be_bound", [True, False])
def test_a_rank_that_sees_no_gpu_is_refused(may_be_bound: bool, visible: Any) -> None:
    visible(0)
    with refused(UsageError):
        choose_device("gpu", 0, may_be_bound=may_be_bound)


sizes = st.integers(1, 5)


@given(sizes, sizes, sizes)
def test_ranks_and_coordinates_are_one_to_one(tensor: int, pipeline: int, data: int) -> None:
    layout = Layout({"tensor": tensor, "pipeline": pipeline, "data": data})
    seen = {layout.rank(*layout.coordinates(rank)) for rank in range(layout.world_size)}
    assert seen == set(range(tensor * pipeline * data))


def test_tensor_groups_are_neighbours_and_a_stage_is_consecutive() -> None:
    layout = Layout({"tensor": 2, "pipeline": 2, "data": 2})
    assert [layout.ranks(5, axis) for axis in ("tensor", "data", "pipeline")] == [[4, 5], [5, 7], [1, 5]]
    assert layout.ranks(5, "data", "tensor") == [4, 5, 6, 7]
    assert layout.ends(5) == [1, 5]
    assert Layout({"pipeline": 3}).ends(1) == [1]


def data_timeout(world: World) -> timedelta:
    """Of the group on the data axis."""
    group = build_mesh(Layout({"data": world.size}), world.rank, world.clock, world.timeout).replicas.group
    assert group is not None
    return group._get_backend(world.device).options._timeout


def test_groups_wait_as_long_as_their_world(worlds: Worlds) -> None:
    """Else torch ends a job before the watchdog, which knows more, has spoken."""
    assert worlds(2).run(data_timeout) == [timedelta(seconds=600)] * 2
