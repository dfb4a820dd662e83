"""From a sweep to the training of its best plan: which plan, with what changed, and in which folder."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.commands.train import on_this_machine
from conf.errors import ConfigError, InfeasiblePlan, UsageError
from conf.overrides import Overrides
from launcher.job import goes_on
from launcher.long_run import best_of, keep_others_out, long_run, write_long_run
from launcher.slurm.sbatch import require_time_to_save
from sweeps.folder.submission import Submission, write_submission
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, SweepRecord
from tests.conftest import RecordOf
from tests.launcher.conftest import SlurmOf
from tests.messages import refused
from tests.results.conftest import performance
from train_core.checkpoints.checkpoint_folder import Facts, draft_of, publish
from train_core.job.failures import without_numbers
from train_core.process.lock import hold_lock
from train_core.process.stop import Stopped
from train_core.trial.measurement import Measurement, Outcome

POINTS = [{"batch.micro_batch_size": 1}, {"batch.micro_batch_size": 2}, {"batch.micro_batch_size": 4}]
STEPS = "training.num_steps=50"


def measured(fingerprint: str, rate: float) -> Measurement:
    ended = without_numbers(fingerprint, Outcome.COMPLETED, "", time.time())
    return ended.model_copy(update={"performance": performance(1.0, model_flops_per_second_per_device=rate)})


@pytest.fixture
def started(folder: SweepFolder, record_of: RecordOf) -> tuple[SweepFolder, SweepRecord]:
    record = record_of(POINTS)
    folder.path.mkdir(parents=True)
    folder.write_record(record)
    return folder, record


def end(folder: SweepFolder, record: SweepRecord, index: int, how: float | Outcome) -> str:
    """Leave a measurement of that rate, or of that outcome, and return the trial's id."""
    trial = record.trials[index]
    assert trial.experiment is not None
    fingerprint = trial.experiment.fingerprint
    files = folder.trial(trial.trial_id)
    files.path.mkdir(parents=True, exist_ok=True)
    ended = (
        without_numbers(fingerprint, how, "a cause", 0.0) if isinstance(how, Outcome) else measured(fingerprint, how)
    )
    files.write_measurement(ended)
    return trial.trial_id


def test_the_fastest_measured_plan_is_the_best_whatever_is_predicted_of_others(started: Any) -> None:
    folder, record = started
    end(folder, record, 0, 1e9)
    fastest = end(folder, record, 1, 2e9)
    best = best_of(Sweep(folder, record))
    assert (best.trial.trial_id, best.is_measured, best.flops_per_second_per_device) == (fastest, True, 2e9)


def test_the_best_of_a_sweep_for_the_loss_has_the_lowest_loss_and_is_never_predicted(started: Any) -> None:
    folder, record = started
    record = record.model_copy(update={"objective": ("loss",)})
    with refused(UsageError):
        best_of(Sweep(folder, record))
    ids = [end(folder, record, index, rate) for index, rate in enumerate((1e9, 2e9))]
    for trial_id, loss in zip(ids, (3.0, 4.0), strict=True):
        files = folder.trial(trial_id)
        stored = json.loads(files.measurement.read_text())
        stored["performance"] |= {"losses": [loss], "final_loss": loss}
        files.measurement.write_text(json.dumps(stored))
    assert best_of(Sweep(folder, record)).trial.trial_id == ids[0], "the slower one, whose loss is lower"


def test_the_best_is_never_of_another_model_that_an_earlier_command_measured(started: Any, record_of: RecordOf) -> None:
    folder, record = started
    (other,) = record_of([{"model.num_layers": 8}]).trials
    before = other.model_copy(update={"trial_id": "before", "role": "kept", "selected": False})
    both = record.model_copy(update={"trials": (before, *record.trials)})
    end(folder, both, 0, 9e9)
    fastest = end(folder, both, 1, 1e9)
    best = best_of(Sweep(folder, both))
    assert (best.trial.trial_id, best.is_measured) == (fastest, True)


