"""The stages of a sweep: which trials follow a trial, and what is refused before any of them starts."""

from __future__ import annotations

import pytest

from conf.errors import ConfigError
from conf.types.stage_spec import TRAIN
from launcher.control.composed_rules import stages_of
from sweeps.points.following import Stages
from sweeps.points.plan import plan_sweep
from sweeps.trial import SweepFolder, SweepRecord, Trial, record_of, text_of
from tests.composed import composed

INFER = "infer:{after:train,command:[infer,'{train.folder}']}"
SCORE = "score:{after:infer,command:[score,'{infer.folder}','{train.folder}'],metrics:{file:scores.json}}"
ALONE = INFER.replace("command:", "overrides:['parallel=single','parallel.world_size=1'],command:")
FOLDER = SweepFolder("runs/smoke-local")


def planned(*stages: str, others: tuple[str, ...] = ()) -> tuple[Stages, SweepRecord]:
    asked = composed(["sweep=smoke", f"+sweep.stages={{{','.join(stages)}}}", *others])
    record = plan_sweep(asked, proxy=False, git_sha="")
    return stages_of(asked, record), record


def refusal(*stages: str, others: tuple[str, ...] = ()) -> str:
    with pytest.raises(ConfigError) as raised:
        planned(*stages, others=others)
    return str(raised.value)


def chain(stages: Stages, record: SweepRecord) -> list[Trial]:
    """The second trial of the sweep and what follows it, in the order of their turns."""
    trials = [record.trials[1]]
    while names := stages.after(trials[-1]):
        trials.append(stages.draft(names[0], trials[-1], FOLDER))
    return trials


def test_a_stage_is_a_trial_of_its_own_that_knows_all_before_it() -> None:
    train, infer, score = chain(*planned(INFER, SCORE))
    assert (infer.stage, infer.after, score.stage, score.after) == ("infer", train.trial_id, "score", infer.trial_id)
    assert infer.experiment is not None
    assert score.experiment is not None
    assert score.experiment.stage is not None
    assert score.experiment.stage.follows == {TRAIN: train.trial_id, "infer": infer.trial_id}
    assert (infer.experiment.trainer.name, infer.experiment.trainer.start) == ("infer", "once")
    assert infer.point == train.point
    assert len({train.identity, infer.identity, score.identity}) == 3
    assert infer.trial_id.startswith(f"{train.trial_id}-infer-")


def test_a_stage_says_itself_what_the_point_says_otherwise() -> None:
    train, infer = chain(*planned(ALONE))
    assert train.experiment is not None
    assert infer.experiment is not None
    assert (train.experiment.parallel.world_size, infer.experiment.parallel.world_size) == (2, 1)
    assert infer.experiment.parallel.tensor_parallel_size == 1


def test_equal_stages_after_different_trials_are_different_measurements() -> None:
    stages, record = planned(
        INFER.replace("command:", "overrides:['parallel=single','parallel.world_size=1'],command:")
    )
    drafts = [stages.draft("infer", trial, FOLDER) for trial in record.trials[1:3]]
    assert drafts[0].experiment is not None
    assert drafts[1].experiment is not None
    assert drafts[0].experiment.fingerprint != drafts[1].experiment.fingerprint


def test_a_training_may_begin_with_the_checkpoints_of_an_earlier_stage() -> None:
    train, decay = chain(*planned("decay:{after:train,load:train,overrides:['training.num_steps=7']}"))
    assert decay.experiment is not None
    assert decay.experiment.trainer.is_own
    assert decay.experiment.checkpoint.load == str(FOLDER.trial(train.trial_id).checkpoints.absolute())
    assert decay.experiment.training.num_steps == 7


