"""What ended a trial decides whether it is run again, and where."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from cli.started_sweep import state_document
from conf.compose.settings import UNLIMITED_BUDGET
from conf.errors import UsageError
from launcher.control.attempts import BadNode, bad_nodes, may_run_again, nodes_to_avoid
from launcher.control.conductor import Conductor
from launcher.control.orders import retry, retry_failed_trials
from launcher.control.rules import Budget, Rules
from launcher.external_commands import node_names
from launcher.local.machine import MachineCapacity, Share
from launcher.local.workplace import ThisMachine
from launcher.slurm.workplace import SlurmQueue
from sweeps.folder.submission import Submission, write_submission
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, Trial
from tests.conftest import BuildRecord
from tests.launcher.conftest import SlurmOf
from train_core.job.failures import without_numbers
from train_core.trial.measurement import Fault, Outcome

may_run = partial(may_run_again, max_resubmits=2, retry_cancelled=True)
OUTCOMES = {
    Fault.MEMORY: Outcome.OUT_OF_MEMORY,
    Fault.TIME: Outcome.TIMED_OUT,
    Fault.NODE: Outcome.NODE_FAILED,
    Fault.PREEMPTED: Outcome.PREEMPTED,
    Fault.CANCELLED: Outcome.CANCELLED,
}
Attempted = Callable[..., TrialReading]
"""`attempted(index, fault, fault, nodes=("n1",))`: the trial, whose attempts ended so, one after the other."""


@pytest.fixture
def sweep(tmp_path: Path, build_record: BuildRecord) -> Sweep:
    record = build_record([{"training.seed": seed} for seed in range(4)], ())
    return Sweep(SweepFolder(tmp_path / "test-sweep"), record)


@pytest.fixture
def attempted(sweep: Sweep, slurm_submission: Callable[..., Submission]) -> Attempted:
    def attempts(index: int, *faults: Fault, nodes: tuple[str, ...] = ()) -> TrialReading:
        trial = sweep.record.trials[index]
        for number, fault in enumerate(faults, 1):
            folder = sweep.prepare(trial)
            write_submission(folder, slurm_submission(str(number), attempt=number, job_name="trisweep-a"))
            outcome, cause = OUTCOMES.get(fault, Outcome.FAILED), f"made up: {fault}"
            ended = without_numbers(trial.planned.fingerprint, outcome, cause, 1.0)
            folder.write_measurement(ended.model_copy(update={"fault": fault, "nodes": nodes, "ended": float(number)}))
        return sweep.read_trial(trial)

    return attempts


@pytest.mark.parametrize(
    ("fault", "times"),
    [
        (Fault.NODE, 2),
        (Fault.PREEMPTED, 2),
        (Fault.LOST, 2),
        (Fault.PREFLIGHT, 2),
        (Fault.HANG, 1),
        (Fault.HARDWARE, 1),
        (Fault.START, 1),
        (Fault.MEMORY, 0),
        (Fault.TIME, 0),
        (Fault.CRASH, 0),
        (Fault.INPUT, 0),
        (Fault.KILLED, 0),
    ],
)
def test_each_end_is_tried_again_so_many_times(attempted: Attempted, fault: Fault, times: int) -> None:
    assert may_run(attempted(0)), "nothing has been tried"
    tries = [may_run(attempted(index, *[fault] * (index + 1))) for index in range(3)]
    assert tries == [number < times for number in range(3)]


def test_a_preemption_and_a_lost_node_have_one_cap_in_common(attempted: Attempted) -> None:
    assert may_run(attempted(0, Fault.NODE, Fault.PREEMPTED))
    assert not may_run(attempted(1, Fault.NODE, Fault.PREEMPTED, Fault.LOST))
    assert not may_run(attempted(2, Fault.PREEMPTED), max_resubmits=0)


@pytest.mark.parametrize("fault", [Fault.CANCELLED, Fault.DISK])
def test_what_a_person_cancelled_or_found_no_disk_runs_again_only_at_a_persons_command(
    attempted: Attempted, fault: Fault
) -> None:
    reading = attempted(0, fault, fault, fault)
    assert may_run(reading)
    assert not may_run(reading, retry_cancelled=False)


def test_failures_are_retried_when_that_is_asked_for_but_memory_would_run_out_again(
    sweep: Sweep, attempted: Attempted
) -> None:
    failed = [attempted(0, Fault.CRASH, Fault.CRASH), attempted(1, Fault.NODE)]
    attempted(2, Fault.MEMORY)
    assert retry_failed_trials(sweep) == [each.trial.trial_id for each in failed]


def test_a_node_on_which_two_trials_failed_is_named_and_avoided(sweep: Sweep, attempted: Attempted) -> None:
    attempted(0, Fault.NODE, Fault.NODE, nodes=("n1",))
    assert bad_nodes(sweep.read()) == [], "one trial may fail twice by itself"
    healthy = attempted(1, Fault.CRASH, nodes=("n1",))
    assert bad_nodes(sweep.read()) == [], "a crash of the program is not the node's"
    attempted(2, Fault.HARDWARE, nodes=("n1",))
    (bad,) = bad_nodes(sweep.read())
    assert bad == BadNode("n1", 2, "made up: NODE")
    document = state_document(sweep, sweep.read(), [])
    assert document["excluded_nodes"] == {"n1": "made up: NODE"}
    assert nodes_to_avoid(healthy, [bad], num_spare=3) == ("n1",)
    assert nodes_to_avoid(healthy, [bad], num_spare=0) == (), "else it would wait for ever"


def test_a_node_that_its_preflight_found_unfit_is_left_out_at_once(sweep: Sweep, attempted: Attempted) -> None:
    unfit = attempted(0, Fault.PREFLIGHT, nodes=("n1",))
    assert [bad.name for bad in bad_nodes(sweep.read())] == ["n1"]
    assert nodes_to_avoid(unfit, [], num_spare=1) == ("n1",)
    attempted(1, Fault.PREFLIGHT, nodes=("n2", "n3"))
    assert [bad.name for bad in bad_nodes(sweep.read())] == ["n1"], "either of the two may be the bad one"


def test_the_nodes_of_a_large_job_share_the_blame(sweep: Sweep, attempted: Attempted) -> None:
    for index in range(4):
        attempted(index, Fault.NODE, nodes=("n1", f"n{index + 2}"))
    assert [bad.name for bad in bad_nodes(sweep.read())] == ["n1"]


def test_a_trial_that_hung_avoids_the_nodes_where_it_did_whatever_other_trials_say(attempted: Attempted) -> None:
    hung = attempted(0, Fault.HANG, nodes=("n1", "n2"))
    assert nodes_to_avoid(hung, [], num_spare=8) == ("n1", "n2")
    assert nodes_to_avoid(hung, [], num_spare=1) == ("n1",)
    assert nodes_to_avoid(attempted(1, Fault.NODE, nodes=("n3",)), [], num_spare=8) == ()


def test_attempts_are_counted_on_disk_once_each_also_where_the_submission_is_lost(
    sweep: Sweep, attempted: Attempted
) -> None:
    reading = attempted(0, Fault.NODE, Fault.HANG)
    for _ in range(2):  # whoever prepared the next attempt was killed on the way
        sweep.prepare(reading.trial)
    (again,) = sweep.read()[:1]
    assert [(attempt.number, attempt.fault) for attempt in again.ended_attempts] == [(1, Fault.NODE), (2, Fault.HANG)]
    assert again.next_attempt == 3
    with reading.folder.attempts.open("a") as file:
        file.write('{"number": 3, "outc')
    assert len(sweep.read()[0].ended_attempts) == 2


def test_attempts_are_counted_on_where_a_trials_folder_was_removed_while_its_job_ran(
    sweep: Sweep, slurm_of: SlurmOf, tools: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else both jobs would be the first attempt, and neither would find that the other works there."""
    tools(sbatch="echo Submitted batch job 12", srun="true", squeue="true", scontrol="echo 'ClusterName = alps'")
    monkeypatch.setattr("launcher.slurm.workplace.snapshot_code", lambda *_: sweep.folder.code / "0a1b")
    one = Sweep(sweep.folder, sweep.record.model_copy(update={"trials": sweep.record.trials[:1]}))
    attempts, rules = list[int](), Rules(budget=Budget(UNLIMITED_BUDGET, None, 60.0))
    for _ in range(3):
        Conductor(one, SlurmQueue(slurm_of()), rules).advance()
        submission = one.read()[0].submission
        assert submission is not None
        attempts.append(submission.attempt)
        shutil.rmtree(one.read()[0].folder.path)
    assert attempts == [1, 2, 3]


