"""Stages that follow trials, step after step, with jobs that take no time."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pytest

from conf.compose.settings import UNLIMITED_BUDGET
from conf.types.stage_spec import StageSpec
from conf.types.trainer_spec import MetricsSpec
from launcher.control.orders import SweepCommand
from launcher.control.rules import Budget, Rules
from launcher.sweep import union_for
from sweeps.folder.journal import Ended, Journal, Submitted
from sweeps.points.following import Stages
from sweeps.points.plan import trial_of
from sweeps.reading import TrialReading
from sweeps.search.axes.seen_points import seen_points
from sweeps.search.searcher import Answer, Proposal, Pruning, Search
from sweeps.sweep import Sweep, in_chains
from sweeps.trial import SweepFolder, Trial
from tests.composed import composed
from tests.conftest import RecordOf
from tests.launcher.control.test_conductor import LIMIT_SECONDS, TREE, carried_out
from tests.launcher.test_run_here import make_job, seeds
from tests.results.conftest import performance
from train_core.job.failures import without_numbers
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import Outcome

NUM_SEEDS = 3
AGAIN = {"again": StageSpec(after="train"), "longer": StageSpec(after="again", overrides=("training.num_steps=5",))}


@pytest.fixture
def sweep(folder: SweepFolder, record_of: RecordOf) -> Sweep:
    planned = Sweep(folder, record_of(seeds(NUM_SEEDS)))
    folder.write_record(planned.record)
    return planned


@pytest.fixture(scope="module")
def chained(tmp_path_factory: pytest.TempPathFactory, record_of: RecordOf) -> Sweep:
    """Three seeds, each followed by the stages of `AGAIN`, carried out once for all tests that only look at it."""
    folder = SweepFolder(tmp_path_factory.mktemp("chained") / "runs" / "test-local")
    planned = Sweep(folder, record_of(seeds(NUM_SEEDS)))
    folder.write_record(planned.record)
    carried_out(planned, rules(AGAIN))
    return planned


def rules(stages: dict[str, StageSpec]) -> Rules:
    return Rules(budget=Budget(UNLIMITED_BUDGET, None, LIMIT_SECONDS), stages=Stages(stages, composed(TREE)))


def readings(folder: SweepFolder, stage: str) -> list[TrialReading]:
    return [each for each in Sweep.stored_in(folder).read() if each.trial.stage == stage]


def events(folder: SweepFolder, kind: type[Submitted] | type[Ended]) -> list[str]:
    return [each.trial_id for each in Journal(folder.journal).read_new() if isinstance(each, kind)]


def order(folder: SweepFolder) -> list[tuple[str, bool]]:
    """Every submission and every end, in the order in which they were written."""
    entries = Journal(folder.journal).read_new()
    return [(each.trial_id, isinstance(each, Ended)) for each in entries if isinstance(each, Submitted | Ended)]


def test_each_stage_starts_once_the_one_before_it_has_ended_and_never_twice(chained: Sweep) -> None:
    for stage in ("again", "longer"):
        found = readings(chained.folder, stage)
        assert [each.outcome for each in found] == [Outcome.COMPLETED] * NUM_SEEDS
        written = order(chained.folder)
        for each in found:
            assert written.index((each.trial.after, True)) < written.index((each.name, False))
    before = chained.folder.journal.read_bytes()
    carried_out(Sweep.stored_in(chained.folder), rules(AGAIN))
    assert chained.folder.journal.read_bytes() == before


def test_what_failed_is_followed_by_nothing(sweep: Sweep) -> None:
    carried_out(sweep, rules(AGAIN), make_job("raise"))
    assert [each.outcome for each in readings(sweep.folder, "")] == [Outcome.FAILED] * NUM_SEEDS
    assert readings(sweep.folder, "again") == []


def measured(folder: str, rate: float, **figures: float) -> None:
    """As the trial's program would leave it: so many tokens in a second, or what an evaluation prints."""
    trial, now = TrialFolder(folder), time.time()
    is_program = trial.read_experiment().trainer.metrics is not None
    found = without_numbers(trial.read_experiment().fingerprint, Outcome.COMPLETED, "", now)
    changes = {"metrics": figures} if is_program else {"performance": performance(rate)}
    trial.write_measurement(found.model_copy(update=changes))


