"""The real trainer in real job arrays on several nodes."""

from __future__ import annotations

import re
import subprocess

import pytest

from conf.types.schema import Value
from conf.types.sites import SlurmSpec
from sweeps.folder.submission import read_submission, shape_of
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, SweepRecord
from tests.conftest import RecordOf
from tests.launcher.points_alone import submit_points
from tests.slurm.conftest import WaitUntil
from train_core.trial.measurement import Outcome

CHECKSUM = re.compile(r"\b[0-9a-f]{64}\b")
pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.usefixtures("slurm_cluster")]
LAYOUTS: list[dict[str, Value]] = [
    {"parallel.world_size": 2, "parallel.pipeline_parallel_size": 2},
    {"parallel.world_size": 4, "parallel.tensor_parallel_size": 2, "parallel.pipeline_parallel_size": 2},
]


def test_layouts_on_one_and_two_nodes_are_submitted_by_shape_and_train_to_the_same_loss(
    folder: SweepFolder, record_of: RecordOf, slurm: SlurmSpec, wait_until: WaitUntil
) -> None:
    record = record_of(LAYOUTS)
    assert [str(shape_of(trial.experiment)) for trial in record.trials if trial.experiment] == ["1 x 2", "2 x 2"]

    summary = submit_points(Sweep(folder, record), slurm)

    assert [len(array.trial_ids) for array in summary.arrays] == [1, 1]
    states = wait_until(folder, record, lambda states: all(s.outcome and s.outcome.is_final for s in states), 120)
    assert [state.outcome for state in states] == [Outcome.COMPLETED] * 2, states
    measurements = [folder.trial(trial.trial_id).read_measurement() for trial in record.trials]
    losses = [measured.performance.losses for measured in measurements if measured and measured.performance]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    hosts = {measured.environment.hostname for measured in measurements if measured and measured.environment}
    assert hosts
    assert all(host.startswith("node") for host in hosts)

    again = submit_points(Sweep(folder, record), slurm)
    assert (again.num_submitted, len(again.kept), again.num_live) == (0, 2, 0)
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
