"""Trials through qsub, qstat and qdel, as Slurm's wrappers of these names understand them (`slurm-wlm-torque`)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from conf.types.schema import Value
from conf.types.sites import SlurmSpec
from launcher import state
from launcher.cancel import cancel_sweep, cancel_trials
from launcher.sweep import submit
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import RecordOf
from tests.slurm.conftest import WaitUntil, has_ended, make_job
from train_core.measurement import Outcome

ON_TWO_NODES: dict[str, Value] = {"parallel.world_size": 4, "parallel.tensor_parallel_size": 2}
TWO_RANKS: dict[str, Value] = {"parallel.world_size": 2, "parallel.tensor_parallel_size": 2}
pytestmark = [pytest.mark.slurm]


@pytest.fixture
def pbs(slurm: SlurmSpec, slurm_cluster: Path) -> SlurmSpec:
    if not shutil.which("qsub"):
        pytest.skip("there is no qsub: Debian has it in slurm-wlm-torque")
    changes = {
        "scheduler": "pbs",
        "pbs_mpiexec": "mpiexec.slurm -n {ranks}",
        # The wrapper's mpiexec is srun, which else lets the other ranks wait for one that has failed.
        "environment": {"SLURM_KILL_BAD_EXIT": "1"},
    }
    return slurm.model_copy(update=changes)


def test_a_trial_trains_on_two_nodes(
    folder: SweepFolder, record_of: RecordOf, pbs: SlurmSpec, wait_until: WaitUntil
) -> None:
    sweep = Sweep(folder, record_of([ON_TWO_NODES, TWO_RANKS]))
    summary = submit(sweep, pbs)
    assert [len(array.trial_ids) for array in summary.arrays] == [1, 1]
    done = wait_until(folder, sweep.record, lambda states: all(map(has_ended, states)), 180)
    assert [each.outcome for each in done] == [Outcome.COMPLETED] * 2, [each.cause for each in done]
    again = submit(sweep, pbs)
    assert (again.num_submitted, again.num_kept) == (0, 2)


def test_each_end_has_its_cause(
    folder: SweepFolder,
    record_of: RecordOf,
    pbs: SlurmSpec,
    wait_until: WaitUntil,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state, "FORGOTTEN_SECONDS", 5.0)
    ends = ["raises", "is killed", "is cancelled", "runs too long"]
    sweep = Sweep(folder, record_of([TWO_RANKS | {"training.seed": seed} for seed in range(len(ends))]))
    submit(sweep, pbs.model_copy(update={"time_limit_minutes": 1}), job=make_job(ends))
    wait_until(folder, sweep.record, lambda states: has_ended(states[0]) and states[2].scheduler_state == "RUNNING")
    cancel_trials(sweep, [sweep.record.trials[2]])
    raised, killed, cancelled, late = wait_until(folder, sweep.record, lambda states: all(map(has_ended, states)), 180)
    assert (raised.outcome, raised.failing_rank, raised.cause) == (
        Outcome.FAILED,
        1,
        "ValueError: the data of rank 1 is bad",
    )
    assert (killed.outcome, killed.failing_rank) == (Outcome.FAILED, 1), killed.cause
    assert cancelled.outcome is Outcome.CANCELLED, cancelled.cause
    assert late.outcome is Outcome.TIMED_OUT, late.cause


def test_a_job_that_waits_is_cancelled_with_its_sweep(
    folder: SweepFolder, record_of: RecordOf, pbs: SlurmSpec, wait_until: WaitUntil
) -> None:
    sweep = Sweep(folder, record_of([TWO_RANKS]))
    submit(sweep, pbs.model_copy(update={"extra_sbatch": {"h": True}}))
    (waiting,) = wait_until(folder, sweep.record, lambda states: states[0].scheduler_state == "PENDING")
    assert waiting.outcome is Outcome.PENDING
    assert cancel_sweep(sweep) == 1
    (ended,) = wait_until(folder, sweep.record, lambda states: has_ended(states[0]))
    assert ended.outcome is Outcome.CANCELLED, ended.cause
