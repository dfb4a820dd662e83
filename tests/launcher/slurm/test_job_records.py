"""What Slurm charges for a job, as its accounting tells it little by little."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from conf.compose.settings import UNLIMITED_BUDGET
from launcher.control.attempts import is_charged_still, news
from launcher.control.conductor import Conductor
from launcher.control.rules import Budget, Rules
from launcher.control.workplace import ChargedTime
from launcher.slurm.job_records import COLUMNS, charged_times, keep_job_records
from launcher.slurm.workplace import QueueOnPaper
from sweeps.folder.journal import Ended, History
from sweeps.folder.submission import Submission, SurroundingJob, write_submission
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import RecordOf
from tests.launcher.conftest import SlurmOf
from train_core.job.failures import without_numbers
from train_core.trial.measurement import Outcome

JOB = "12_0"


@pytest.fixture
def ended(sweep: Sweep, slurm_submission: Callable[..., Submission]) -> Callable[..., TrialReading]:
    """The reading of a trial whose training took ten seconds, and ended so many seconds ago."""

    def read(ago: float, **submission: object) -> TrialReading:
        (reading,) = sweep.read()
        write_submission(reading.folder, slurm_submission(JOB, job_name="ours", **submission))
        assert reading.experiment is not None
        measurement = without_numbers(reading.experiment.fingerprint, Outcome.INFEASIBLE, "made up", time.time())
        taken = {"started": time.time() - ago - 10, "ended": time.time() - ago}
        reading.folder.write_measurement(measurement.model_copy(update=taken))
        return sweep.read()[0]

    return read


@pytest.fixture
def sweep(folder: SweepFolder, record_of: RecordOf) -> Sweep:
    sweep = Sweep(folder, record_of([{"training.seed": 1}]))
    sweep.prepare(sweep.record.trials[0])
    return sweep


def line(state: str, submit: str, end: str, elapsed: int) -> str:
    cells = {"JobID": JOB, "JobName": "ours", "State": state, "Submit": submit, "End": end, "ElapsedRaw": str(elapsed)}
    return "|".join(cells.get(column, "") for column in COLUMNS)


FIRST = line("REQUEUED", "2026-11-27T08:00:00", "2026-11-27T08:00:05", 5)
AGAIN = line("RUNNING", "2026-11-27T08:00:06", "Unknown", 3)
LAST = line("COMPLETED", "2026-11-27T08:00:06", "2026-11-27T08:00:20", 7)


@pytest.mark.parametrize(
    ("lines", "charged"),
    [
        ([], ChargedTime(0.0, is_over=False)),
        ([FIRST], ChargedTime(5.0, is_over=False)),
        ([FIRST, AGAIN], ChargedTime(8.0, is_over=False)),
        ([LAST, FIRST], ChargedTime(12.0, is_over=True)),
    ],
    ids=["not heard of", "requeued and not yet submitted anew", "in its second run", "over"],
)
def test_a_job_is_charged_until_its_last_run_is_over(
    ended: Callable[..., TrialReading], tools: Callable[..., None], lines: list[str], charged: ChargedTime
) -> None:
    reading = ended(ago=1.0)
    told = "\n".join(lines)
    tools(sacct=f"printf '%s\\n' '{told}'")
    times = charged_times([reading])
    assert times == {reading.name: charged}
    assert is_charged_still(reading, times[reading.name]) != charged.is_over


def test_a_job_that_was_renamed_is_charged_and_another_of_its_number_is_not(
    ended: Callable[..., TrialReading], tools: Callable[..., None]
) -> None:
    reading = ended(ago=1.0)
    renamed = LAST.replace("|ours|", "|called otherwise|")
    told = f"{renamed}sbatch --job-name=x /logs/ours.sh|\n{renamed}sbatch /a/b.sh|"
    tools(sacct=f"printf '%s\n' '{told}'")
    assert charged_times([reading]) == {reading.name: ChargedTime(7.0, is_over=True)}
    assert keep_job_records([reading]) == 1
    assert json.loads(reading.folder.slurm_job.read_text())["SubmitLine"].endswith("/ours.sh")


def test_what_slurm_charges_is_written_down_before_anybody_limits_it(
    ended: Callable[..., TrialReading], tools: Callable[..., None], sweep: Sweep, slurm_of: SlurmOf
) -> None:
    ended(ago=1.0)
    told = "\n".join((FIRST, LAST))
    tools(sacct=f"printf '%s\\n' '{told}'")
    Conductor(sweep, QueueOnPaper(slurm_of()), Rules(budget=Budget(UNLIMITED_BUDGET, None, 400.0))).advance()
    assert History.kept_in(sweep.folder).device_seconds == 12.0


def test_accounting_that_does_not_answer_and_steps_of_an_allocation_say_nothing(
    ended: Callable[..., TrialReading], tools: Callable[..., None]
) -> None:
    tools(sacct="echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert charged_times([ended(ago=1.0)]) == {}
    tools(sacct="true")
    assert charged_times([ended(ago=1.0, inside=SurroundingJob(job_id="12", job_name="ours"))]) == {}


@pytest.mark.parametrize(("seconds", "device_seconds"), [(0.0, 10.0), (14.0, 14.0)], ids=["never heard of", "runs on"])
def test_what_slurm_has_not_told_a_minute_later_counts_at_least_as_what_was_seen(
    ended: Callable[..., TrialReading], seconds: float, device_seconds: float
) -> None:
    reading, charged = ended(ago=61.0), ChargedTime(seconds, is_over=False)
    entries = news(reading, History.of([]), Budget(UNLIMITED_BUDGET, None, 400.0), charged)
    (end,) = [each for each in entries if isinstance(each, Ended)]
    assert end.device_seconds == pytest.approx(device_seconds, abs=0.1)


@pytest.mark.parametrize(
    ("parts", "joules"),
    [
        ({"": "COMPLETED 700"}, "700"),
        ({"+0": "COMPLETED 700", "+1": "CANCELLED by 0 50"}, "750"),
        ({"+0": "COMPLETED 700", "+1": "COMPLETED 0"}, "0"),
        ({"+0": "COMPLETED 700", "+1": "RUNNING 50"}, None),
    ],
    ids=["one type of nodes", "two", "two, of which one has no meters", "one component runs on"],
)
def test_the_record_of_a_job_over_several_types_of_nodes_is_kept_with_the_energy_of_all(
    parts: dict[str, str], joules: str | None, ended: Callable[..., TrialReading], tools: Callable[..., None]
) -> None:
    reading = ended(ago=1.0)
    told = []
    for component, said in parts.items():
        state, _, energy = said.rpartition(" ")
        cells = {"JobID": JOB + component, "JobName": "ours", "State": state, "ConsumedEnergyRaw": energy}
        told.append("|".join(cells.get(column, "") for column in COLUMNS))
    tools(sacct="printf '%s\\n' " + " ".join(f"'{each}'" for each in told))
    assert keep_job_records([reading]) == (joules is not None)
    assert (joules is None) != reading.folder.slurm_job.exists()
    if joules is not None:
        assert json.loads(reading.folder.slurm_job.read_text())["ConsumedEnergyRaw"] == joules