@pytest.mark.parametrize(
    ("stage", "flags"),
    [
        ("trainer:{flags:{extra:1}}", {"lr": 0.1, "out": "x", "net": {"depth": 3}, "extra": 1}),
        ("trainer:{flags:{out:y,net:{width:5}}}", {"lr": 0.1, "out": "y", "net": {"depth": 3, "width": 5}}),
        ("trainer:{flags:{lr:0.7}}", {"lr": 0.7, "out": "x", "net": {"depth": 3}}),
        ("overrides:['trainer.flags.out=y']", {"lr": 0.1, "out": "y", "net": {"depth": 3}}),
    ],
)
def test_a_stage_that_trains_again_keeps_the_flags_of_the_sweep(stage: str, flags: dict[str, object]) -> None:
    program = ("trainer=command", "trainer.command=[fit]", "trainer.flags={lr:1,out:x,net:{depth:3}}")
    varied = ("sweep.axes={trainer.flags.lr:[0.1]}", "sweep.points=[]", "sweep.baseline={trainer.flags.lr:0.1}")
    stages, record = planned(f"again:{{after:train,{stage}}}", others=(*program, *varied))
    again = stages.draft("again", record.trials[0], FOLDER)
    assert again.experiment is not None
    assert again.experiment.trainer.flags == flags
    assert again.experiment.trainer.command == ("fit",)


def test_a_record_with_stages_is_read_as_it_was_written() -> None:
    stages, record = planned(INFER, SCORE)
    whole = record.model_copy(update={"trials": (*record.trials, *chain(stages, record)[1:])})
    read = record_of(text_of(whole))
    assert read.trials == whole.trials
    assert [read.label_of(trial).partition(" > ")[2] for trial in read.trials[-2:]] == ["infer", "score"]
    assert read.label_of(read.trials[-1]).startswith(read.label_of(read.trials[1]))


REFUSED: dict[str, tuple[str, ...]] = {
    "sweep.stages.score.after = 'infr': is not a stage of this sweep. Did you mean infer?": (
        INFER,
        SCORE.replace("after:infer", "after:infr"),
    ),
    "closes a circle: infer after score after infer": (INFER.replace("after:train", "after:score"), SCORE),
    "sweep.stages.infer.after = None: is not given. Say what it follows": ("infer:{command:[infer]}",),
    "sweep.stages = 'train': is the sweep's own trial": ("train:{after:train,command:[infer]}",),
    "sweep.stages.infer: trainer.command[0] = ": ("infer:{after:train,command:['{trian.folder}']}",),
    "sweep.stages.infer: training.num_stps = ": ("infer:{after:train,overrides:['training.num_stps=1']}",),
    "sweep.stages.infer: trainer.colour": ("infer:{after:train,command:[infer],trainer:{colour:red}}",),
    "sweep.stages.decay.load = 'infer': is not a stage before this one. Load one of train": (
        INFER,
        "decay:{after:train,load:infer}",
    ),
    "sweep.stages.infer.metrics": ("infer:{after:train,metrics:{file:scores.json}}",),
    "sweep.stages.infer.load = 'train': is nothing that a program is told": (
        "infer:{after:train,load:train,command:[infer]}",
    ),
    "sweep.stages.infer.metrics.line = 'score': names no figure": (
        "infer:{after:train,command:[infer],metrics:{line:score}}",
    ),
    "search.objective = 'infer.rmse': is of no stage of this sweep that measures anything. Seek a figure of score.": (
        INFER,
        SCORE,
        "search.objective=infer.rmse",
    ),
    "'infer.skil': is not a figure of infer, whose metrics.line finds skill. Did you mean infer.skill?": (
        "infer:{after:train,command:[infer],metrics:{line:'skill (?P<skill>.*)'}}",
        "search.objective=infer.skil",
    ),
    "search.objective = 'skill': is not an objective. Use one of throughput": (
        INFER,
        "search.objective=skill",
    ),
    "sweep.stages.score.best = 2: chooses among trials of train alone": (
        INFER,
        SCORE.replace("after:infer", "after:infer,best:2"),
    ),
}


@pytest.mark.parametrize("said", REFUSED)
def test_a_wrong_stage_is_refused_with_its_key_its_value_and_a_remedy(said: str) -> None:
    stages = [each for each in REFUSED[said] if "{" in each]
    assert said in refusal(*stages, others=tuple(each for each in REFUSED[said] if each not in stages))
