"""A command that is refused leaves the sweep's folder as it was; stand-ins answer for Slurm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conf.compose.settings import ControllerSpec
from conf.errors import TrisweepError, UsageError
from conf.types.sites import SlurmSpec
from launcher.cancel import cancel_sweep, cancel_trials
from launcher.command_trainer.failure import rank_failure
from launcher.control.orders import SweepCommand, SweepOrders
from launcher.refused import unchanged_if_refused
from launcher.sweep import hand_over, slurm_rules, submit
from sweeps.folder.journal import Begun, Cancelled, History, Journal, Paused, noting_own_entries
from sweeps.folder.submission import Submission, write_submission
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.composed import load
from tests.conftest import RecordOf
from tests.launcher.conftest import SlurmOf
from tests.launcher.test_run_here import seeds
from tests.messages import refused
from tests.results.conftest import finish, performance
from train_core.job.failures import failed_measurement
from train_core.trial.measurement import Fault, Outcome

REFUSED = "echo 'sbatch: error: Batch job submission failed: Invalid feature specification' >&2; exit 1"
Prepare = Callable[[Sweep], None]
Refused = Callable[[Sweep, SlurmSpec], object]


def new(sweep: Sweep) -> None:
    pass


def begun(sweep: Sweep) -> None:
    sweep.folder.write_record(sweep.record)
    finish(sweep.folder, sweep.record.trials[0], (Outcome.FAILED, "it broke"))
    finish(sweep.folder, sweep.record.trials[1], performance(100.0))
    Journal(sweep.folder.journal).append(Begun(overrides=("slurm.qos=debug",), on_slurm=True))
    (sweep.folder.code / "abc").mkdir(parents=True)


def cancelled(sweep: Sweep) -> None:
    begun(sweep)
    Journal(sweep.folder.journal).append(Cancelled(trial_id=None))


def submission(sweep: Sweep, slurm: SlurmSpec) -> None:
    submit(_command(sweep, slurm), slurm)


def submission_of_what_failed(sweep: Sweep, slurm: SlurmSpec) -> None:
    submit(_command(sweep, slurm, retry_failed=True, remeasure=True), slurm)


def controller_without_time(sweep: Sweep, slurm: SlurmSpec) -> None:
    controller = load(["controller=slurm"]).controller.model_copy(update={"time_limit_minutes": 2})
    _hand_over(sweep, slurm, controller)


def controller_that_slurm_refuses(sweep: Sweep, slurm: SlurmSpec) -> None:
    _hand_over(sweep, slurm, load(["controller=slurm"]).controller)


def _hand_over(sweep: Sweep, slurm: SlurmSpec, controller: ControllerSpec) -> None:
    hand_over(_command(sweep, slurm, retry_failed=True), slurm, controller)


def _command(sweep: Sweep, slurm: SlurmSpec, *, retry_failed: bool = False, remeasure: bool = False) -> SweepCommand:
    orders = SweepOrders(
        ("slurm.constraint=nosuch", "+slurm.environment.KEY=secret"),
        {"slurm": {"constraint": "nosuch"}},
        retry_failed=retry_failed,
        remeasure=remeasure,
    )
    return SweepCommand(sweep, slurm_rules(slurm), orders)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("state", [new, begun, cancelled])
@pytest.mark.parametrize(
    "command",
    [submission, submission_of_what_failed, controller_without_time, controller_that_slurm_refuses],
)
def test_a_refused_command_leaves_the_folder_as_it_was(
    folder: SweepFolder,
    record_of: RecordOf,
    slurm_of: SlurmOf,
    tools: Callable[..., None],
    state: Prepare,
    command: Refused,
) -> None:
    tools(scontrol="echo 'ClusterName = alps'", squeue="true", sacct="true", srun="true", sbatch=REFUSED)
    sweep = Sweep(folder, record_of(seeds(4)))
    state(sweep)
    before = _contents(folder.path)
    with pytest.raises(TrisweepError):
        command(sweep, slurm_of())
    assert _contents(folder.path) == before


def test_a_log_that_a_refused_command_has_read_again_is_as_unread_as_before(
    folder: SweepFolder, record_of: RecordOf, slurm_of: SlurmOf, tools: Callable[..., None]
) -> None:
    tools(scontrol="echo 'ClusterName = alps'", squeue="true", sacct="true", srun="true", sbatch=REFUSED)
    program = ("trainer=command", "trainer.command=[train]", "training.num_warmup_steps=1")
    before = Sweep(folder, record_of(seeds(2), *program))
    first = before.prepare(before.record.trials[0])
    first.logs.mkdir()
    first.rank_log(0).write_text("".join(f"S{step} L4 T0.5\n" for step in range(1, 9)))
    failure = rank_failure(Fault.UNREAD, "nothing measurable in its log", "", 0)
    first.write_measurement(failed_measurement(before.record.trials[0].planned.fingerprint, failure, 1.0))
    corrected = r"trainer.log.patterns.line='S(?P<step>\d+) L(?P<loss>\S+) T(?P<step_seconds>\S+)'"
    sweep, kept = Sweep(folder, record_of(seeds(2), *program, corrected)), _contents(folder.path)
    with pytest.raises(UsageError):
        submit(_command(sweep, slurm_of()), slurm_of())
    assert _contents(folder.path) == kept
    tools(sbatch="echo Submitted batch job 12")
    submit(_command(sweep, slurm_of()), slurm_of())
    assert sweep.read()[0].outcome is Outcome.COMPLETED


def test_a_refusal_after_a_first_array_was_submitted_keeps_what_was_begun(
    folder: SweepFolder, record_of: RecordOf, slurm_of: SlurmOf, tools: Callable[..., None], tmp_path: Path
) -> None:
    once = f"[ -e {tmp_path}/once ] && {{ {REFUSED}; }}; touch {tmp_path}/once; echo Submitted batch job 12"
    tools(scontrol="echo 'ClusterName = alps'", squeue="true", sacct="true", srun="true", sbatch=once)
    sweep = Sweep(folder, record_of(seeds(4)))
    slurm = slurm_of("slurm.max_array_size=2")
    with refused(UsageError):
        submit(_command(sweep, slurm), slurm)
    assert History.kept_in(folder).begun is not None
    assert [each.submission is not None for each in sweep.read()] == [True, True, False, False]


@pytest.mark.parametrize("by_name", [False, True], ids=["the sweep", "its trials"])
@pytest.mark.parametrize("num_ended", [0, 1])
def test_what_scancel_does_not_end_is_named_and_not_called_cancelled(
    folder: SweepFolder,
    record_of: RecordOf,
    tools: Callable[..., None],
    slurm_submission: Callable[..., Submission],
    tmp_path: Path,
    by_name: bool,
    num_ended: int,
) -> None:
    lines = "".join(f"12_{element}|RUNNING None|N/A|n1|ours|\\n" for element in range(2))
    gone = f"printf '12_0|CANCELLED by 7|N/A|n1|ours|\\n12_1|RUNNING None|N/A|n1|ours|\\n' > {tmp_path}/queue"
    (tmp_path / "queue").write_text(lines.replace("\\n", "\n"))
    refuse = "echo 'scancel: error: Kill job error on job id 12_1: Access/permission denied' >&2; exit 1"
    scancel = f"{gone if num_ended else 'true'}; {refuse}"
    tools(scontrol="echo 'ClusterName = alps'", squeue=f"cat {tmp_path}/queue", sacct="true", scancel=scancel)
    sweep = Sweep(folder, record_of(seeds(2)))
    folder.write_record(sweep.record)
    for element, trial in enumerate(sweep.record.trials):
        job = slurm_submission(f"12_{element}", job_name="ours", cluster="alps", element=element)
        write_submission(sweep.prepare(trial), job)
    Journal(folder.journal).append(Begun(overrides=(), on_slurm=True))
    before = folder.journal.read_bytes()
    with refused(UsageError, "12_1"):
        cancel_trials(sweep, sweep.record.trials) if by_name else cancel_sweep(sweep)
    assert (folder.journal.read_bytes() == before) is (num_ended == 0)


def test_what_another_process_appends_meanwhile_stays(folder: SweepFolder) -> None:
    journal = Journal(folder.journal)
    journal.append(Begun(overrides=("a=1",), on_slurm=True))
    with noting_own_entries(folder.journal) as own:
        journal.append(Begun(overrides=("a=2",), on_slurm=True))
    journal.append(Paused())
    with noting_own_entries(folder.journal):
        pass
    reader = Journal(folder.journal)
    reader.read_new()
    own.take_back()
    history = History.kept_in(folder)
    assert history.begun is not None
    assert (history.begun.overrides, history.is_paused) == (("a=1",), True)
    assert reader.read_new() == []
    journal.append(Cancelled(trial_id=None))
    assert [entry.event for entry in reader.read_new()] == ["cancelled"]


def test_an_error_of_ours_takes_nothing_back(folder: SweepFolder) -> None:
    with pytest.raises(ZeroDivisionError), unchanged_if_refused(folder):  # noqa: PT012 (two statements are its point)
        Journal(folder.journal).append(Paused())
        1 / 0  # noqa: B018
    assert History.kept_in(folder).is_paused


def _contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """All files but the lock, with the times of those of trials, which tell when an attempt began."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "sweep.lock")
    dated = {path: path.stat().st_mtime_ns if "trials" in path.parts else 0 for path in files}
    return {str(path.relative_to(folder)): (path.read_bytes(), time) for path, time in dated.items()}
