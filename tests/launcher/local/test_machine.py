"""What a machine can hold."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.local import machine as of_machine
from launcher.local.machine import Ledger, MachineCapacity, Share, count_devices, this_machine, why_impossible
from tests.conftest import RecordOf


@pytest.mark.parametrize(
    ("environment", "visible"),
    [
        ({}, 4),
        ({"CUDA_VISIBLE_DEVICES": "0,2"}, 2),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "0,1,-1,2"}, 2),
        ({"HIP_VISIBLE_DEVICES": "3"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, 4),
    ],
)
def test_devices_are_those_that_are_present_and_visible(
    tools: Callable[..., None], environment: dict[str, str], visible: int
) -> None:
    """The real tool needs a driver; this one answers `-L` as it does."""
    lines = "\n".join(f"GPU {n}: NVIDIA H200 (UUID: GPU-{n})" for n in range(4))
    tools(**{"nvidia-smi": f"cat <<'END'\n{lines}\nEND"})
    assert count_devices(environment) == visible


def cores(share: Share | None) -> int:
    assert share is not None
    return share.cores


def test_a_share_is_never_given_twice(record_of: RecordOf) -> None:
    small, large = record_of(
        [{"training.seed": 1}, {"parallel.world_size": 4, "parallel.tensor_parallel_size": 4}]
    ).trials
    ledger = Ledger(MachineCapacity(num_cores=2, memory_bytes=2**40, num_devices=0))
    assert cores(ledger.take(small)) == 1
    assert ledger.take(large) is None
    ledger.give_back(small.trial_id)
    assert cores(ledger.take(large)) == 2
    assert ledger.take(small) is None


def test_memory_of_trials_at_once_never_exceeds_the_machine(record_of: RecordOf) -> None:
    one, two = record_of([{"training.seed": 1}, {"training.seed": 2}]).trials
    assert one.estimate is not None
    needed = one.estimate.peak_memory_bytes
    ledger = Ledger(MachineCapacity(num_cores=8, memory_bytes=needed + 1, num_devices=0))
    share = ledger.take(one)
    assert share is not None
    assert share.memory_bytes == needed
    assert ledger.take(two) is None


def test_this_machine_has_cores_and_memory_and_holds_a_small_trial(record_of: RecordOf) -> None:
    machine = this_machine()
    assert machine.num_cores == len(os.sched_getaffinity(0))
    assert machine.memory_bytes > 2**28
    (small,) = record_of([{"training.seed": 1}]).trials
    assert small.experiment is not None
    assert why_impossible(small.experiment, small.estimate, MachineCapacity(1, 2**40, 0)) is None


@pytest.mark.parametrize(
    ("own", "limited"),
    [
        ("0::/\n", "memory.max"),
        ("0::/user.slice/user-7.slice/session-1.scope\n", "user.slice/user-7.slice/memory.max"),
        ("4:memory:/slurm/uid_7/job_1\n1:cpu:/\n", "memory/slurm/uid_7/memory.limit_in_bytes"),
        ("4:memory:/docker/abc\n", "memory/memory.limit_in_bytes"),
    ],
)
def test_memory_is_what_a_container_a_user_or_a_job_may_have(
    own: str, limited: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups, file = tmp_path / "own", tmp_path / "cgroup" / limited
    groups.write_text(own)
    file.parent.mkdir(parents=True)
    monkeypatch.setattr(of_machine, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(of_machine, "OWN_CGROUPS", groups)
    for text in ("max\n", "9223372036854771712\n"):
        file.write_text(text)
        assert this_machine().memory_bytes > 2**28
    file.write_text(f"{2**28}\n")
    assert this_machine().memory_bytes == 2**28
