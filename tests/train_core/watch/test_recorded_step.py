"""When passes ran: by a clock that counts, and in real pipelines of two ranks."""

from __future__ import annotations

from itertools import count, pairwise
from pathlib import Path

import pytest

from conf.plan.experiment import Experiment
from tests.train_core.conftest import ExperimentOf, Worlds
from train_core.parallel.clock import Clock, Line, StepRecord
from train_core.parallel.schedules import Action, actions_of
from train_core.process.world import World
from train_core.training.train import train
from train_core.trial.folder import TrialFolder
from train_core.trial.timeline import RecordedPass, RecordedWait, StageSeconds, StageTimeline
from train_core.watch.step_parts import LatestSteps, stage_timeline

PIPELINE_2 = {"parallel.world_size": 2, "parallel.pipeline_parallel_size": 2, "training.num_steps": 3}
SCHEDULES: dict[str, dict[str, object]] = {
    "1f1b": {},
    "zero-bubble": {"parallel.schedule": "zero-bubble"},
    "interleaved": {"parallel.schedule": "interleaved", "parallel.virtual_pipeline_size": 2},
}


def counting_clock() -> Clock:
    """Every mark is a second after the one before."""
    clock, now = Clock(), count(0.0)
    clock.mark = lambda: next(now)  # type: ignore[method-assign]
    return clock


def wait(clock: Clock, line: str) -> None:
    clock.wait(Line(line, (0, 1), clock).start("receive", 8), lambda: None)


def recorded(clock: Clock) -> StepRecord:
    """A forward and a backward pass with waits inside, and an update; marked once a second."""
    clock.begin_step(4)  # at 0
    clock.begin_pass(Action("forward", 0))  # at 1
    wait(clock, "pipeline")  # 2 to 3
    wait(clock, "tensor")  # 4 to 5
    clock.begin_pass(Action("backward", 0))  # at 6
    wait(clock, "pipeline")  # 7 to 8
    clock.begin_pass(None)  # at 9
    with clock.part("optimizer"):  # 10 to 15
        wait(clock, "data")  # 11 to 12
        wait(clock, "world")  # 13 to 14
    record = clock.end_step()
    wait(clock, "world")  # what comes after the step is not added to it
    return record


def test_passes_hold_their_waits_and_what_follows_them_is_told_apart() -> None:
    clock = counting_clock()
    timeline = stage_timeline(15.0, recorded(clock), clock, rank=0, stage=(0, 2))
    assert timeline.passes == (
        RecordedPass("forward", 0, 0, 1.0, 6.0, arrived=3.0, input_wait=1.0, communication=1.0),
        RecordedPass("backward", 0, 0, 6.0, 9.0, arrived=8.0, input_wait=1.0, communication=0.0),
    )
    assert timeline.after == (RecordedWait("data", 11.0, 12.0), RecordedWait("world", 13.0, 14.0))
    assert timeline.ended == 15.0
    assert timeline.seconds == StageSeconds(
        forward=3.0, backward=2.0, weight_gradient=0.0, communication=2.0, optimizer=5.0, bubble=3.0
    )


def test_of_the_latest_steps_the_one_nearest_to_the_median_is_taken() -> None:
    clock, latest = counting_clock(), LatestSteps()
    assert latest.nearest_to(1.0) is None
    for number, seconds in enumerate((3.0, 9.0, 1.0, 2.0, 2.9, 7.0), start=1):
        latest.add(seconds, recorded(clock)._replace(step=number))
    found = latest.nearest_to(3.0)
    assert found is not None
    assert (found[0], found[1].step) == (2.9, 5), "the first step is forgotten"


def test_of_many_passes_the_first_and_the_last_ones_are_listed_and_all_are_counted(tmp_path: Path) -> None:
    clock = counting_clock()
    clock.begin_step(1)
    for index in range(5000):
        clock.begin_pass(Action("forward", index))
    clock.begin_pass(None)
    with clock.part("optimizer"):
        pass
    timeline = stage_timeline(1.0, clock.end_step(), clock, rank=0, stage=(0, 2))
    assert timeline.is_cut
    assert (timeline.num_passes, timeline.seconds.forward) == (5000, 5000.0)
    assert [each.micro_batch for each in timeline.passes] == [*range(1000), *range(4000, 5000)]
    folder = TrialFolder(tmp_path)
    folder.write_timeline(timeline)
    (file,) = folder.timeline.iterdir()
    assert file.stat().st_size < 150_000


def trained_in(world: World, experiment: Experiment, folder: Path) -> None:
    train(experiment, world, folder, trial=TrialFolder(folder))


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_stage_of_a_real_pipeline_leaves_its_passes_in_the_order_of_the_schedule(
    schedule: str, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    experiment = experiment_of(PIPELINE_2 | SCHEDULES[schedule])
    worlds(2).run(trained_in, experiment, tmp_path)
    stages = TrialFolder(tmp_path).read_timeline()
    assert [(stage.stage, stage.rank) for stage in stages] == [(0, 0), (1, 1)]
    assert {stage.step for stage in stages} <= {2, 3}
    for stage in stages:
        assert [Action(*each[:3]) for each in stage.passes] == actions_of(experiment, stage.stage)
        assert all(before.end == after.start for before, after in pairwise(stage.passes))
        assert all(0 <= each.input_wait + each.communication <= each.end - each.start for each in stage.passes)
        assert stage.passes[-1].end <= stage.ended <= stage.step_seconds
        assert sum(stage.seconds.model_dump().values()) == pytest.approx(stage.ended, abs=1e-5)
    assert stages[1].seconds.bubble > 0
    assert_inputs_come_after_they_were_begun(*stages)


def assert_inputs_come_after_they_were_begun(first: StageTimeline, second: StageTimeline) -> None:
    """Both ranks have the clock of this machine, so that no stage has its input before the other has begun it."""
    assert first.machine == second.machine
    begun = {each[:3]: first.began_at + each.start for each in first.passes if each.kind == "forward"}
    arrived = {each[:3]: second.began_at + each.arrived for each in second.passes if each.kind == "forward"}
    assert all(begun[forward] < arrived[forward] for forward in begun)


def test_parts_of_two_steps_are_no_timeline(tmp_path: Path) -> None:
    """As where a job was killed between the writing of two stages, and went on from a checkpoint."""
    clock, folder = counting_clock(), TrialFolder(tmp_path)
    timelines = [stage_timeline(1.0, recorded(clock), clock, stage, (stage, 2)) for stage in range(2)]
    for timeline in timelines:
        folder.write_timeline(timeline)
    assert folder.read_timeline() == timelines
    folder.write_timeline(timelines[1].model_copy(update={"step": 5}))
    assert folder.read_timeline() == []


def test_a_damaged_part_is_put_aside_and_a_folder_without_any_has_no_timeline(tmp_path: Path) -> None:
    folder = TrialFolder(tmp_path)
    assert folder.read_timeline() == []
    folder.timeline.mkdir()
    (folder.timeline / "stage-00000.json").write_text("{")
    assert folder.read_timeline() == []
    assert len(folder.damaged_files()) == 1


def test_a_disk_that_takes_no_timeline_ends_no_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clock, folder = counting_clock(), TrialFolder(tmp_path)
    folder.timeline.touch()  # a file where the folder should be
    timeline: StageTimeline = stage_timeline(1.0, recorded(clock), clock, rank=0, stage=(0, 1))
    folder.write_timeline(timeline)
    assert "cannot be written" in capsys.readouterr().out