def test_the_best_alone_have_their_stage_once_all_others_have_ended(folder: SweepFolder, record_of: RecordOf) -> None:
    """The least seed is the best."""
    sweep = Sweep(folder, record_of([{"training.seed": seed} for seed in (3, 1, 2)]))
    folder.write_record(sweep.record)
    score = StageSpec(after="train", command=("score",))
    best = {"second": StageSpec(after="train", best=1), "third": score.model_copy(update={"after": "second"})}
    by_seed = lambda path, *_: measured(path, 100 / TrialFolder(path).read_experiment().training.seed)  # noqa: E731
    # One after another, so that some have ended while others still wait.
    carried_out(sweep, replace(rules({"score": score} | best), max_concurrent_trials=1), by_seed)
    (second,), (third,) = readings(folder, "second"), readings(folder, "third")
    assert (second.trial.point, third.trial.after) == ({"training.seed": 1}, second.name)
    written = order(folder)
    others = [each for stage in ("", "score") for each in readings(folder, stage)]
    assert len(others) == 2 * NUM_SEEDS
    assert all(written.index((each.name, True)) < written.index((second.name, False)) for each in others)


@pytest.mark.parametrize("role", ["observed", "kept"])
def test_a_sweep_whose_best_have_their_stage_ends_beside_what_an_earlier_command_asked_for(
    sweep: Sweep, role: Literal["observed", "kept"]
) -> None:
    carried_out(sweep, rules({}), lambda path, *_: measured(path, 100))
    first, *others = sweep.record.trials
    earlier = [each.model_copy(update={"role": role, "selected": False}) for each in others]
    sweep.folder.write_record(sweep.record.model_copy(update={"trials": (first, *earlier)}))
    best = {"second": StageSpec(after="train", best=1)}
    carried_out(Sweep.stored_in(sweep.folder), rules(best), lambda path, *_: measured(path, 100))
    assert Journal(sweep.folder.journal).read_new()[-1].event == "finished"


@pytest.mark.parametrize("role", ["observed", "kept"])
def test_the_best_of_the_table_have_their_stage_whichever_command_asked_for_them(
    sweep: Sweep, role: Literal["observed", "kept"]
) -> None:
    """A search found the best two, seeds 2 and 1; the command that adds the stage asks for seed 0 alone."""
    by_seed = lambda path, *_: measured(path, 100.0 * (1 + TrialFolder(path).read_experiment().training.seed))  # noqa: E731
    carried_out(sweep, rules({}), by_seed)
    worst, *others = sweep.record.trials
    earlier = [each.model_copy(update={"role": role, "selected": False}) for each in others]
    sweep.folder.write_record(sweep.record.model_copy(update={"trials": (worst, *earlier)}))
    best = {"second": StageSpec(after="train", best=2)}
    for _ in range(2):  # and the same command given again finds nothing to do
        carried_out(Sweep.stored_in(sweep.folder), rules(best), lambda path, *_: measured(path, 100))
        assert [each.trial.point["training.seed"] for each in readings(sweep.folder, "second")] == [2, 1]


def test_a_stage_that_was_changed_runs_anew_and_nothing_before_it_does(chained: Sweep, folder: SweepFolder) -> None:
    shutil.copytree(chained.folder.path, folder.path)
    changed = AGAIN | {"longer": StageSpec(after="again", overrides=("training.num_steps=6",))}
    carried_out(Sweep.stored_in(folder), rules(changed))
    found = {(each.trial.role, each.num_steps) for each in readings(folder, "longer")}
    assert found == {("kept", 5), ("asked", 6)}
    assert len(events(folder, Submitted)) == 4 * NUM_SEEDS


