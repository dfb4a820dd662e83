"""The real trainer in real job arrays on several nodes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import pytest

from conf.types.schema import Value
from conf.types.sites import SlurmSpec
from launcher.sweep import submit
from sweeps.folder.submission import read_submission, shape_of
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, SweepRecord
from tests.conftest import RecordOf
from tests.slurm.conftest import WaitUntil
from train_core.measurement import Outcome

CHECKSUM = re.compile(r"\b[0-9a-f]{64}\b")
pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.usefixtures("slurm_cluster")]
LAYOUTS: list[dict[str, Value]] = [
    {"parallel.world_size": 2, "parallel.tensor_parallel_size": 2},
    {"parallel.world_size": 2, "parallel.pipeline_parallel_size": 2},
    {"parallel.world_size": 4, "parallel.tensor_parallel_size": 2, "parallel.pipeline_parallel_size": 2},
]


def make_failing_job() -> Callable[[str], None]:
    """The real trainer, in which rank 1 fails in the middle of training: it raises (seed 0) or is killed (seed 1)."""

    def job(folder: str) -> None:
        import json
        import os
        import signal
        import threading
        import time
        from pathlib import Path

        from launcher.job import run_in_slurm

        seed = json.loads(Path(folder, "trial.json").read_text())["experiment"]["training"]["seed"]

        def fail(number: int, frame: object) -> None:
            raise ValueError("a bad value in rank 1")

        def wait_for_training() -> None:
            while not Path(folder, "metrics.jsonl").exists():
                time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL if seed else signal.SIGALRM)

        if os.environ["SLURM_PROCID"] == "1":
            signal.signal(signal.SIGALRM, fail)
            threading.Thread(target=wait_for_training, daemon=True).start()
        run_in_slurm(folder)

    return job


@pytest.mark.thorough  # than test_ends, where a rank raises
def test_the_rank_that_failed_is_the_cause_and_not_the_peers_that_lost_it(
    folder: SweepFolder, record_of: RecordOf, slurm: SlurmSpec, wait_until: WaitUntil
) -> None:
    endless = LAYOUTS[1] | {"training.num_steps": 1_000_000}
    points = [endless | {"training.seed": seed} for seed in range(2)]
    record = record_of(points, "cluster.devices_per_node=1")
    submit(Sweep(folder, record), slurm, job=make_failing_job())
    raised, killed = wait_until(
        folder, record, lambda states: all(s.outcome and s.outcome.is_final for s in states), 120
    )
    assert (raised.outcome, raised.failing_rank, raised.cause) == (
        Outcome.FAILED,
        1,
        "ValueError: a bad value in rank 1",
    )
    assert "in fail" in (raised.traceback or "")
    assert (killed.outcome, killed.failing_rank, killed.cause) == (Outcome.FAILED, 1, "rank 1 was killed by signal 9")
    assert killed.num_steps_done > 0


def test_layouts_on_one_and_two_nodes_are_submitted_by_shape_and_train_to_the_same_loss(
    folder: SweepFolder, record_of: RecordOf, slurm: SlurmSpec, wait_until: WaitUntil
) -> None:
    record = record_of(LAYOUTS)
    assert [str(shape_of(trial.experiment)) for trial in record.trials if trial.experiment] == [
        "1 x 2",
        "1 x 2",
        "2 x 2",
    ]

    summary = submit(Sweep(folder, record), slurm)

    assert [len(array.trial_ids) for array in summary.arrays] == [2, 1]
    states = wait_until(folder, record, lambda states: all(s.outcome and s.outcome.is_final for s in states), 120)
    assert [state.outcome for state in states] == [Outcome.COMPLETED] * 3, states
    measurements = [folder.trial(trial.trial_id).read_measurement() for trial in record.trials]
    losses = [measured.performance.losses for measured in measurements if measured and measured.performance]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert losses[2] == pytest.approx(losses[0], rel=1e-5)
    hosts = {measured.environment.hostname for measured in measurements if measured and measured.environment}
    assert hosts
    assert all(host.startswith("node") for host in hosts)

    again = submit(Sweep(folder, record), slurm)
    assert (again.num_submitted, len(again.kept), again.num_live) == (0, 3, 0)
    _text_equals_what_was_submitted(folder, record, slurm)


def _text_equals_what_was_submitted(folder: SweepFolder, record: SweepRecord, slurm: SlurmSpec) -> None:
    from tests.launcher.slurm.requested import requested

    snapshot = next(path.name for path in folder.code.iterdir())
    for request in requested(Sweep(folder, record), slurm):
        submission = read_submission(folder.trial(request.trials[0].trial_id))
        assert submission is not None
        assert submission.job_id is not None
        assert submission.job_name is not None
        job_id, name = submission.job_id.split("_")[0], submission.job_name
        submitted = CHECKSUM.sub("SHA256", (folder.submitit / f"{job_id}_submission.sh").read_text())
        shown = request.sbatch.replace("SNAPSHOT", snapshot).replace("TOKEN", name.rsplit("-")[-1])
        assert shown == submitted
        held = subprocess.run(
            ["scontrol", "write", "batch_script", job_id, "-"], capture_output=True, text=True, check=True
        )
        assert shown.strip() == CHECKSUM.sub("SHA256", held.stdout).strip()