def test_the_best_may_be_of_another_model_that_an_earlier_search_over_the_same_space_took(
    started: Any, record_of: RecordOf
) -> None:
    folder, record = started
    (other,) = record_of([{"model.num_layers": 8}]).trials
    before = other.model_copy(update={"trial_id": "before", "role": "observed", "selected": False})
    both = record.model_copy(update={"trials": (before, *record.trials)})
    end(folder, both, 0, 9e9)
    end(folder, both, 1, 1e9)
    assert best_of(Sweep(folder, both)).trial.trial_id == "before"


def test_without_a_measurement_it_is_the_best_predicted_of_those_that_did_not_fail(started: Any) -> None:
    folder, record = started
    by_rate = sorted(record.trials, key=lambda trial: -trial.estimate.model_flops_per_second_per_device)
    assert best_of(Sweep(folder, record)).trial == by_rate[0]
    end(folder, record, record.trials.index(by_rate[0]), Outcome.OUT_OF_MEMORY)
    end(folder, record, record.trials.index(by_rate[1]), Outcome.CANCELLED)
    best = best_of(Sweep(folder, record))
    assert (best.trial, best.is_measured) == (by_rate[1], False)


def test_a_sweep_in_which_nothing_can_run_says_so(started: Any) -> None:
    folder, record = started
    for index in range(3):
        end(folder, record, index, Outcome.FAILED)
    with refused(UsageError):
        best_of(Sweep(folder, record))


def test_the_run_is_the_plan_with_regular_checkpoints_and_what_was_asked_for(started: Any) -> None:
    folder, record = started
    chosen = end(folder, record, 2, 1e9)
    run = long_run(
        folder,
        Overrides.parse([STEPS, "data=synthetic", "checkpoint.keep_last=5", "slurm.qos=long", "cluster=local"]),
        None,
    )
    planned = record.trials[2].experiment
    assert run.source == chosen
    assert (run.experiment.parallel, run.experiment.batch, run.experiment.model, run.experiment.cluster) == (
        planned.parallel,
        planned.batch,
        planned.model,
        planned.cluster,
    )
    assert (run.experiment.training.num_steps, run.experiment.data.source) == (50, "synthetic")
    assert run.experiment.training.seed == planned.training.seed
    assert (run.experiment.checkpoint.every_steps, run.experiment.checkpoint.keep_last) == (100, 5)
    assert run.folder.path == folder.path.parent / "train" / folder.path.name
    assert not run.folder.path.exists()


def test_a_run_goes_on_with_its_own_plan_even_if_a_better_one_was_measured_since(started: Any) -> None:
    folder, record = started
    first = end(folder, record, 0, 1e9)
    write_long_run(long_run(folder, Overrides.parse([STEPS]), None), record.name, Overrides.parse([STEPS]))
    end(folder, record, 1, 2e9)
    again = long_run(folder, Overrides.parse([STEPS, "slurm.qos=long"]), None)
    assert (again.source, again.best) == (first, None)
    assert again.experiment.batch.micro_batch_size == 1
    assert long_run(folder, Overrides.parse([STEPS]), "another").source != first


def test_a_run_that_was_started_otherwise_is_not_gone_on_with(started: Any) -> None:
    folder, record = started
    write_long_run(long_run(folder, Overrides.parse([STEPS]), None), record.name, Overrides.parse([STEPS]))
    with refused(UsageError, "training.num_steps="):
        long_run(folder, Overrides.parse([STEPS, "training.seed=3"]), None)
    with refused(UsageError, "training.num_steps="):
        long_run(folder, Overrides.parse(["training.num_steps=40"]), None)


def test_a_run_is_extended_by_the_same_command_with_more_steps(started: Any) -> None:
    folder, record = started
    asked, more = Overrides.parse([STEPS]), Overrides.parse(["training.num_steps=60", "slurm.qos=long"])
    begun = long_run(folder, asked, None)
    write_long_run(begun, record.name, asked)
    draft = draft_of(begun.folder.checkpoints, 50)
    draft.mkdir(parents=True)
    (draft / ".metadata").touch()
    model = begun.experiment.model
    publish(draft.parent, Facts(step=50, num_updates=50, label="", model=model, loss_scale={}, training={}))
    longer = long_run(folder, more, None)
    assert longer.extends
    assert long_run(folder, asked, None).experiment == begun.experiment  # nothing is written before it is asked for
    write_long_run(longer, record.name, more)
    again = long_run(folder, Overrides.parse(["training.num_steps=60"]), None)
    assert (again.experiment, again.extends) == (longer.experiment, False)
    assert (again.experiment.training.num_steps, again.schedules, again.source) == (60, ((50, 50),), begun.source)
    assert again.experiment.batch == begun.experiment.batch