@pytest.mark.parametrize(
    ("short", "names"),
    [
        ("", ()),
        ("login1", ("login1",)),
        ("node[1-3,7],big2", ("node1", "node2", "node3", "node7", "big2")),
        ("frontier[00099-00101]", ("frontier00099", "frontier00100", "frontier00101")),
        ("r[1-2]n[08-09]", ("r1n08", "r1n09", "r2n08", "r2n09")),
    ],
)
def test_slurms_short_form_of_names_is_read(short: str, names: tuple[str, ...]) -> None:
    assert node_names(short) == names


@pytest.mark.parametrize("faults", [(), (Fault.CRASH,)])
def test_a_trial_that_its_place_refuses_again_is_not_ordered_for_ever(
    faults: tuple[Fault, ...], sweep: Sweep, attempted: Attempted
) -> None:
    trial = sweep.record.trials[0]
    one = Sweep(sweep.folder, sweep.record.model_copy(update={"trials": (trial,)}))
    attempted(0, *faults)
    for is_ordered in (bool(faults), True, True):
        if is_ordered:
            retry(one, one.read())
        conductor = Conductor(one, _place(memory_bytes=1000), Rules(budget=Budget(UNLIMITED_BUDGET, None, 60.0)))
        assert conductor.advance().num_waiting == 1
        step = conductor.advance()
        assert (step.readings[0].outcome, step.num_waiting, bool(step.finished)) == (Outcome.INFEASIBLE, 0, True)


