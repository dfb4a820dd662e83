"""A calibration as a real job on two nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrate.calibration import draft_of_rates
from calibrate.rates_job import InSlurm
from conf.compose.load import load, load_cluster
from conf.errors import UsageError
from conf.types.sites import SlurmSpec
from launcher.slurm.query import query_jobs
from rates.record import RatesFolder
from sweeps.folder.submission import JobShape, read_submission
from tests.conftest import TinyRatesPlan

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.usefixtures("slurm_cluster")]
TWO_NODES = JobShape(num_nodes=2, tasks_per_node=1, uses_gpus=False)


@pytest.fixture
def folder(tmp_path: Path) -> RatesFolder:
    return RatesFolder(tmp_path / "calibrate-test")


def silent(line: str) -> None:
    return None


def test_two_ranks_on_two_nodes_measure_what_the_plan_says(
    folder: RatesFolder, slurm: SlurmSpec, tiny_rates_plan: TinyRatesPlan
) -> None:
    told: list[str] = []
    rates = InSlurm(slurm, TWO_NODES).measure(folder, tiny_rates_plan(2), told.append)
    assert len(rates.hostnames) == 2
    assert {one.pattern for one in rates.link_times} == {"all_reduce", "all_gather", "reduce_scatter", "transfer"}
    local = load_cluster("local")
    assert "on 2 hosts" not in " ".join(draft_of_rates(local, "local", rates).notes)
    assert any(line.startswith("job ") for line in told)


def test_a_failing_rank_a_refusal_and_an_interrupt_are_messages_and_leave_no_job(
    folder: RatesFolder, slurm: SlurmSpec, tiny_rates_plan: TinyRatesPlan
) -> None:
    greedy = tiny_rates_plan(2).model_copy(update={"memory_bytes": 2**60})
    with pytest.raises(UsageError, match=r"The measurement failed \(rank [01]: .*memory"):
        InSlurm(slurm, TWO_NODES).measure(folder, greedy, silent)

    nowhere = load(["slurm.partition=nowhere"]).slurm
    with pytest.raises(UsageError, match=r"Slurm refused the job: .*partition"):
        InSlurm(nowhere, TWO_NODES).measure(folder, tiny_rates_plan(2), silent)

    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    held = slurm.model_copy(update={"extra_sbatch": {"hold": True}})
    with pytest.raises(KeyboardInterrupt):
        InSlurm(held, TWO_NODES).measure(folder, tiny_rates_plan(2), interrupt)
    submission = read_submission(folder)
    assert submission is not None
    assert submission.job_id is not None
    assert query_jobs([submission.job_id])[submission.job_id].name == "CANCELLED"