@pytest.mark.slow
def test_a_training_that_runs_is_not_extended(started: Any) -> None:
    folder, record = started
    asked, more = Overrides.parse([STEPS]), Overrides.parse(["training.num_steps=60"])
    write_long_run(long_run(folder, asked, None), record.name, asked)
    longer = long_run(folder, more, None)
    with hold_lock(longer.folder.running_lock), refused(UsageError, longer.folder.path):
        write_long_run(longer, record.name, more)
    assert long_run(folder, asked, None).experiment.training.num_steps == 50


@pytest.mark.parametrize("content", ["", "{}", json.dumps({"experiment": {}, "from_trial": "x", "overrides": []})])
def test_a_training_whose_file_is_damaged_is_left_alone(started: Any, content: str) -> None:
    folder, _ = started
    run = long_run(folder, Overrides.parse([STEPS]), None)
    run.folder.path.mkdir(parents=True)
    run.folder.trial.write_text(content)
    with refused(UsageError, "trial.json"):
        long_run(folder, Overrides.parse([STEPS]), None)
    assert run.folder.trial.read_text() == content
    run.folder.write_trial({"experiment": run.experiment.model_dump(mode="json")})
    with refused(UsageError):
        long_run(folder, Overrides.parse([STEPS]), None)


def test_wrong_requests_are_one_message(started: Any, tmp_path: Path) -> None:
    folder, _ = started
    with refused(ConfigError, "training.num_steps"):
        long_run(folder, Overrides.parse([]), None)
    with refused(InfeasiblePlan, "parallel.world_size"):
        long_run(folder, Overrides.parse([STEPS, "parallel.tensor_parallel_size=3"]), None)
    for ignored in ("cluster.device.memory_bytes=1", "device=h100-80gb", "hydra.job.name=x", "sweep=smoke"):
        with refused(ConfigError, ignored.partition("=")[0]):
            long_run(folder, Overrides.parse([STEPS, ignored]), None)
    with refused(ConfigError, "model.made.up"):
        long_run(folder, Overrides.parse([STEPS, "+model.made.up=1"]), None)
    with refused(UsageError):
        long_run(SweepFolder(tmp_path / "nowhere"), Overrides.parse([STEPS]), None)


@pytest.mark.slow
def test_a_folder_has_one_trainer_whether_here_or_in_slurm(
    started: Any, tools: Callable[..., None], slurm_submission: Callable[..., Submission]
) -> None:
    folder, record = started
    run = long_run(folder, Overrides.parse([STEPS]), None)
    write_long_run(run, record.name, Overrides.parse([STEPS]))
    with (
        keep_others_out(run.folder) as job,
        refused(UsageError),
        keep_others_out(run.folder),
    ):
        assert job is None
    tools(squeue="echo '12|RUNNING|N/A||trisweep-train-1a2b|'")
    write_submission(run.folder, slurm_submission("12", job_name="trisweep-train-1a2b"))
    with keep_others_out(run.folder) as job:
        assert job is not None
        assert (job.job_id, job.state.name) == ("12", "RUNNING")
    with refused(UsageError):
        on_this_machine(run, lambda: None)


@pytest.mark.slow
def test_a_job_that_has_no_time_for_steps_is_not_requeued_for_ever(slurm_of: SlurmOf) -> None:
    assert goes_on(Stopped(12, signal.SIGUSR2, 2))
    assert not goes_on(Stopped(11, signal.SIGUSR2, 1))
    require_time_to_save(slurm_of("slurm.time_limit_minutes=9"))
    require_time_to_save(slurm_of("slurm.time_limit_minutes=1", "+slurm.extra_sbatch.signal=USR2@10"))
    with refused(ConfigError, "slurm.time_limit_minutes"):
        require_time_to_save(slurm_of("slurm.time_limit_minutes=8"))
