"""A training that was killed goes on from its last whole checkpoint, with the losses it would have had."""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from conf.errors import ConfigError, UsageError
from conf.plan.experiment import Experiment
from tests.messages import refused
from tests.train_core.conftest import ExperimentOf, TrialOf, Worlds
from train_core.__main__ import _how_to_go_on
from train_core.checkpoints.checkpoint_folder import (
    Facts,
    checkpoints_in,
    damage,
    delete_others,
    draft_of,
    last_whole,
    path_of,
    publish,
    require_start,
)
from train_core.job.training_folder import StoredTraining
from train_core.job.trial import run_trial_here
from train_core.process.stop import never
from train_core.process.world import World
from train_core.training.train import train
from train_core.training.trainer import Trainer
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import Outcome, StepMetrics

TWO_REPLICAS = {
    "model.num_layers": 2,
    "parallel.world_size": 2,
    "parallel.zero_stage": 1,
    "training.num_steps": 7,
    "training.num_warmup_steps": 2,
    "checkpoint.every_steps": 2,
    "checkpoint.keep_last": 2,
}

ONE_STEP = {
    "model.num_layers": 1,
    "training.num_steps": 1,
    "training.num_warmup_steps": 0,
    "checkpoint.every_steps": 1,
    "checkpoint.asynchronous": False,
}