def test_the_same_command_given_again_keeps_the_stages(chained: Sweep) -> None:
    record = union_for(SweepCommand(chained, rules(AGAIN)))
    assert {trial.role for trial in record.trials} == {"asked"}
    assert len(record.trials) == 3 * NUM_SEEDS
    fewer = chained.record.model_copy(update={"trials": chained.record.trials[:1]})
    record = union_for(SweepCommand(chained._replace(record=fewer), rules(AGAIN)))
    assert [trial.stage for trial in record.trials if trial.role == "asked"] == ["", "again", "longer"]


def test_a_part_of_a_sweep_has_the_stages_of_its_points_alone(sweep: Sweep) -> None:
    carried_out(sweep, rules({}))
    wanted = replace(rules(AGAIN), wants=lambda trial: trial.point == {"training.seed": 1})
    carried_out(Sweep.stored_in(sweep.folder), wanted)
    assert [each.trial.point["training.seed"] for each in readings(sweep.folder, "longer")] == [1]


def test_a_status_lists_each_stage_below_the_trial_that_it_follows(chained: Sweep) -> None:
    shown: Sequence[Trial] = [each.trial for each in in_chains(Sweep.stored_in(chained.folder).read())]
    assert [trial.stage for trial in shown] == ["", "again", "longer"] * NUM_SEEDS
    assert [trial.point["training.seed"] for trial in shown] == [0] * 3 + [1] * 3 + [2] * 3


class Watching(Search):
    """Proposes the seeds 1 and 2 one after another, and notes what is known of those before."""

    def __init__(self) -> None:
        self.known: list[list[tuple[float, ...] | None]] = []

    def ask(self, trials: Sequence[TrialReading], count: int) -> Answer:
        seen = seen_points(trials, ("max:score.skill",))
        if any(each.is_in_flight for each in seen):
            return Answer()
        self.known.append([each.costs for each in seen])
        tried = len(trials)
        return Answer((Proposal({"batch.micro_batch_size": 2**tried}, ""),)) if tried < 3 else Answer(finished="all")

    def prune(self, trials: Sequence[TrialReading]) -> list[Pruning]:
        return []

    def lessons(self, trials: Sequence[TrialReading]) -> list[str]:
        return []


def test_a_search_for_a_figure_waits_for_the_evaluation_of_each_trial(folder: SweepFolder, record_of: RecordOf) -> None:
    sweep = Sweep(folder, record_of([{"batch.micro_batch_size": 1}]))
    folder.write_record(sweep.record)
    score = StageSpec(after="train", command=("score",), metrics=MetricsSpec(line=r"skill (?P<skill>\d)"))
    stages, search = rules({"score": score}), Watching()
    draft = lambda proposal: trial_of(composed(TREE).tree, proposal.point, proposal.because)  # noqa: E731

    def job(path: str, devices: tuple[int, ...], time_limit_seconds: float | None) -> None:
        size = TrialFolder(path).read_experiment().batch.micro_batch_size
        measured(path, 100.0, skill=float(size))

    carried_out(sweep, replace(stages, search=search, draft=draft, max_trials=9), job)
    assert search.known[-1] == [(-1.0,), (-2.0,), (-4.0,)]
    assert all(cost is not None for known in search.known for cost in known)

    def other_job(path: str, devices: tuple[int, ...], time_limit_seconds: float | None) -> None:
        measured(path, 100.0, skill=7.0)

    changed, again = rules({"score": score.model_copy(update={"command": ("score", "better")})}), Watching()
    carried_out(Sweep.stored_in(folder), replace(changed, search=again, draft=draft, max_trials=9), other_job)
    assert again.known == [[(-7.0,)] * 3]  # and never what the stage measured before it was changed
