"""Jobs over two kinds of nodes: Slurm's heterogeneous jobs, each with fake GPUs of its kind."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping

import pytest

from conf.compose.tree import with_values
from conf.types.schema import Value
from conf.types.sites import SlurmSpec
from conf.types.sweep_spec import PointSet
from launcher.cancel import cancel_sweep
from results.report.sections.device_types import blocks_table
from sweeps.folder.submission import read_submission
from sweeps.points.plan import make_trials
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, SweepRecord
from tests.composed import compose_tree, load
from tests.launcher.points_alone import submit_points
from tests.slurm.conftest import WaitUntil, has_ended
from train_core.trial.measurement import Outcome

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.usefixtures("slurm_cluster")]
OVERRIDES = ("sweep=smoke", "training.num_steps=3", "cluster.devices_per_node=2", "cluster.num_nodes=2")
PIPELINE: dict[str, object] = {"model.num_layers": 4, "parallel.world_size": 2, "parallel.pipeline_parallel_size": 2}


def mixed_record(points: list[dict[str, Value]], plan: Mapping[str, object], per_kind: int) -> SweepRecord:
    """Points whose first stages are on nodes with an h100 and whose last are on nodes with an a100."""
    tree, settings = compose_tree(OVERRIDES), load(OVERRIDES)
    own = tree["cluster"]
    blocks = [{"cluster": own | {"name": name}, "num_devices": per_kind} for name in ("h100-nodes", "local")]
    values: dict[str, Value] = {**plan, "mixed": blocks}  # type: ignore[dict-item]
    trials = make_trials(with_values(tree, values), PointSet(axes={}, points=tuple(points), baseline=points[0]), {})
    assert settings.sweep is not None
    return SweepRecord(
        name="test",
        mode="cluster",
        spec=settings.sweep,
        tracking=settings.tracking,
        git_sha="test",
        created=time.time(),
        plan=(),
        trials=tuple(trial.model_copy(update={"selected": True}) for trial in trials),
    )


@pytest.fixture(scope="module")
def slurm_of_kinds() -> SlurmSpec:
    """The first component asks for an h100, all else for an a100; the nodes that have it are of that kind."""
    component = "{constraint: h100, extra_sbatch: {gres: 'gpu:h100:1'}}"
    overrides = ["slurm.constraint=a100", "+slurm.extra_sbatch.gres=gpu:a100:1"]
    return load([*overrides, "slurm.time_limit_minutes=5", f"+slurm.components.h100-nodes={component}"]).slurm


def make_job(ends: bool) -> Callable[[str], None]:
    """A job without a trainer, in which rank 2, the first of the second component, is killed, or nothing ends."""

    def job(folder: str) -> None:
        import os
        import signal
        import time

        if ends and os.environ["SLURM_PROCID"] == "2":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(100)

    return job


def test_uneven_stages_train_on_two_kinds_of_nodes(
    folder: SweepFolder, slurm_of_kinds: SlurmSpec, wait_until: WaitUntil
) -> None:
    plan = PIPELINE | {"parallel.layers_per_stage": [3, 1]}
    record = mixed_record([{"training.seed": 1}], plan, per_kind=1)
    sweep = Sweep(folder, record)
    summary = submit_points(sweep, slurm_of_kinds)
    assert [str(array.shape) for array in summary.arrays] == ["1 x 1 + 1 x 1"]

    (state,) = wait_until(folder, record, lambda states: has_ended(states[0]), 120)
    assert state.outcome is Outcome.COMPLETED, state
    assert state.performance is not None
    assert [(block.cluster, block.layers_per_stage) for block in state.performance.blocks] == [
        ("h100-nodes", (3,)),
        ("local", (1,)),
    ]
    assert state.measurement is not None
    assert state.measurement.environment is not None
    assert state.measurement.environment.hostname in ("node3", "node4")  # rank 0 holds the first stage

    table = blocks_table(sweep.read())
    assert table is not None
    assert [cell.text for row in table.rows for cell in row if cell.text in ("h100-nodes", "local")][-2:] == [
        "h100-nodes",
        "local",
    ]
    _output_is_where_the_submission_says(folder, record)


def _output_is_where_the_submission_says(folder: SweepFolder, record: SweepRecord) -> None:
    submission = read_submission(folder.trial(record.trials[0].trial_id))
    assert submission is not None
    assert submission.output_of(0).exists()
    assert submission.error_of(1).exists()
    script = folder.submitit / f"{submission.job_id}_submission.sh"
    assert "#SBATCH hetjob" in script.read_text()


def test_a_rank_of_a_later_component_that_is_killed_is_named_and_the_job_is_cancelled_as_one(
    folder: SweepFolder, slurm_of_kinds: SlurmSpec, wait_until: WaitUntil
) -> None:
    sizes = {"parallel.world_size": 4, "parallel.pipeline_parallel_size": 4, "model.num_layers": 4}
    record = mixed_record([{"training.seed": 1}], sizes, per_kind=2)
    submit_points(Sweep(folder, record), slurm_of_kinds, job=make_job(ends=True))
    (killed,) = wait_until(folder, record, lambda states: has_ended(states[0]))
    assert (killed.outcome, killed.failing_rank, killed.cause) == (Outcome.FAILED, 2, "rank 2 was killed by signal 9")

    submit_points(Sweep(folder, record), slurm_of_kinds, job=make_job(ends=False), retry_failed=True)
    (running,) = wait_until(folder, record, lambda states: bool(states[0].job and states[0].job.name == "RUNNING"))
    assert running.submission is not None
    assert cancel_sweep(Sweep(folder, record)) == 1
    (cancelled,) = wait_until(folder, record, lambda states: has_ended(states[0]))
    assert cancelled.outcome is Outcome.CANCELLED
    queue = ["squeue", "--noheader", f"--jobs={running.submission.job_id}"]
    assert not subprocess.run(queue, capture_output=True, text=True, check=True).stdout