@pytest.fixture
def killed_after(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Rank 0 dies by SIGKILL once, after reporting the given step."""

    def arrange(step: int, mark: Path) -> None:
        def dying(experiment: Experiment, world: World, cache_dir: Path, on_step: Any, *more: Any) -> Any:
            def report(metrics: Any) -> None:
                on_step(metrics)
                if metrics.step == step and not mark.exists():
                    mark.touch()
                    os.kill(os.getpid(), signal.SIGKILL)

            return train(experiment, world, cache_dir, report, *more)

        monkeypatch.setattr("train_core.job.rank.train", dying)

    return arrange


@pytest.mark.slow
def test_a_killed_training_goes_on_bit_for_bit(trial_of: TrialOf, killed_after: Any, tmp_path: Path) -> None:
    expected = run_trial_here(trial_of(TWO_REPLICAS | {"checkpoint.every_steps": None}).path).performance
    trial = trial_of(TWO_REPLICAS)
    killed_after(6, tmp_path / "killed")
    killed = run_trial_here(trial.path)
    assert killed.outcome is Outcome.FAILED, killed.cause
    assert [metrics.step for metrics in trial.read_metrics()] == [1, 2, 3, 4, 5, 6]
    measurement = run_trial_here(trial.path)
    assert measurement.outcome is Outcome.COMPLETED, measurement.cause
    assert expected is not None
    assert measurement.performance is not None
    assert measurement.performance.losses == expected.losses
    metrics = trial.read_metrics()
    assert [one.step for one in metrics] == [1, 2, 3, 4, 5, 6, 7]
    assert [one.loss for one in metrics] == list(expected.losses)
    assert sum(one.warmup for one in metrics) == 4, "the steps after the interruption warm up again"
    assert sorted(path.name for path in trial.checkpoints.iterdir()) == ["step-000006", "step-000007"]


class WithoutReading(TrialFolder):
    """The folder as a rank sees it that has no business with its metrics."""

    def read_metrics(self) -> list[StepMetrics]:
        raise AssertionError("many ranks would read the same file at once")


def losses_of(world: World, experiment: Experiment, folder: Path) -> tuple[float, ...]:
    trial = TrialFolder(folder) if world.rank == 0 else WithoutReading(folder)
    return train(experiment, world, folder / "tokens", trial.append_metrics, never, trial).losses


@pytest.mark.slow
def test_one_rank_reads_for_all_what_was_measured_before(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    for num_steps in (2, 4):
        experiment = experiment_of(TWO_REPLICAS | {"training.num_warmup_steps": 1, "training.num_steps": num_steps})
        first, second = worlds(2).run(losses_of, experiment, tmp_path)
        assert first == second
        assert len(first) == num_steps


def refusal_of_training(world: World, experiment: Experiment, folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        losses_of(world, experiment, folder)
    return str(caught.value)


def test_a_training_goes_on_in_its_own_folder_with_the_text_of_then_alone(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    folder, text = TrialFolder(tmp_path / "training"), tmp_path / "text"
    text.mkdir()
    (text / "b.txt").write_text("the same words again and again " * 300)
    experiment = experiment_of(ONE_STEP | {"data.path": str(text), "data.tokenizer": "bpe", "model.vocab_size": 320})
    losses = worlds(1).run(losses_of, experiment, folder.path)
    tokenizer = folder.tokenizer.read_bytes()
    assert worlds(1).run(losses_of, experiment, folder.path) == losses
    (text / "a.txt").write_text("some other letters, quite unlike those before\n" * 100)
    (told,) = worlds(1).run(refusal_of_training, experiment, folder.path)
    words = re.escape(
        f"data.path = {str(text)!r}: holds other text than when {path_of(folder.checkpoints, 1)} was written"
    )
    tokens = r" \(tokens-\w+ \([\d,]+ tokens\), not tokens-\w+ \([\d,]+ tokens\)\)\."
    remedy = re.escape(f" Give the text of then, or move {folder.checkpoints} away to begin with step 1.")
    assert re.fullmatch(words + tokens + remedy, told), told
    assert folder.tokenizer.read_bytes() == tokenizer, "that of the weights is lost"


@pytest.mark.thorough  # than the training that was killed
@pytest.mark.slow
def test_a_training_that_had_ended_measures_nothing_anew(trial_of: TrialOf) -> None:
    trial = trial_of(
        TWO_REPLICAS | {"parallel.world_size": 1, "training.num_steps": 5, "checkpoint.asynchronous": False}
    )
    first = run_trial_here(trial.path)
    assert last_whole(trial.checkpoints) == path_of(trial.checkpoints, 5), "the last step was not saved"
    assert run_trial_here(trial.path) == first
    trial.measurement.unlink()
    second = run_trial_here(trial.path)
    assert second.performance is not None
    assert first.performance is not None
    assert second.performance.losses == first.performance.losses
    trial.measurement.unlink()
    trial.metrics.unlink()
    measurement = run_trial_here(trial.path)
    assert measurement.outcome is Outcome.FAILED
    assert "metrics.jsonl does not say how its steps went" in measurement.cause


def test_a_training_that_goes_on_keeps_its_traces_and_one_that_starts_anew_does_not(tmp_path: Path) -> None:
    trial = TrialFolder(tmp_path)
    with trial.writing_trace(2, 0) as draft:
        draft.touch()
    trial.checkpoints.mkdir()
    trial.clear_results()
    assert len(list(trial.traces.iterdir())) == 1
    trial.checkpoints.rmdir()
    trial.clear_results()
    assert list(trial.traces.iterdir()) == []


@pytest.mark.thorough  # than test_other_layout, where a damaged one is passed over
@pytest.mark.slow
def test_a_training_whose_last_checkpoint_is_damaged_goes_on_bit_for_bit_from_the_one_before_and_says_so(
    trial_of: TrialOf, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = trial_of(TWO_REPLICAS | {"training.num_steps": 4})
    first = run_trial_here(trial.path)
    trial.measurement.unlink()
    file = path_of(trial.checkpoints, 4) / "__0_0.distcp"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    second = run_trial_here(trial.path)
    assert first.performance is not None
    assert second.performance is not None
    assert second.performance.losses == first.performance.losses
    told = capsys.readouterr().err
    assert f"checkpoint {file.parent} has a {file.name} that is not as it was written" in told
    assert told.count("; going back to step 2\n") == 1
    assert damage(file.parent) is None, "the step was done again, and saved"


@pytest.fixture
def three_checkpoints(experiment_of: ExperimentOf, tmp_path: Path) -> Path:
    for step in (1, 2, 3):
        publish_step(tmp_path, step, experiment_of().model)
    return tmp_path


def publish_step(folder: Path, step: int, model: Any) -> None:
    draft_of(folder, step).mkdir()
    (draft_of(folder, step) / "__0_0.distcp").write_bytes(b"0123456789")
    (draft_of(folder, step) / ".metadata").write_bytes(b"")
    publish(folder, Facts(step=step, num_updates=step, label="", model=model, loss_scale={}, training={}))


def test_a_truncated_checkpoint_falls_back_to_the_last_whole_one_and_says_so(
    three_checkpoints: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert last_whole(three_checkpoints) == path_of(three_checkpoints, 3)
    (path_of(three_checkpoints, 3) / "__0_0.distcp").write_bytes(b"01234")
    (path_of(three_checkpoints, 2) / "checkpoint.json").write_text("{")
    with caplog.at_level(logging.WARNING):
        assert last_whole(three_checkpoints) == path_of(three_checkpoints, 1)
    assert "has 5 of the 10 bytes of __0_0.distcp" in caplog.text
    assert "has no readable checkpoint.json" in caplog.text


def test_who_only_looks_how_far_a_training_is_does_not_warn_of_its_checkpoints(
    three_checkpoints: Path, experiment_of: ExperimentOf, caplog: pytest.LogCaptureFixture
) -> None:
    folder = TrialFolder(three_checkpoints / "training")
    folder.path.mkdir()
    for path in sorted(three_checkpoints.glob("step-*")):
        (folder.checkpoints / path.name).parent.mkdir(exist_ok=True)
        path.rename(folder.checkpoints / path.name)
    (path_of(folder.checkpoints, 3) / "__0_0.distcp").write_bytes(b"01234")
    assert "after step 2, from" in _how_to_go_on(StoredTraining(folder, experiment_of(), 0, ()))
    assert caplog.text == ""


def test_a_draft_is_no_checkpoint_and_old_ones_go(three_checkpoints: Path) -> None:
    draft_of(three_checkpoints, 4).mkdir()
    delete_others(three_checkpoints, step=3, keep_last=1)
    assert last_whole(three_checkpoints) == path_of(three_checkpoints, 3)
    assert damage(path_of(three_checkpoints, 2)) is not None


def test_damaged_checkpoints_do_not_push_whole_ones_out(three_checkpoints: Path) -> None:
    (path_of(three_checkpoints, 3) / "__0_0.distcp").unlink()
    delete_others(three_checkpoints, step=3, keep_last=1)
    assert last_whole(three_checkpoints) == path_of(three_checkpoints, 2)
    assert not path_of(three_checkpoints, 1).exists()
    delete_others(three_checkpoints, step=2, keep_last=1)
    assert not path_of(three_checkpoints, 3).exists(), "it will be done again"


def test_an_old_checkpoint_that_cannot_be_deleted_stays_and_is_named(
    three_checkpoints: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    delete, stuck = shutil.rmtree, path_of(three_checkpoints, 1)

    def refuse(path: Path) -> None:
        if path == stuck:
            raise OSError(errno.ENOTEMPTY, "Directory not empty")
        delete(path)

    monkeypatch.setattr(shutil, "rmtree", refuse)
    delete_others(three_checkpoints, 3, keep_last=1)
    assert checkpoints_in(three_checkpoints) == [stuck, path_of(three_checkpoints, 3)]
    assert f"checkpoint {stuck} cannot be deleted (Directory not empty)" in caplog.text


def test_steps_are_ordered_as_numbers(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    for step in (999_900, 1_000_000):
        publish_step(tmp_path, step, experiment_of().model)
    assert last_whole(tmp_path) == path_of(tmp_path, 1_000_000)
    delete_others(tmp_path, step=1_000_000, keep_last=1)
    assert last_whole(tmp_path) == path_of(tmp_path, 1_000_000)


def refusal(world: World, experiment: Experiment, folder: Path) -> str:
    trainer = Trainer(experiment, world, folder / "tokens")
    with pytest.raises(ConfigError) as caught:
        trainer.checkpoints(None).restore()
    return str(caught.value)


def test_a_path_that_cannot_be_read_is_refused_before_a_model_is_built(
    trial_of: TrialOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("train_core.job.rank.train", None)
    measurement = run_trial_here(trial_of(TWO_REPLICAS | {"checkpoint.load": "/nowhere"}).path)
    assert measurement.outcome is Outcome.FAILED
    assert measurement.cause.startswith("checkpoint.load = '/nowhere': cannot be read on ")


def test_a_training_with_checkpoints_of_its_own_goes_on_without_what_it_started_from(
    three_checkpoints: Path, tmp_path: Path
) -> None:
    require_start("/nowhere", three_checkpoints)
    require_start(None, tmp_path / "none")
    with refused(ConfigError, "checkpoint.load"):
        require_start("/nowhere", tmp_path / "none")


def save_first(world: World, experiment: Experiment, folder: Path) -> None:
    trainer = Trainer(experiment, world, folder / "tokens")
    with trainer.checkpoints(folder / "checkpoints") as checkpoints:
        checkpoints.save(1)


HALF_THE_HEADS = {"model.num_attention_heads": 4, "model.num_query_groups": 4}


@pytest.mark.parametrize(
    ("values", "name", "problem"),
    [
        ({"model.num_layers": 9}, "step-000001", r"^model\.num_layers = 9: is not the 8 of the model in the ch.* /\S+"),
        (HALF_THE_HEADS, "", r"^model\.num_attention_heads = 4: is not the 8 .* model\.head_size=4, or"),
        ({}, "step-000007", r"^checkpoint\.load = .*: is not a folder\. Name a checkpoint folder, or null"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_with_the_value_that_differs(
    values: Any, name: str, problem: str, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    worlds(1).run(save_first, experiment_of(), tmp_path)
    load = {"checkpoint.load": str(tmp_path / "checkpoints" / name)}
    (told,) = worlds(1).run(refusal, experiment_of(values | load), tmp_path)
    assert re.search(problem, told), told


@pytest.mark.slow
def test_a_truncated_checkpoint_that_was_asked_for_is_refused(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    worlds(1).run(save_first, experiment_of(), tmp_path)
    asked = tmp_path / "checkpoints" / "step-000001"
    (asked / "__0_0.distcp").unlink()
    (told,) = worlds(1).run(refusal, experiment_of({"checkpoint.load": str(asked)}), tmp_path)
    assert "is not a complete checkpoint: it lacks __0_0.distcp. Name another one, or null." in told


def failure_to_save(world: World, experiment: Experiment, folder: Path) -> str:
    trainer = Trainer(experiment, world, folder / "tokens")
    (folder / "checkpoints").write_text("in the way")
    checkpoints = trainer.checkpoints(folder / "checkpoints")
    checkpoints.save(1)
    with pytest.raises(UsageError) as failed:
        checkpoints.wait()
    return str(failed.value)


def test_a_folder_that_cannot_be_written_is_one_message(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    (told,) = worlds(1).run(failure_to_save, experiment_of({"model.num_layers": 1}), tmp_path)
    assert re.fullmatch(r"rank 0 could not write the checkpoint of step 1 to \S+: \[Errno 20\] .*", told), told