def test_an_order_for_a_trial_that_was_refused_waits_for_room(sweep: Sweep) -> None:
    one = Sweep(sweep.folder, sweep.record.model_copy(update={"trials": sweep.record.trials[:1]}))
    rules = Rules(budget=Budget(UNLIMITED_BUDGET, None, 60.0))
    Conductor(one, _place(memory_bytes=1000), rules).advance()
    retry(one, one.read())
    place = _place(memory_bytes=2**40)
    place.ledger.shares["another"] = Share(1, 0, ())
    conductor = Conductor(one, place, rules)
    assert [conductor.advance().num_waiting for _ in range(2)] == [1, 1]


def test_trials_whose_end_is_known_are_not_read_again_for_the_nodes_that_failed_them(
    sweep: Sweep,
    attempted: Attempted,
    slurm_of: SlurmOf,
    tools: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There may be ten thousand of them, and trials start at every step."""
    tools(sbatch="exit 1", srun="true", squeue="true", scontrol="true")
    monkeypatch.setattr("launcher.slurm.workplace.snapshot_code", lambda *_: sweep.folder.code / "0a1b")
    ended, queue = attempted(0, Fault.PREFLIGHT, nodes=("n1",)), SlurmQueue(slurm_of())
    first, *others = queue.read_trials(sweep)
    read, read_trial = list[str](), Sweep.read_trial

    def noting(own: Sweep, trial: Trial) -> TrialReading:
        read.append(trial.trial_id)
        return read_trial(own, trial)

    monkeypatch.setattr(Sweep, "read_trial", noting)
    with pytest.raises(UsageError):
        queue.start(sweep, others[:1])
    assert first.name == ended.name
    assert others[1].name in read
    assert ended.name not in read


def _place(memory_bytes: int) -> ThisMachine:
    """A machine on which nothing can start."""

    def start(folder: str, devices: object, limit: object) -> None:
        raise AssertionError("nothing is to be started")

    return ThisMachine(MachineCapacity(1, memory_bytes, 0), Path, 60.0, start)
