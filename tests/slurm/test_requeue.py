"""A long run on two nodes that Slurm warns: it saves, requeues itself, and goes on where it stopped.

That its losses are then those of a training left alone is held by `tests/train_core/training/test_resume`.
"""

from __future__ import annotations

import subprocess

import pytest

from conf.overrides import Overrides
from conf.types.sites import SlurmSpec
from launcher.cancel import cancel_training
from launcher.long_run import LongRun, long_run, submit_long_run, trainings_of, write_long_run
from launcher.slurm.job_status import live_job
from launcher.slurm.reconcile import reconcile
from sweeps.reading import Reading
from sweeps.trial import SweepFolder
from tests.conftest import RecordOf
from tests.waiting import wait_for
from train_core.trial.measurement import Outcome

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("slurm_cluster")]
ASKED = [
    *("training.num_steps=150", "checkpoint.every_steps=1000", "data.max_bytes=20000"),
    *("model.num_layers=2", "model.seq_length=32", "batch.global_batch_size=2"),
]


NAMES = ["cancelled", "warned"]


def state_of(run: LongRun) -> Reading:
    """As `trisweep status` finds out."""
    (reading,) = reconcile([run.read()])
    return reading


def test_a_warned_job_saves_requeues_itself_and_takes_every_step_once(
    folder: SweepFolder, record_of: RecordOf, slurm: SlurmSpec
) -> None:
    layout = {"parallel.world_size": 2, "parallel.pipeline_parallel_size": 2}
    folder.path.mkdir(parents=True)
    folder.write_record(record_of([layout], "cluster.devices_per_node=1"))
    cancelled, warned = runs = [long_run(folder, Overrides.parse(ASKED), name) for name in NAMES]
    for run in runs:
        write_long_run(run, "test", Overrides.parse(ASKED))
    assert [run.folder.path.name for run in trainings_of(folder.path.parent, "test")] == NAMES
    unhurried = slurm.model_copy(update={"time_limit_minutes": 60})  # Slurm's own warning is to come later
    submit_long_run(cancelled, unhurried.model_copy(update={"extra_sbatch": {"hold": True}}))
    assert state_of(cancelled).outcome is Outcome.PENDING
    cancel_training(cancelled)
    wait_for(lambda: state_of(cancelled).outcome is Outcome.CANCELLED, 120)

    job_id = submit_long_run(warned, unhurried)
    wait_for(lambda: (job := live_job(warned.folder)) is not None and job.state.name == "RUNNING", 120)
    assert state_of(warned).outcome is Outcome.RUNNING
    wait_for(lambda: len(warned.folder.read_metrics()) > 2, 200)
    # Nothing may come in between: on a fast machine the training ends in a second or two, and saves no more.
    subprocess.run(["scancel", "--signal=USR2", job_id], check=True)
    wait_for(lambda: (job := live_job(warned.folder)) is not None and job.state.name != "RUNNING", 120)
    saved = warned.folder.read_metrics()
    assert len(saved) < 150
    wait_for(warned.folder.read_measurement, 180)

    measurement = warned.folder.read_measurement()
    assert measurement is not None
    assert measurement.outcome is Outcome.COMPLETED
    steps = warned.folder.read_metrics()
    assert [step.step for step in steps] == list(range(1, 151))
    assert steps[: len(saved)] == saved
    live = live_job(warned.folder)
    assert live is None or live.job_id == job_id
